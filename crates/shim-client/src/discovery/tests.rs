use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

use super::*;
use crate::layout::{INCARNATION, RECORD, SUPERVISORS, directory_name, sandboxes_directory};
use crate::messages::FactKind;
use crate::record::tests::record;

/// The first uid of a shim.
pub(super) const OTHER_USER: u32 = SUPERVISORS + 1;

/// A home with one sandbox, whose shim is the test.
pub(super) struct TestHome {
    pub(super) home: tempfile::TempDir,
    pub(super) path: PathBuf,
    pub(super) record: SandboxRecord,
    pub(super) lock: Option<HeldLock>,
    pub(super) listener: Option<UnixListener>,
}

/// A held lock. Closing is not enough: a process that another test just forked has it open too.
pub(super) struct HeldLock(File);

// === impl TestHome ===

impl TestHome {
    pub(super) fn running() -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = make(home.path(), "demo");
        let (lock, record) = (hold(&path), record("demo", "i-1"));
        std::fs::write(path.join(INCARNATION), "i-1").unwrap();
        let own = layout::open_directory(CWD, &path).unwrap();
        Journal::create(&own, "i-1").unwrap().append(Fact::new(1, FactKind::Claimed)).unwrap();
        let listener = Some(UnixListener::bind(path.join(SHIM_SOCKET)).unwrap());
        let fixture = Self { home, path, record, lock: Some(lock), listener };
        fixture.write(|_| {});
        fixture
    }

    pub(super) fn dead() -> Self {
        Self { lock: None, ..Self::running() }
    }

    /// Writes a modified record.
    pub(super) fn write(&self, change: impl FnOnce(&mut SandboxRecord)) {
        let mut record = self.record.clone();
        change(&mut record);
        record.write(layout::open_directory(CWD, &self.path).unwrap()).unwrap();
    }

    pub(super) fn find(&self) -> DiscoveredSandbox {
        find(self.home.path(), "demo").unwrap().unwrap()
    }

    fn problem(&self) -> DiscoveryProblem {
        let found = self.find();
        assert_eq!(found.record, None, "an untrusted record is not returned");
        assert_eq!(sandboxes(self.home.path()).unwrap().len(), 1, "but the sandbox is listed");
        found.problem.unwrap()
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        rustix::fs::flock(&self.0, FlockOperation::Unlock).unwrap();
    }
}

/// Creates the directory of a sandbox.
fn make(home: &Path, name: &str) -> PathBuf {
    let path = sandboxes_directory(home).join(directory_name(name).unwrap());
    DirBuilder::new().mode(0o700).recursive(true).create(&path).unwrap();
    path
}

fn hold(path: &Path) -> HeldLock {
    let lock = File::create(path.join(LOCK)).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    HeldLock(lock)
}

#[test]
fn an_empty_home_lists_no_sandboxes() {
    let home = tempfile::tempdir().unwrap();
    assert!(sandboxes(home.path()).unwrap().is_empty());
    assert!(find(home.path(), "demo").unwrap().is_none());
    make(home.path(), "other");
    for name in ["demo", "", &"n".repeat(129)] {
        assert!(find(home.path(), name).unwrap().is_none(), "{name}");
    }
}

#[test]
fn the_lock_decides_whether_a_sandbox_is_alive() {
    let mut fixture = TestHome::running();
    let found = fixture.find();
    assert_eq!((&found.life, found.record.as_ref()), (&Liveness::Running, Some(&fixture.record)));
    assert!(found.problem.is_none());
    assert_eq!(found.directory, fixture.path);
    // The recorded process is still alive, which is irrelevant.
    fixture.lock = None;
    assert_eq!(fixture.record.shim(), Some(std::process::id()));
    let Liveness::Dead { facts, rebooted } = fixture.find().life else { panic!("the lock is free") };
    assert_eq!((facts.len(), rebooted), (1, false));
}

#[test]
fn a_sandbox_without_socket_or_record_is_starting() {
    let fixture = TestHome::running();
    std::fs::remove_file(fixture.path.join(SHIM_SOCKET)).unwrap();
    assert_eq!(fixture.find().life, Liveness::Starting);
    std::fs::write(fixture.path.join(SHIM_SOCKET), "not a socket").unwrap();
    assert_eq!(fixture.find().life, Liveness::Starting);
    std::fs::remove_file(fixture.path.join(RECORD)).unwrap();
    let found = fixture.find();
    assert!(matches!((found.life, found.record, found.problem), (Liveness::Starting, None, None)));
}

