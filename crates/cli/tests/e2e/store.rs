//! `carrel store`: backup, restore, check and repair.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use carrel_store::{
    Change, DesiredState, EventDetails, EventType, NewEvent, Pairs, Sandbox, SandboxId, SandboxState, Store,
    StoreOptions, Timestamp,
};
use serde_json::Value;

use crate::ps::{text, waiting};
use crate::serve::ServeProcess;
use crate::support::{CommandOutput, TestEnvironment};

/// A text that occurs only in the row of the second sandbox.
const MARKED: &str = "a text that is nowhere else";

/// Where these numbers are in the header of an SQLite database.
const USER_VERSION: u64 = 60;
const APPLICATION_ID: u64 = 68;

fn store_file(env: &TestEnvironment) -> PathBuf {
    env.home.path().join("store/carrel.db")
}

/// A store with two sandboxes that no daemon serves. Returns the file as it was while in use, without its log.
#[tokio::main(flavor = "current_thread")]
async fn fill(env: &TestEnvironment) -> Vec<u8> {
    std::fs::create_dir_all(store_file(env).parent().unwrap()).unwrap();
    let home_marker = Some(carrel_daemon::store_marker_file(env.home.path()));
    let store = Store::open(&store_file(env), StoreOptions { home_marker, ..StoreOptions::default() }).unwrap();
    for (name, reason) in [("whole", ""), ("broken", MARKED)] {
        let sandbox = Sandbox {
            id: SandboxId::new(name).unwrap(),
            owner: 0,
            state: SandboxState::Pending,
            desired: DesiredState::Ready,
            reason: reason.into(),
            incarnation: name.into(),
            disk: name.into(),
            journal: 0,
            spec: "{}".into(),
            image: "host".into(),
            labels: Pairs::new(),
            idle_ms: None,
            created_at: Timestamp(1),
            state_changed_at: Timestamp(1),
            active_at: Timestamp(1),
            error_code: String::new(),
            error_message: String::new(),
            last_sequence: 0,
        };
        let kind = EventType::SandboxAccepted;
        let event = NewEvent { kind, at: Timestamp(1), state: SandboxState::Pending, details: EventDetails::None };
        let change = Change { sandbox, new: true, reuses_id: false, execs: vec![], events: vec![event], synced: true };
        store.commit(change).await.unwrap();
    }
    let alone = std::fs::read(store_file(env)).unwrap();
    store.close().await;
    alone
}

/// A directory that counts as the disk of a sandbox.
fn put_disk(env: &TestEnvironment) {
    std::fs::create_dir_all(env.home.path().join("disks/whole")).unwrap();
}

/// The code and the hint of a refusal.
fn refused(outcome: &CommandOutput) -> (String, String) {
    let error: Value = serde_json::from_str(outcome.stderr.lines().last().unwrap()).unwrap();
    let word = |key: &str| error["error"][key].as_str().unwrap_or_default().to_owned();
    (word("code"), word("hint"))
}

