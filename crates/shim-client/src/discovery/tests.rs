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
        let world = Self { home, path, record, lock: Some(lock), listener };
        world.write(|_| {});
        world
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
    let mut world = TestHome::running();
    let found = world.find();
    assert_eq!((&found.life, found.record.as_ref()), (&Liveness::Running, Some(&world.record)));
    assert!(found.problem.is_none());
    assert_eq!(found.directory, world.path);
    // The recorded process is still alive, which is irrelevant.
    world.lock = None;
    assert_eq!(world.record.shim(), Some(std::process::id()));
    let Liveness::Dead { facts, rebooted } = world.find().life else { panic!("the lock is free") };
    assert_eq!((facts.len(), rebooted), (1, false));
}

#[test]
fn a_sandbox_without_socket_or_record_is_starting() {
    let world = TestHome::running();
    std::fs::remove_file(world.path.join(SHIM_SOCKET)).unwrap();
    assert_eq!(world.find().life, Liveness::Starting);
    std::fs::write(world.path.join(SHIM_SOCKET), "not a socket").unwrap();
    assert_eq!(world.find().life, Liveness::Starting);
    std::fs::remove_file(world.path.join(RECORD)).unwrap();
    let found = world.find();
    assert!(matches!((found.life, found.record, found.problem), (Liveness::Starting, None, None)));
}

#[test]
fn a_directory_without_lock_is_starting_or_being_removed() {
    let world = TestHome::dead();
    std::fs::remove_file(world.path.join(LOCK)).unwrap();
    assert!(find(world.home.path(), "demo").unwrap().is_none());
    assert!(sandboxes(world.home.path()).unwrap().is_empty());
}

#[test]
fn a_sandbox_of_another_boot_is_dead_and_reported_as_such() {
    let mut world = TestHome::running();
    world.write(|record| record.boot_id = "another".into());
    // The lock holder of this boot is another process.
    assert_eq!(world.find().life, Liveness::Starting);
    world.lock = None;
    assert!(matches!(world.find().life, Liveness::Dead { rebooted: true, .. }));
}

#[test]
fn inspection_blocks_neither_inspection_nor_locking() {
    let world = TestHome::dead();
    let own = layout::open_directory(CWD, &world.path).unwrap();
    let looker = File::open(world.path.join(LOCK)).unwrap();
    rustix::fs::flock(&looker, FlockOperation::NonBlockingLockShared).unwrap();
    let looker = HeldLock(looker);
    assert_eq!(held(&own).unwrap(), LockState::No, "two inspections at once");
    drop(looker);
    drop(world.find());
    let lock = hold(&world.path);
    assert_eq!(held(&own).unwrap(), LockState::Yes);
    drop(lock);
}

#[test]
fn a_lock_removed_by_a_sweep_does_not_count_as_free() {
    let world = TestHome::dead();
    let own = layout::open_directory(CWD, &world.path).unwrap();
    assert_eq!(held(&own).unwrap(), LockState::No);
    std::fs::remove_file(world.path.join(LOCK)).unwrap();
    assert_eq!(held(&own).unwrap(), LockState::Absent);
}

#[test]
fn a_lock_that_is_not_a_regular_file_is_a_problem() {
    let world = TestHome::dead();
    for strange in ["link", "directory", "socket"] {
        std::fs::remove_file(world.path.join(LOCK)).or_else(|_| std::fs::remove_dir(world.path.join(LOCK))).unwrap();
        match strange {
            "link" => symlink(RECORD, world.path.join(LOCK)).unwrap(),
            "directory" => std::fs::create_dir(world.path.join(LOCK)).unwrap(),
            _ => drop(UnixListener::bind(world.path.join(LOCK)).unwrap()),
        }
        let found = world.find();
        assert!(matches!(found.problem, Some(DiscoveryProblem::Lock)), "{strange}");
        assert!(matches!(found.life, Liveness::Dead { .. }), "{strange}");
    }
}

#[test]
fn a_record_that_does_not_match_its_directory_is_a_problem() {
    for held in [true, false] {
        let world = if held { TestHome::running() } else { TestHome::dead() };
        world.write(|record| record.name = "another".into());
        assert!(matches!(world.problem(), DiscoveryProblem::Name { name } if name == "another"));
        world.write(|record| record.incarnation = "i-2".into());
        assert!(matches!(world.problem(), DiscoveryProblem::Incarnation { found: Some(found), .. } if found == "i-1"));
        std::fs::write(world.path.join(RECORD), "damaged").unwrap();
        assert!(matches!(world.problem(), DiscoveryProblem::Record(RecordError::Damaged)));
        // A record that matches is no problem.
        world.write(|_| {});
        assert!(world.find().problem.is_none());
    }
}