#[test]
fn a_directory_without_lock_is_starting_or_being_removed() {
    let fixture = TestHome::dead();
    std::fs::remove_file(fixture.path.join(LOCK)).unwrap();
    assert!(find(fixture.home.path(), "demo").unwrap().is_none());
    assert!(sandboxes(fixture.home.path()).unwrap().is_empty());
}

#[test]
fn a_sandbox_of_another_boot_is_dead_and_reported_as_such() {
    let mut fixture = TestHome::running();
    fixture.write(|record| record.boot_id = "another".into());
    // The lock holder of this boot is another process.
    assert_eq!(fixture.find().life, Liveness::Starting);
    fixture.lock = None;
    assert!(matches!(fixture.find().life, Liveness::Dead { rebooted: true, .. }));
}

#[test]
fn inspection_blocks_neither_inspection_nor_locking() {
    let fixture = TestHome::dead();
    let own = layout::open_directory(CWD, &fixture.path).unwrap();
    let looker = File::open(fixture.path.join(LOCK)).unwrap();
    rustix::fs::flock(&looker, FlockOperation::NonBlockingLockShared).unwrap();
    let looker = HeldLock(looker);
    assert_eq!(lock_state(&own).unwrap(), LockState::Free, "two inspections at once");
    drop(looker);
    drop(fixture.find());
    let lock = hold(&fixture.path);
    assert_eq!(lock_state(&own).unwrap(), LockState::Held);
    drop(lock);
}

#[test]
fn a_lock_removed_by_a_sweep_does_not_count_as_free() {
    let fixture = TestHome::dead();
    let own = layout::open_directory(CWD, &fixture.path).unwrap();
    assert_eq!(lock_state(&own).unwrap(), LockState::Free);
    std::fs::remove_file(fixture.path.join(LOCK)).unwrap();
    assert_eq!(lock_state(&own).unwrap(), LockState::Absent);
}

#[test]
fn a_lock_that_is_not_a_regular_file_is_a_problem() {
    let fixture = TestHome::dead();
    for strange in ["link", "directory", "socket"] {
        std::fs::remove_file(fixture.path.join(LOCK))
            .or_else(|_| std::fs::remove_dir(fixture.path.join(LOCK)))
            .unwrap();
        match strange {
            "link" => symlink(RECORD, fixture.path.join(LOCK)).unwrap(),
            "directory" => std::fs::create_dir(fixture.path.join(LOCK)).unwrap(),
            _ => drop(UnixListener::bind(fixture.path.join(LOCK)).unwrap()),
        }
        let found = fixture.find();
        assert!(matches!(found.problem, Some(DiscoveryProblem::Lock)), "{strange}");
        assert!(matches!(found.life, Liveness::Dead { .. }), "{strange}");
    }
}

#[test]
fn a_record_that_does_not_match_its_directory_is_a_problem() {
    for held in [true, false] {
        let fixture = if held { TestHome::running() } else { TestHome::dead() };
        fixture.write(|record| record.name = "another".into());
        assert!(matches!(fixture.problem(), DiscoveryProblem::Name { name } if name == "another"));
        fixture.write(|record| record.incarnation = "i-2".into());
        assert!(
            matches!(fixture.problem(), DiscoveryProblem::Incarnation { found: Some(found), .. } if found == "i-1")
        );
        std::fs::write(fixture.path.join(RECORD), "damaged").unwrap();
        assert!(matches!(fixture.problem(), DiscoveryProblem::Record(RecordError::Damaged)));
        // A record that matches is no problem.
        fixture.write(|_| {});
        assert!(fixture.find().problem.is_none());
    }
}

#[test]
fn a_directory_must_be_owned_by_us_or_by_the_recorded_shim_user() {
    let fixture = TestHome::running();
    fixture.write(|record| record.supervisor_user = OTHER_USER);
    assert!(fixture.find().problem.is_none(), "its ownership was not transferred yet");
    chown(&fixture.path, Some(OTHER_USER), None).unwrap();
    assert!(fixture.find().problem.is_none());
    chown(&fixture.path, Some(OTHER_USER + 1), None).unwrap();
    assert!(
        matches!(fixture.problem(), DiscoveryProblem::Owner { owner, recorded: OTHER_USER } if owner == OTHER_USER + 1)
    );
}