#[test]
fn a_damaged_store_is_refused_repaired_and_returned_to_a_backup() {
    let env = TestEnvironment::new();
    fill(&env);
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup.db");
    let backup = backup.to_str().unwrap();
    let checked = text(&env, &["store", "check"]);
    assert!(checked.starts_with("2 sandboxes, 0 execs, 2 events\nidentity "), "{checked}");
    assert!(checked.ends_with("generation 2, schema version 3, checksums verified\n"), "{checked}");
    let saved = text(&env, &["store", "backup", backup]);
    assert_eq!(saved, format!("backed up to {backup}: 2 sandboxes, 0 execs, 2 events\n"));
    let again = env.carrel(["--json", "store", "backup", backup]);
    assert_eq!((again.code, refused(&again)), (Some(1), ("invalid_file".into(), "--force replaces it".into())));
    text(&env, &["store", "backup", "--force", backup]);
    assert_eq!(text(&env, &["store", "repair"]), "nothing to repair: 2 sandboxes, 0 execs, 2 events\n");

    let mut bytes = std::fs::read(store_file(&env)).unwrap();
    let at = bytes.windows(MARKED.len()).position(|part| part == MARKED.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(store_file(&env), bytes).unwrap();
    for words in
        [&["--json", "store", "check"][..], &["--json", "serve"], &["--json", "store", "backup", "--force", backup]]
    {
        let outcome = env.carrel(words);
        assert_eq!(outcome.code, Some(1), "{words:?}");
        let (code, hint) = refused(&outcome);
        assert_eq!(code, "store_damaged", "{words:?}");
        assert!(hint.contains("`carrel store repair`"), "{words:?}: {hint}");
    }
    let found = format!("error: 1 violation in {}\n", store_file(&env).display());
    let checked = env.carrel(["store", "check"]).stderr;
    assert!(checked.starts_with(&found), "{checked}");
    let repaired = env.carrel(["store", "repair"]);
    let output = String::from_utf8(repaired.stdout).unwrap();
    assert_eq!(repaired.code, Some(3), "{output}{}", repaired.stderr);
    assert!(output.contains("sandboxes: 1 kept, 1 lost\n") && output.contains("lost sandbox: broken\n"), "{output}");
    assert!(output.contains("events: 1 kept, 1 lost\n") && output.contains("damaged store: "), "{output}");
    assert!(text(&env, &["store", "check"]).starts_with("1 sandbox, 0 execs, 1 event\n"));

    let restored = text(&env, &["store", "restore", backup]);
    assert!(restored.starts_with(&format!("restored from {backup}: 2 sandboxes, 0 execs, 2 events\nprevious store: ")));
    assert!(restored.contains("`carrel store orphans`"), "{restored}");
    assert!(text(&env, &["store", "check"]).starts_with("2 sandboxes, 0 execs, 2 events\n"));
    std::fs::remove_dir_all(env.home.path().join("store")).unwrap();
    let missing = env.carrel(["--json", "store", "repair"]);
    assert_eq!((missing.code, refused(&missing).0), (Some(1), "store_unavailable".into()));
}

#[test]
fn a_backup_replaces_nothing_in_the_home() {
    let env = TestEnvironment::new();
    fill(&env);
    let home = env.home.path();
    std::fs::write(home.join("home.json"), "{}").unwrap();
    for name in ["home.json", "store.mark", "store/carrel.db", "new"] {
        let path = home.join(name);
        let before = std::fs::read(&path).ok();
        let outcome = env.carrel(["--json", "store", "backup", "--force", path.to_str().unwrap()]);
        let (code, hint) = refused(&outcome);
        assert_eq!((outcome.code, &*code), (Some(1), "invalid_file"), "{name}: {}", outcome.stderr);
        assert!(hint.contains("to another directory"), "{hint}");
        assert_eq!(std::fs::read(&path).ok(), before, "{name}");
    }
}

#[test]
fn a_pipe_is_refused_as_a_store_by_every_command() {
    let env = TestEnvironment::new();
    fill(&env);
    let (store, pipe) = (store_file(&env), env.home.path().with_extension("pipe"));
    for path in [&store, &pipe] {
        let _ = std::fs::remove_file(path);
        rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
    }
    for words in [
        &["--json", "store", "check"][..],
        &["--json", "store", "repair"],
        &["--json", "store", "restore", pipe.to_str().unwrap()],
        &["--json", "serve"],
    ] {
        let outcome = env.carrel(words);
        assert_eq!(outcome.code, Some(1), "{words:?}");
        assert!(outcome.stderr.contains("it is not a regular file"), "{words:?}: {}", outcome.stderr);
        let hint = refused(&outcome).1;
        assert!(hint.contains("ls -l ") || hint.contains("`carrel store check`"), "{words:?}: {hint}");
    }
    std::fs::remove_file(pipe).unwrap();
}

#[test]
fn a_store_in_use_is_backed_up_but_not_replaced() {
    let env = TestEnvironment::new();
    let serving = ServeProcess::new(&env, &[]);
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup.db");
    let backup = backup.to_str().unwrap();
    text(&env, &["store", "backup", backup]);
    for words in [&["--json", "store", "restore", backup][..], &["--json", "store", "repair"]] {
        let outcome = env.carrel(words);
        let (code, hint) = refused(&outcome);
        assert_eq!((outcome.code, &*code), (Some(1), "home_taken"), "{words:?}");
        assert!(hint.contains("`kill "), "{hint}");
    }
    serving.stop();
    text(&env, &["store", "restore", backup]);
    ServeProcess::new(&env, &[]).stop();
}

#[test]
fn a_missing_log_is_reported_as_a_loss_by_check_and_repair() {
    let env = TestEnvironment::new();
    let alone = fill(&env);
    std::fs::write(store_file(&env), alone).unwrap();
    let checked = env.carrel(["store", "check"]);
    let output = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.code, Some(1), "{output}");
    let missing = "2 positions of events are missing: the store ends at 0, and this home had 2\n";
    assert!(output.contains(missing), "{output}");
    let repaired = env.carrel(["store", "repair"]);
    let output = String::from_utf8(repaired.stdout).unwrap();
    assert_eq!(repaired.code, Some(3), "{output}{}", repaired.stderr);
    assert!(output.contains("write-ahead log: missing\n") && output.contains(missing), "{output}");
    assert!(repaired.stderr.contains("no sandbox could be kept"), "{}", repaired.stderr);
    assert!(!repaired.stderr.contains("0 rows"), "{}", repaired.stderr);
}

