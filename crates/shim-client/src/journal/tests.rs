//! Journals that grow, are truncated, are damaged, or are no journals.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::messages::{EndReason, FactKind, JobOutcome, OutcomeKind};

/// A journal in its own directory.
fn fresh() -> (TempDir, File, Journal) {
    let home = tempfile::tempdir().unwrap();
    let directory = File::open(home.path()).unwrap();
    let journal = Journal::create(&directory, "incarnation").unwrap();
    (home, directory, journal)
}

fn path(home: &TempDir) -> std::path::PathBuf {
    home.path().join(NAME)
}

/// A distinct fact for each number, with a length that depends on it.
fn fact(number: u16) -> Fact {
    let message = (!number.is_multiple_of(3)).then(|| "x".repeat(usize::from(number % 700)));
    Fact { message, code: Some(number.into()), ..Fact::new(number.into(), FactKind::Paused) }
}

/// The facts with their sequences.
fn numbered(facts: impl IntoIterator<Item = Fact>) -> Vec<Fact> {
    (1..).zip(facts).map(|(sequence, fact)| Fact { sequence, ..fact }).collect()
}

/// Any body as a record with a valid checksum.
fn sealed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let checksum = crc32fast::hash(&[&length, body].concat()).to_be_bytes();
    [&length, &checksum, body].concat()
}

fn written(home: &TempDir, journal: &mut Journal, facts: &[Fact]) -> Vec<u8> {
    for fact in facts {
        journal.append(fact.clone()).unwrap();
    }
    fs::read(path(home)).unwrap()
}