#[test]
fn a_directory_must_be_owned_by_us_or_by_the_recorded_shim_user() {
    let world = TestHome::running();
    world.write(|record| record.supervisor_user = OTHER_USER);
    assert!(world.find().problem.is_none(), "its ownership was not transferred yet");
    chown(&world.path, Some(OTHER_USER), None).unwrap();
    assert!(world.find().problem.is_none());
    chown(&world.path, Some(OTHER_USER + 1), None).unwrap();
    assert!(
        matches!(world.problem(), DiscoveryProblem::Owner { owner, recorded: OTHER_USER } if owner == OTHER_USER + 1)
    );
}

#[test]
fn a_record_written_by_the_shim_user_is_not_trusted() {
    let world = TestHome::running();
    for (file, forged) in [(RECORD, true), (INCARNATION, false)] {
        assert!(world.find().problem.is_none());
        chown(world.path.join(file), Some(OTHER_USER), None).unwrap();
        let problem = world.problem();
        assert_eq!(matches!(problem, DiscoveryProblem::Record(RecordError::Forged { author: OTHER_USER })), forged);
        assert_eq!(matches!(problem, DiscoveryProblem::Incarnation { .. }), !forged);
        chown(world.path.join(file), Some(rustix::process::geteuid().as_raw()), None).unwrap();
    }
}

#[test]
fn directories_of_other_users_are_not_inspected() {
    let world = TestHome::running();
    let other = make(world.home.path(), "other");
    drop(hold(&other));
    chown(&world.path, Some(1000), None).unwrap();
    assert!(matches!(find(world.home.path(), "demo"), Err(DiscoveryError::Open(path)) if path == world.path));
    assert_eq!(sandboxes(world.home.path()).unwrap().len(), 1, "other sandboxes are still listed");
}

#[test]
fn a_shim_that_opens_its_directory_hides_neither_itself_nor_others() {
    let mut world = TestHome::running();
    let other = make(world.home.path(), "other");
    drop(hold(&other));
    world.write(|record| record.supervisor_user = OTHER_USER);
    for owner in [OTHER_USER, rustix::process::geteuid().as_raw()] {
        chown(&world.path, Some(owner), None).unwrap();
        std::fs::set_permissions(&world.path, Permissions::from_mode(0o777)).unwrap();
        let found = world.find();
        assert!(matches!(found.problem, Some(DiscoveryProblem::Open)), "{:?}", found.problem);
        assert_eq!((found.life, found.record.is_some()), (Liveness::Running, true));
        assert_eq!(sandboxes(world.home.path()).unwrap().len(), 2);
    }
    world.lock = None;
    let found = world.find();
    assert!(matches!(found.life, Liveness::Dead { facts, .. } if facts.len() == 1));
    // Other problems are reported first.
    world.write(|record| record.name = "another".into());
    assert!(matches!(world.find().problem, Some(DiscoveryProblem::Name { .. })));
}

#[test]
fn a_sandbox_that_cannot_be_inspected_does_not_affect_others() {
    let world = TestHome::running();
    let other = make(world.home.path(), "other");
    drop(hold(&other));
    let own = layout::open_directory(CWD, &world.path).unwrap();
    std::fs::remove_file(world.path.join(LOCK)).unwrap();
    // A device without a driver.
    rustix::fs::mknodat(&own, LOCK, FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(0, 255)).unwrap();
    let strange = world.find();
    assert!(matches!(strange.problem, Some(DiscoveryProblem::Lock)), "{:?}", strange.problem);
    assert_eq!(sandboxes(world.home.path()).unwrap().len(), 2);
    let unseen = DiscoveredSandbox::unseen(world.path.clone(), io::ErrorKind::Other.into());
    assert!(matches!((unseen.life, unseen.problem), (Liveness::Starting, Some(DiscoveryProblem::Io(_)))));
}

#[test]
fn symlinks_are_not_followed() {
    let world = TestHome::running();
    let elsewhere = world.home.path().join("elsewhere");
    std::fs::rename(&world.path, &elsewhere).unwrap();
    symlink(&elsewhere, &world.path).unwrap();
    assert!(matches!(find(world.home.path(), "demo"), Err(DiscoveryError::Open(_))));
    assert!(sandboxes(world.home.path()).unwrap().is_empty());
    let above = sandboxes_directory(world.home.path());
    std::fs::rename(&above, world.home.path().join("moved")).unwrap();
    symlink(world.home.path().join("moved"), &above).unwrap();
    assert!(matches!(sandboxes(world.home.path()), Err(DiscoveryError::Io { .. })));
}