#[test]
fn every_hint_about_a_broken_store_names_a_command_that_works() {
    let env = TestEnvironment::new();
    fill(&env);
    put_disk(&env);
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup.db");
    let backup = backup.to_str().unwrap();
    text(&env, &["store", "backup", backup]);
    let whole = std::fs::read(store_file(&env)).unwrap();
    let mut headless = whole.clone();
    headless[..4096].fill(0xa5);
    for broken in [&headless[..], &whole[..5000], &whole[..50]] {
        std::fs::write(store_file(&env), broken).unwrap();
        for words in [["--json", "store", "check"].as_slice(), &["--json", "serve"]] {
            let outcome = env.carrel(words);
            assert_eq!(outcome.code, Some(1), "{words:?}");
            let (_, hint) = refused(&outcome);
            assert!(hint.contains("`carrel store restore FILE`") && hint.contains("`carrel store repair`"), "{hint}");
        }
        let restored = text(&env, &["store", "restore", backup]);
        assert!(restored.contains("2 sandboxes") && restored.contains("\n`carrel serve` quarantines"), "{restored}");
        std::fs::write(store_file(&env), &whole[..50]).unwrap();
        let repaired = env.carrel(["--json", "store", "repair"]);
        assert_eq!(repaired.code, Some(3), "{}", repaired.stderr);
        let (_, hint) = refused(&repaired);
        assert!(hint.contains("`carrel store restore FILE`"), "{hint}");
        assert!(hint.contains("`carrel serve --accept-data-loss`"), "{hint}");
        let (code, hint) = refused(&env.carrel(["--json", "serve"]));
        assert_eq!(code, "store_lost");
        assert!(hint.contains("`carrel store restore FILE`") && hint.contains("--accept-data-loss"), "{hint}");
    }
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn a_backup_that_is_empty_or_of_another_home_is_restored_only_if_the_loss_is_accepted() {
    let (env, other, empty) = (TestEnvironment::new(), TestEnvironment::new(), TestEnvironment::new());
    fill(&env);
    fill(&other);
    std::fs::create_dir_all(store_file(&empty).parent().unwrap()).unwrap();
    drop(Store::open(&store_file(&empty), StoreOptions::default()).unwrap());
    let directory = tempfile::tempdir().unwrap();
    for (from, problem) in [(&other, "belongs to another home"), (&empty, "is empty")] {
        let backup = directory.path().join(problem.replace(' ', "-"));
        let backup = backup.to_str().unwrap();
        text(from, &["store", "backup", backup]);
        let restored = text(&env, &["store", "restore", backup]);
        assert!(restored.contains("`carrel serve` quarantines"), "without disks nothing is lost: {restored}");
        std::fs::remove_dir_all(env.home.path().join("store")).unwrap();
        fill(&env);
        put_disk(&env);
        let before = std::fs::read(store_file(&env)).unwrap();
        let outcome = env.carrel(["--json", "store", "restore", backup]);
        let (code, hint) = refused(&outcome);
        assert_eq!((outcome.code, &*code), (Some(1), "backup_unfit"));
        assert!(
            outcome.stderr.contains(&format!("{backup} {problem}, and 1 disk of a sandbox is in ")),
            "{}",
            outcome.stderr
        );
        let command = format!("carrel store restore --accept-data-loss {backup}");
        assert!(hint.contains(&format!("`{command}`")), "{hint}");
        assert_eq!(std::fs::read(store_file(&env)).unwrap(), before);
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let restored = text(&env, &words);
        assert!(restored.contains("`carrel serve --accept-data-loss` quarantines"), "{restored}");
        assert_eq!(refused(&env.carrel(["--json", "serve"])).0, "store_lost");
        std::fs::remove_dir_all(env.home.path().join("disks")).unwrap();
        std::fs::remove_dir_all(env.home.path().join("store")).unwrap();
        fill(&env);
    }
    let missing = directory.path().join("missing");
    let outcome = env.carrel(["--json", "store", "restore", missing.to_str().unwrap()]);
    assert_eq!((outcome.code, refused(&outcome).0.as_str()), (Some(1), "invalid_file"));
    assert!(outcome.stderr.contains(missing.to_str().unwrap()), "{}", outcome.stderr);
    let outcome = env.carrel(["--json", "store", "backup", "--force", "/dev/full"]);
    assert_eq!((outcome.code, refused(&outcome).0.as_str()), (Some(1), "invalid_file"));
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn a_store_that_is_missing_or_empty_beside_disks_is_reported_by_every_command_that_needs_it() {
    let env = TestEnvironment::new();
    fill(&env);
    put_disk(&env);
    let running = waiting(&env, "mine");
    for (is_missing, problem) in [(true, "is missing"), (false, "is missing"), (false, "is empty")] {
        std::fs::remove_dir_all(env.home.path().join("store")).unwrap();
        std::fs::create_dir(env.home.path().join("store")).unwrap();
        match (is_missing, problem) {
            (true, _) => {}
            (false, "is empty") => drop(Store::open(&store_file(&env), StoreOptions::default()).unwrap()),
            (false, _) => std::fs::write(store_file(&env), "").unwrap(),
        }
        let lost = format!("{} {problem}, and 1 disk of a sandbox is in", store_file(&env).display());
        let is_refused = |words: &[&str], exit: i32| {
            let outcome = env.carrel(["--json"].iter().chain(words));
            assert_eq!(outcome.code, Some(exit), "{problem} {words:?}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(&lost), "{problem} {words:?}: {}", outcome.stderr);
            let (_, hint) = refused(&outcome);
            assert!(hint.contains("`carrel store restore FILE`"), "{problem} {words:?}: {hint}");
            assert!(hint.contains("`carrel serve --accept-data-loss`"), "{problem} {words:?}: {hint}");
            String::from_utf8(outcome.stdout).unwrap()
        };
        for words in [&["ls"][..], &["ps"]] {
            assert!(is_refused(words, 1).contains("\"mine\""), "what runs is listed");
        }
        for words in [
            &["get", "whole"][..],
            &["rm", "whole"],
            &["rm", "--label", "a=b"],
            &["stop", "whole"],
            &["resume", "whole"],
            &["events", "whole"],
            &["inspect", "whole"],
            &["ps", "whole"],
            &["cp", "whole:/etc/hostname", "-"],
            &["store", "check"],
            &["serve"],
        ] {
            is_refused(words, 1);
        }
        assert_eq!(is_refused(&["exec", "whole", "--", "true"], 125), "");
        assert_eq!(is_refused(&["store", "repair"], 3), "");
        let repaired = env.carrel(["store", "repair"]).stderr;
        assert!(repaired.starts_with("error: nothing can be repaired: "), "{repaired}");
        assert_eq!(env.carrel(["exec", "mine", "--", "true"]).code, Some(0), "the store has nothing to say of it");
        assert_eq!(store_file(&env).exists(), !is_missing, "no store is made");
    }
    assert_eq!(text(&env, &["stop", "mine"]), "mine\n");
    drop(running.finish());
}

#[test]
fn each_orphan_is_removed_although_another_cannot_be() {
    let env = TestEnvironment::new();
    let disks = env.home.path().join("disks");
    for name in ["first", "second", "third"] {
        std::fs::create_dir_all(disks.join(name)).unwrap();
    }
    let serving = ServeProcess::new(&env, &["--accept-data-loss"]);
    let removed = env.carrel(["store", "remove", "first", "absent", "second"]);
    assert_eq!((removed.code, removed.stdout.as_slice()), (Some(1), &b"first\nsecond\n"[..]), "{removed:?}");
    assert!(removed.stderr.contains("(ORPHAN_UNKNOWN)\nhint: `carrel store orphans`"), "{removed:?}");
    assert!(!disks.join("first").exists() && !disks.join("second").exists());
    assert_eq!(text(&env, &["--json", "store", "remove", "third"]), "{\"disk\":\"third\"}\n");
    assert_eq!(text(&env, &["--json", "store", "orphans"]), "");
    serving.stop();
}

/// Sets a number in the header of a database.
fn overwrite(path: &Path, at: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&9_u32.to_be_bytes(), at).unwrap();
}

#[test]
fn the_hint_about_a_database_that_is_no_store_or_of_a_newer_version_leads_to_one_that_is_served() {
    let env = TestEnvironment::new();
    fill(&env);
    let store = store_file(&env);
    let backup = store.with_file_name("carrel.db.v3.bak");
    std::fs::copy(&store, &backup).unwrap();
    overwrite(&store, USER_VERSION);
    let hint = |words: &[&str]| {
        let outcome = env.carrel(["--json"].iter().chain(words));
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        let (code, hint) = refused(&outcome);
        assert_eq!(code, "store_unavailable", "{words:?}");
        hint
    };
    let command = format!("carrel store restore {}", backup.display());
    for words in [&["serve"][..], &["store", "check"], &["store", "repair"]] {
        assert!(hint(words).ends_with(&format!(": {command}")), "{words:?}");
    }
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    text(&env, &words);
    ServeProcess::new(&env, &[]).stop();

    overwrite(&store, APPLICATION_ID);
    for words in [&["serve"][..], &["store", "check"], &["store", "repair"]] {
        let hint = hint(words);
        assert!(hint.contains("`carrel store restore FILE`") && !hint.contains("repair"), "{words:?}: {hint}");
    }
    text(&env, &words);
    ServeProcess::new(&env, &[]).stop();
}