#[test]
fn appended_facts_are_read_back() {
    let (home, directory, mut journal) = fresh();
    assert_eq!((journal.last(), journal.read(0, 10).unwrap()), (0, vec![]));
    let outcome = JobOutcome {
        kind: OutcomeKind::Signalled,
        code: None,
        signal: Some(9),
        failure: None,
        errno_name: None,
        message: None,
    };
    let ended = Fact { job: Some("j".to_owned()), outcome: Some(outcome), ..Fact::new(2, FactKind::JobEnded) };
    let gone = Fact { reason: Some(EndReason::OutOfMemory), ..Fact::new(3, FactKind::Ended) };
    for (index, fact) in [&ended, &gone].into_iter().enumerate() {
        assert_eq!(journal.append(fact.clone()).unwrap(), index as u64 + 1);
    }
    assert_eq!(journal.last(), 2);
    let facts = numbered([ended, gone]);
    assert_eq!(journal.read(1, 10).unwrap(), facts);
    let loaded = LoadedJournal { incarnation: "incarnation".to_owned(), facts, torn: false, cut: false };
    assert_eq!(Journal::load(&directory).unwrap(), loaded);
    assert_eq!(fs::metadata(path(&home)).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_journal_is_created_once_and_for_an_incarnation() {
    let (_home, directory, _journal) = fresh();
    let again = Journal::create(&directory, "other").unwrap_err();
    assert!(matches!(&again, JournalError::Create(error) if error.kind() == io::ErrorKind::AlreadyExists), "{again}");
    let elsewhere = tempfile::tempdir().unwrap();
    let directory = File::open(elsewhere.path()).unwrap();
    for incarnation in ["".to_owned(), "x".repeat(256)] {
        assert!(matches!(Journal::create(&directory, &incarnation), Err(JournalError::Incarnation)));
    }
    assert!(matches!(Journal::open(&directory), Err(JournalError::Open(_))), "nothing was created");
    Journal::create(&directory, &"x".repeat(255)).unwrap();
    assert_eq!(Journal::load(&directory).unwrap().incarnation.len(), 255);
}

#[test]
fn a_fact_beyond_the_size_limit_is_rejected() {
    let (_home, directory, mut journal) = fresh();
    let with = |length: usize| Fact { message: Some("x".repeat(length)), ..Fact::new(0, FactKind::Claimed) };
    let room = Journal::MAX_FACT - (cbor::encoded_len(&with(60_000)).unwrap() - 60_000);
    let bytes = Journal::MAX_FACT + 1;
    assert!(matches!(journal.append(with(room + 1)), Err(JournalError::TooLarge { bytes: b }) if b == bytes));
    assert_eq!(journal.append(with(room)).unwrap(), 1);
    assert_eq!(Journal::load(&directory).unwrap().facts, numbered([with(room)]));
}

#[test]
fn reading_starts_at_any_sequence_and_respects_its_limits() {
    let (_home, directory, mut journal) = fresh();
    let facts = numbered((0..600).map(fact));
    for fact in &facts {
        journal.append(fact.clone()).unwrap();
    }
    for journal in [journal, Journal::open(&directory).unwrap()] {
        for from in 1..=facts.len() {
            assert_eq!(journal.read(from as u64, 3).unwrap(), facts[from - 1..facts.len().min(from + 2)]);
        }
        assert_eq!(journal.read(0, 2).unwrap(), facts[..2]);
        for (from, most) in [(601, 3), (u64::MAX, 3), (1, 0)] {
            assert_eq!(journal.read(from, most).unwrap(), []);
        }
        // All of it, in pieces of about 64 KiB.
        let (mut all, mut pieces) = (Vec::new(), 0);
        while all.len() < facts.len() {
            let piece = journal.read(all.len() as u64 + 1, usize::MAX).unwrap();
            let bytes: usize = piece.iter().map(|fact| cbor::encoded_len(fact).unwrap()).sum();
            assert!(bytes < 2 * BATCH && (bytes > BATCH / 2 || all.len() + piece.len() == facts.len()), "{bytes}");
            all.extend(piece);
            pieces += 1;
        }
        assert!(all == facts && pieces > 1, "{pieces}");
    }
}

#[test]
fn the_tail_of_a_long_journal_is_read_without_its_beginning() {
    let (home, _directory, mut journal) = fresh();
    let facts: Vec<_> = (0..=2 * STRIDE).map(|number| fact(u16::try_from(number).unwrap())).collect();
    written(&home, &mut journal, &facts);
    let file = File::options().write(true).open(path(&home)).unwrap();
    file.write_all_at(&[0xff; 64], 40).unwrap();
    assert!(matches!(journal.read(1, 1), Err(JournalError::Damaged { sequence: 1 })));
    assert_eq!(journal.read(2 * STRIDE + 1, 1).unwrap().len(), 1);
    file.set_len(100).unwrap();
    assert!(matches!(journal.read(2 * STRIDE + 1, 1), Err(JournalError::Damaged { sequence }) if sequence == 129));
}

#[test]
fn a_file_that_is_not_a_journal_is_rejected_without_blocking() {
    let refused = |make: &dyn Fn(&Path)| {
        let home = tempfile::tempdir().unwrap();
        make(&path(&home));
        let directory = File::open(home.path()).unwrap();
        (Journal::load(&directory).unwrap_err(), Journal::open(&directory).unwrap_err())
    };
    let link = |path: &Path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
    assert!(matches!(refused(&link), (JournalError::Open(_), JournalError::Open(_))));
    let folder = |path: &Path| fs::create_dir(path).unwrap();
    assert!(matches!(refused(&folder), (JournalError::NoJournal, JournalError::Open(_))));
    let pipe = |path: &Path| {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    };
    assert!(matches!(refused(&pipe), (JournalError::NoJournal, JournalError::NoJournal)));
    let empty = |path: &Path| fs::write(path, "").unwrap();
    assert!(matches!(refused(&empty), (JournalError::NoJournal, JournalError::NoJournal)));
    let newer = |path: &Path| fs::write(path, b"carrelJ\n\x02\x00").unwrap();
    let newer = refused(&newer);
    assert!(matches!(newer, (JournalError::Format { found: 2 }, JournalError::Format { found: 2 })), "{newer:?}");
}

#[test]
fn facts_with_gaps_are_not_trusted() {
    let head = format::head("i").unwrap();
    let record = |sequence: u64| format::record(&Fact { sequence, ..fact(1) }).unwrap();
    for (sequences, believed) in
        [(&[1, 2, 3][..], 3), (&[1, 2, 2], 2), (&[1, 3], 1), (&[2], 0), (&[0, 1], 0), (&[1, u64::MAX], 1)]
    {
        let bytes = sequences.iter().fold(head.clone(), |bytes, sequence| [bytes, record(*sequence)].concat());
        let (_, mut facts) = FactReader::of(&bytes[..]).unwrap();
        while facts.next().unwrap().is_some() {}
        assert_eq!(facts.last(), believed, "{sequences:?}");
    }
}

#[test]
fn an_unknown_fact_of_a_newer_release_keeps_its_sequence() {
    let body = b"\xa4\x68sequence\x01\x65at_ms\x02\x64kind\x66melted\x63how\x65quite";
    let bytes = [format::head("i").unwrap(), sealed(body)].concat();
    let (_, mut facts) = FactReader::of(&bytes[..]).unwrap();
    assert_eq!(facts.next().unwrap(), Some(Fact { sequence: 1, ..Fact::new(2, FactKind::Unknown) }));
    assert!(facts.next().unwrap().is_none() && !facts.torn());
}

#[test]
fn a_declared_length_without_bytes_allocates_nothing() {
    let head = format::head("i").unwrap();
    for length in [u32::MAX, 1 << 31, 65_537, 65_536, 9] {
        let bytes = [&head[..], &length.to_be_bytes(), &[0; 8]].concat();
        let measured = allocation_counter::measure(|| {
            let (_, mut facts) = FactReader::of(&bytes[..]).unwrap();
            assert!(facts.next().unwrap().is_none() && facts.torn());
        });
        assert!(measured.bytes_max < 1024, "{measured:?} for {length}");
    }
}

/// Opens a modified journal and compares it with the original: it must be a prefix of it, and accept further facts.
/// Returns the number of facts left, and whether there was a damaged tail.
fn check_prefix(bytes: &[u8], facts: &[Fact]) -> (usize, bool) {
    let home = tempfile::tempdir().unwrap();
    fs::write(path(&home), bytes).unwrap();
    let directory = File::open(home.path()).unwrap();
    let loaded = Journal::load(&directory).unwrap();
    let kept = loaded.facts.len();
    assert_eq!(loaded.facts, facts[..kept]);
    assert_eq!(fs::read(path(&home)).unwrap(), bytes, "load is read-only");

    let mut journal = Journal::open(&directory).unwrap();
    assert_eq!(journal.last(), kept as u64);
    assert_eq!(journal.append(fact(7)).unwrap(), kept as u64 + 1);
    let again = Journal::load(&directory).unwrap();
    assert_eq!(again.facts, numbered(facts[..kept].iter().cloned().chain([fact(7)])));
    assert!(!again.torn);
    assert_eq!(journal.read(again.facts.len() as u64, 2).unwrap(), again.facts[kept..]);
    (kept, loaded.torn)
}

//= promises.journal.journal-cut-anywhere-byte
#[test]
fn a_journal_truncated_anywhere_is_a_prefix_and_accepts_further_facts() {
    bolero::check!().with_type::<(Vec<u16>, u16)>().for_each(|(numbers, cut)| {
        let (home, _directory, mut journal) = fresh();
        let facts = numbered(numbers.iter().copied().map(fact));
        let mut bytes = written(&home, &mut journal, &facts);
        let head = format::head("incarnation").unwrap().len();
        // A different cut each time, including the very end.
        bytes.truncate(head + usize::from(*cut) % (bytes.len() - head + 1));
        let ends: Vec<_> = facts
            .iter()
            .scan(head, |end, fact| {
                *end += format::record(fact).unwrap().len();
                Some(*end)
            })
            .collect();
        let whole = ends.iter().filter(|end| **end <= bytes.len()).count();
        let between = bytes.len() == head || ends.contains(&bytes.len());
        assert_eq!(check_prefix(&bytes, &facts), (whole, !between));
    });
}

#[test]
fn a_journal_with_a_truncated_head_is_rejected() {
    let head = format::head("incarnation").unwrap();
    assert!(FactReader::of(&head[..]).is_ok());
    for cut in 0..head.len() {
        assert!(matches!(FactReader::of(&head[..cut]), Err(JournalError::NoJournal)), "{cut}");
        let mut damaged = head.clone();
        damaged[cut] ^= 0x20;
        let refused = FactReader::of(&damaged[..]).unwrap_err();
        assert!(matches!(refused, JournalError::NoJournal | JournalError::Format { .. }), "{cut}: {refused}");
    }
}

//= promises.journal.journal-cut-anywhere-byte
#[test]
fn a_changed_byte_preserves_the_facts_before_it() {
    bolero::check!().with_type::<(Vec<u16>, u16, u8)>().for_each(|(numbers, at, change)| {
        let (home, _directory, mut journal) = fresh();
        let facts = numbered([1].iter().chain(numbers).copied().map(fact));
        let mut bytes = written(&home, &mut journal, &facts);
        let head = format::head("incarnation").unwrap().len();
        let at = head + usize::from(*at) % (bytes.len() - head);
        bytes[at] ^= (*change).max(1);
        let mut end = head;
        let before = facts.iter().take_while(|fact| {
            end += format::record(fact).unwrap().len();
            end <= at
        });
        assert_eq!(check_prefix(&bytes, &facts), (before.count(), true));
    });
}

//= carrel.protocol.property-fuzz-target-decoder
//= promises.journal.journal-cut-anywhere-byte
#[test]
fn fuzz_any_bytes_after_a_head_are_facts_or_the_end_within_bounded_memory() {
    let head = format::head("i").unwrap();
    bolero::check!().for_each(|noise: &[u8]| {
        // Once unchanged, once with a valid checksum, so that the decoder is tested as well.
        for bytes in [[&head, noise].concat(), [&head[..], &sealed(noise)].concat(), noise.to_vec()] {
            let measured = allocation_counter::measure(|| {
                let Ok((_, mut facts)) = FactReader::of(&bytes[..]) else { return };
                while facts.next().unwrap().is_some() {}
                assert!(facts.end() <= bytes.len() as u64);
            });
            assert!(measured.bytes_max <= 76 * bytes.len() as u64 + 2048, "{measured:?} for {}", bytes.len());
        }
    });
}

#[test]
fn the_memory_budget_of_load_is_respected() {
    let (_home, directory, mut journal) = fresh();
    for _ in 0..100 {
        journal.append(Fact { message: Some("x".repeat(1000)), ..Fact::new(1, FactKind::Paused) }).unwrap();
    }
    let loaded = Journal::load_within(&directory, 20_000).unwrap();
    assert!((5..20).contains(&loaded.facts.len()) && loaded.cut && !loaded.torn, "{}", loaded.facts.len());
    let whole = Journal::load_within(&directory, 200_000).unwrap();
    assert!(whole.facts.len() == 100 && !whole.cut);
    assert_eq!(whole.facts[..loaded.facts.len()], loaded.facts);
}

#[test]
fn opening_a_journal_can_replay_all_facts() {
    let (_home, directory, mut journal) = fresh();
    for _ in 0..200 {
        journal.append(Fact::new(1, FactKind::Paused)).unwrap();
    }
    let mut replayed = Vec::new();
    let again = Journal::open_with(&directory, |fact| replayed.push(fact)).unwrap();
    assert_eq!((replayed, again.last()), (Journal::load(&directory).unwrap().facts, 200));
}