#[test]
fn a_record_written_by_the_shim_user_is_not_trusted() {
    let fixture = TestHome::running();
    for (file, forged) in [(RECORD, true), (INCARNATION, false)] {
        assert!(fixture.find().problem.is_none());
        chown(fixture.path.join(file), Some(OTHER_USER), None).unwrap();
        let problem = fixture.problem();
        assert_eq!(matches!(problem, DiscoveryProblem::Record(RecordError::Forged { author: OTHER_USER })), forged);
        assert_eq!(matches!(problem, DiscoveryProblem::Incarnation { .. }), !forged);
        chown(fixture.path.join(file), Some(rustix::process::geteuid().as_raw()), None).unwrap();
    }
}

#[test]
fn directories_of_other_users_are_not_inspected() {
    let fixture = TestHome::running();
    let other = make(fixture.home.path(), "other");
    drop(hold(&other));
    chown(&fixture.path, Some(1000), None).unwrap();
    assert!(matches!(find(fixture.home.path(), "demo"), Err(DiscoveryError::Open(path)) if path == fixture.path));
    assert_eq!(sandboxes(fixture.home.path()).unwrap().len(), 1, "other sandboxes are still listed");
}

#[test]
fn a_shim_that_opens_its_directory_hides_neither_itself_nor_others() {
    let mut fixture = TestHome::running();
    let other = make(fixture.home.path(), "other");
    drop(hold(&other));
    fixture.write(|record| record.supervisor_user = OTHER_USER);
    for owner in [OTHER_USER, rustix::process::geteuid().as_raw()] {
        chown(&fixture.path, Some(owner), None).unwrap();
        std::fs::set_permissions(&fixture.path, Permissions::from_mode(0o777)).unwrap();
        let found = fixture.find();
        assert!(matches!(found.problem, Some(DiscoveryProblem::Open)), "{:?}", found.problem);
        assert_eq!((found.life, found.record.is_some()), (Liveness::Running, true));
        assert_eq!(sandboxes(fixture.home.path()).unwrap().len(), 2);
    }
    fixture.lock = None;
    let found = fixture.find();
    assert!(matches!(found.life, Liveness::Dead { facts, .. } if facts.len() == 1));
    // Other problems are reported first.
    fixture.write(|record| record.name = "another".into());
    assert!(matches!(fixture.find().problem, Some(DiscoveryProblem::Name { .. })));
}

#[test]
fn a_sandbox_that_cannot_be_inspected_does_not_affect_others() {
    let fixture = TestHome::running();
    let other = make(fixture.home.path(), "other");
    drop(hold(&other));
    let own = layout::open_directory(CWD, &fixture.path).unwrap();
    std::fs::remove_file(fixture.path.join(LOCK)).unwrap();
    // A device without a driver.
    rustix::fs::mknodat(&own, LOCK, FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(0, 255)).unwrap();
    let strange = fixture.find();
    assert!(matches!(strange.problem, Some(DiscoveryProblem::Lock)), "{:?}", strange.problem);
    assert_eq!(sandboxes(fixture.home.path()).unwrap().len(), 2);
    let uninspectable = DiscoveredSandbox::uninspectable(fixture.path.clone(), io::ErrorKind::Other.into());
    assert!(matches!((uninspectable.life, uninspectable.problem), (Liveness::Starting, Some(DiscoveryProblem::Io(_)))));
}

#[test]
fn symlinks_are_not_followed() {
    let fixture = TestHome::running();
    let elsewhere = fixture.home.path().join("elsewhere");
    std::fs::rename(&fixture.path, &elsewhere).unwrap();
    symlink(&elsewhere, &fixture.path).unwrap();
    assert!(matches!(find(fixture.home.path(), "demo"), Err(DiscoveryError::Open(_))));
    assert!(sandboxes(fixture.home.path()).unwrap().is_empty());
    let above = sandboxes_directory(fixture.home.path());
    std::fs::rename(&above, fixture.home.path().join("moved")).unwrap();
    symlink(fixture.home.path().join("moved"), &above).unwrap();
    assert!(matches!(sandboxes(fixture.home.path()), Err(DiscoveryError::Io { .. })));
}

