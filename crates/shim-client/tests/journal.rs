//! A journal on a full disk: a partial write is undone, and the next fact follows the last.

#![allow(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::fs::File;
use std::process::Command;

use carrel_shim_client::messages::{Fact, FactKind};
use carrel_shim_client::{Journal, JournalError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The file size limit of the child process.
const ROOM: u64 = 4096;
/// Set in the environment of the child process.
const PART: &str = "CARREL_JOURNAL_WITHOUT_ROOM";

fn fact(length: usize) -> Fact {
    Fact { message: Some("x".repeat(length)), ..Fact::new(1, FactKind::Claimed) }
}

fn limit(most: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: most, maximum }).expect("a limit of its own");
}

//= promises.journal.fact-without-room-disk
#[test]
fn a_failed_append_leaves_the_journal_unchanged_and_the_next_one_succeeds() {
    if std::env::var_os(PART).is_some() {
        return without_room();
    }
    // The limit and the disposition of its signal belong to a process. An ignored signal is inherited, and turns into
    // an error.
    let this = std::env::current_exe().expect("this program");
    let name = "a_failed_append_leaves_the_journal_unchanged_and_the_next_one_succeeds";
    let script = r#"trap "" XFSZ; exec "$0" --exact "$1""#;
    let output = Command::new("sh").args(["-c", script]).arg(this).arg(name).env(PART, "1").output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn without_room() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = File::open(home.path()).expect("the directory");
    let length = || std::fs::metadata(home.path().join("journal")).expect("the journal").len();
    let mut journal = Journal::create(&directory, "incarnation").expect("a journal");
    let (mut facts, mut before) = (0, length());
    limit(Some(ROOM));
    let error = loop {
        match journal.append(fact(1500)) {
            Ok(sequence) => facts = sequence,
            Err(error) => break error,
        }
        before = length();
    };
    assert!(matches!(&error, JournalError::Append(_)), "{error}");
    assert!(facts >= 2 && before < ROOM, "there was room for a part of it");
    assert_eq!((length(), journal.last()), (before, facts));
    let loaded = Journal::load(&directory).expect("what was there");
    assert_eq!((loaded.facts.len() as u64, loaded.torn), (facts, false));
    assert!(journal.append(fact(1500)).is_err(), "there is still no room");

    assert_eq!(journal.append(fact(1)).expect("a small one fits"), facts + 1);
    limit(None);
    assert_eq!(journal.append(fact(1500)).expect("there is room again"), facts + 2);
    let loaded = Journal::load(&directory).expect("all of it");
    assert_eq!((loaded.facts.len() as u64, loaded.torn), (facts + 2, false));
    assert_eq!(journal.read(1, usize::MAX).expect("all of it"), loaded.facts);
}