#[test]
fn a_parent_directory_writable_by_others_is_rejected() {
    let world = TestHome::running();
    let above = sandboxes_directory(world.home.path());
    let group = |gid| chown(&above, None, Some(gid)).unwrap();
    for (gid, mode, fit) in [(SUPERVISORS, 0o1730, true), (0, 0o1730, false), (0, 0o755, false), (0, 0o700, true)] {
        group(gid);
        std::fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
        assert_eq!(find(world.home.path(), "demo").is_ok(), fit, "{gid} {mode:o}");
        assert_eq!(sandboxes(world.home.path()).is_ok(), fit, "{gid} {mode:o}");
    }
}

#[test]
fn the_journal_of_a_dead_sandbox_is_read_up_to_its_damage() {
    let world = TestHome::dead();
    let journal = world.path.join(JOURNAL);
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, [whole.as_slice(), b"torn"].concat()).unwrap();
    let found = world.find();
    assert!(found.problem.is_none());
    assert!(matches!(found.life, Liveness::Dead { facts, .. } if facts.len() == 1));
    assert_eq!(std::fs::read(&journal).unwrap().len(), whole.len() + 4, "inspection is read-only");

    std::fs::write(&journal, "nonsense").unwrap();
    assert!(matches!(world.find().problem, Some(DiscoveryProblem::Journal(JournalError::NoJournal))));
    std::fs::remove_file(&journal).unwrap();
    symlink(RECORD, &journal).unwrap();
    assert!(matches!(world.find().problem, Some(DiscoveryProblem::Journal(JournalError::Open(_)))));
    std::fs::remove_file(&journal).unwrap();
    File::create(&journal).unwrap().set_len(Journal::LARGEST + 1).unwrap();
    assert!(matches!(world.find().problem, Some(DiscoveryProblem::Large(_))));
    std::fs::remove_file(&journal).unwrap();
    assert!(matches!(world.find().life, Liveness::Dead { facts, .. } if facts.is_empty()));
    let own = layout::open_directory(CWD, &world.path).unwrap();
    Journal::create(&own, "i-2").unwrap();
    assert!(
        matches!(world.find().problem, Some(DiscoveryProblem::Incarnation { found: Some(found), .. }) if found == "i-2")
    );
}

#[test]
fn a_journal_beyond_the_memory_budget_is_truncated() {
    let world = TestHome::dead();
    let own = layout::open_directory(CWD, &world.path).unwrap();
    // Small on disk, but large in memory.
    let command = Some(vec![String::new(); 60_000]);
    let mut journal = Journal::open(&own).unwrap();
    for _ in 0..40 {
        journal.append(Fact { command: command.clone(), ..Fact::new(1, FactKind::JobStarted) }).unwrap();
    }
    let found = world.find();
    let Liveness::Dead { facts, .. } = &found.life else { panic!("{:?}", found.life) };
    assert!(facts.len() < 41 && found.weight() <= Journal::LOADED, "{}", facts.len());
    let last_read = facts.last().unwrap().sequence;
    assert!(matches!(found.problem, Some(DiscoveryProblem::Long(last)) if last == last_read), "{:?}", found.problem);

    // Many together get less each, and the last one has its minimum.
    let bytes = std::fs::read(world.path.join(JOURNAL)).unwrap();
    for number in 0..5 {
        let path = make(world.home.path(), &format!("other-{number}"));
        drop(hold(&path));
        std::fs::write(path.join(JOURNAL), &bytes).unwrap();
    }
    let all = sandboxes(world.home.path()).unwrap();
    assert_eq!(all.len(), 6);
    assert!(all.iter().map(DiscoveredSandbox::weight).sum::<usize>() <= LISTED + all.len() * ALLOWANCE);
    assert!(all.iter().all(|found| matches!(&found.life, Liveness::Dead { .. })));
}

#[test]
fn directories_whose_name_is_not_a_hash_are_skipped() {
    let world = TestHome::running();
    let above = sandboxes_directory(world.home.path());
    for name in ["short", "2A97516C354B68848CDBD8F5"] {
        std::fs::create_dir(above.join(name)).unwrap();
    }
    File::create(above.join("0".repeat(24))).unwrap();
    assert_eq!(sandboxes(world.home.path()).unwrap().len(), 1);
}