#[test]
fn a_parent_directory_writable_by_others_is_rejected() {
    let fixture = TestHome::running();
    let above = sandboxes_directory(fixture.home.path());
    let group = |gid| chown(&above, None, Some(gid)).unwrap();
    for (gid, mode, fit) in [(SUPERVISORS, 0o1730, true), (0, 0o1730, false), (0, 0o755, false), (0, 0o700, true)] {
        group(gid);
        std::fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
        assert_eq!(find(fixture.home.path(), "demo").is_ok(), fit, "{gid} {mode:o}");
        assert_eq!(sandboxes(fixture.home.path()).is_ok(), fit, "{gid} {mode:o}");
    }
}

#[test]
fn the_journal_of_a_dead_sandbox_is_read_up_to_its_damage() {
    let fixture = TestHome::dead();
    let journal = fixture.path.join(JOURNAL);
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, [whole.as_slice(), b"torn"].concat()).unwrap();
    let found = fixture.find();
    assert!(found.problem.is_none());
    assert!(matches!(found.life, Liveness::Dead { facts, .. } if facts.len() == 1));
    assert_eq!(std::fs::read(&journal).unwrap().len(), whole.len() + 4, "inspection is read-only");

    std::fs::write(&journal, "nonsense").unwrap();
    assert!(matches!(fixture.find().problem, Some(DiscoveryProblem::Journal(JournalError::NoJournal))));
    std::fs::remove_file(&journal).unwrap();
    symlink(RECORD, &journal).unwrap();
    assert!(matches!(fixture.find().problem, Some(DiscoveryProblem::Journal(JournalError::Open(_)))));
    std::fs::remove_file(&journal).unwrap();
    File::create(&journal).unwrap().set_len(Journal::LARGEST + 1).unwrap();
    assert!(matches!(fixture.find().problem, Some(DiscoveryProblem::Large(_))));
    std::fs::remove_file(&journal).unwrap();
    assert!(matches!(fixture.find().life, Liveness::Dead { facts, .. } if facts.is_empty()));
    let own = layout::open_directory(CWD, &fixture.path).unwrap();
    Journal::create(&own, "i-2").unwrap();
    assert!(
        matches!(fixture.find().problem, Some(DiscoveryProblem::Incarnation { found: Some(found), .. }) if found == "i-2")
    );
}

#[test]
fn a_journal_beyond_the_memory_budget_is_truncated() {
    let fixture = TestHome::dead();
    let own = layout::open_directory(CWD, &fixture.path).unwrap();
    // Small on disk, but large in memory.
    let command = Some(vec![String::new(); 60_000]);
    let mut journal = Journal::open(&own).unwrap();
    for _ in 0..40 {
        journal.append(Fact { command: command.clone(), ..Fact::new(1, FactKind::JobStarted) }).unwrap();
    }
    let found = fixture.find();
    let Liveness::Dead { facts, .. } = &found.life else { panic!("{:?}", found.life) };
    assert!(facts.len() < 41 && found.weight() <= Journal::LOADED, "{}", facts.len());
    let last_read = facts.last().unwrap().sequence;
    assert!(matches!(found.problem, Some(DiscoveryProblem::Long(last)) if last == last_read), "{:?}", found.problem);

    // Many together get less each, and the last one has its minimum.
    let bytes = std::fs::read(fixture.path.join(JOURNAL)).unwrap();
    for number in 0..5 {
        let path = make(fixture.home.path(), &format!("other-{number}"));
        drop(hold(&path));
        std::fs::write(path.join(JOURNAL), &bytes).unwrap();
    }
    let all = sandboxes(fixture.home.path()).unwrap();
    assert_eq!(all.len(), 6);
    assert!(all.iter().map(DiscoveredSandbox::weight).sum::<usize>() <= LISTED + all.len() * ALLOWANCE);
    assert!(all.iter().all(|found| matches!(&found.life, Liveness::Dead { .. })));
}

#[test]
fn directories_whose_name_is_not_a_hash_are_skipped() {
    let fixture = TestHome::running();
    let above = sandboxes_directory(fixture.home.path());
    for name in ["short", "2A97516C354B68848CDBD8F5"] {
        std::fs::create_dir(above.join(name)).unwrap();
    }
    File::create(above.join("0".repeat(24))).unwrap();
    assert_eq!(sandboxes(fixture.home.path()).unwrap().len(), 1);
}
