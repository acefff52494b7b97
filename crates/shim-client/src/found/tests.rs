use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

use super::*;
use crate::layout::{INCARNATION, RECORD, SUPERVISORS, directory_name, sandboxes_directory};
use crate::messages::FactKind;
use crate::record::tests::record;

/// The first user that a supervisor can be.
pub(super) const SOMEBODY: u32 = SUPERVISORS + 1;

/// A home with one sandbox, whose supervisor is the test.
pub(super) struct World {
    pub(super) home: tempfile::TempDir,
    pub(super) path: PathBuf,
    pub(super) record: SandboxRecord,
    pub(super) lock: Option<Lock>,
    pub(super) listener: Option<UnixListener>,
}

/// A lock that is held. To close it is not enough: what another test is just starting has it open too.
pub(super) struct Lock(File);

// === impl World ===

impl World {
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

    /// Writes its record, changed.
    pub(super) fn write(&self, change: impl FnOnce(&mut SandboxRecord)) {
        let mut record = self.record.clone();
        change(&mut record);
        record.write(layout::open_directory(CWD, &self.path).unwrap()).unwrap();
    }

    pub(super) fn find(&self) -> Found {
        find(self.home.path(), "demo").unwrap().unwrap()
    }

    fn problem(&self) -> Problem {
        let found = self.find();
        assert_eq!(found.record, None, "what is not believed is not shown");
        assert_eq!(sandboxes(self.home.path()).unwrap().len(), 1, "nor is it hidden");
        found.problem.unwrap()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        rustix::fs::flock(&self.0, FlockOperation::Unlock).unwrap();
    }
}

/// Makes the directory of a sandbox.
fn make(home: &Path, name: &str) -> PathBuf {
    let path = sandboxes_directory(home).join(directory_name(name).unwrap());
    DirBuilder::new().mode(0o700).recursive(true).create(&path).unwrap();
    path
}

fn hold(path: &Path) -> Lock {
    let lock = File::create(path.join(LOCK)).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    Lock(lock)
}

#[test]
fn a_home_without_sandboxes_has_none() {
    let home = tempfile::tempdir().unwrap();
    assert!(sandboxes(home.path()).unwrap().is_empty());
    assert!(find(home.path(), "demo").unwrap().is_none());
    make(home.path(), "other");
    for name in ["demo", "", &"n".repeat(129)] {
        assert!(find(home.path(), name).unwrap().is_none(), "{name}");
    }
}

#[test]
fn the_lock_decides_whether_one_lives() {
    let mut world = World::running();
    let found = world.find();
    assert_eq!((&found.life, found.record.as_ref()), (&Life::Running, Some(&world.record)));
    assert!(found.problem.is_none());
    assert_eq!(found.directory, world.path);
    // The process that is written down lives on; that says nothing.
    world.lock = None;
    assert_eq!(world.record.shim(), Some(std::process::id()));
    let Life::Dead { facts, rebooted } = world.find().life else { panic!("nobody holds the lock") };
    assert_eq!((facts.len(), rebooted), (1, false));
}

#[test]
fn whoever_has_no_socket_or_record_yet_is_starting() {
    let world = World::running();
    std::fs::remove_file(world.path.join(SHIM_SOCKET)).unwrap();
    assert_eq!(world.find().life, Life::Starting);
    std::fs::write(world.path.join(SHIM_SOCKET), "not a socket").unwrap();
    assert_eq!(world.find().life, Life::Starting);
    std::fs::remove_file(world.path.join(RECORD)).unwrap();
    let found = world.find();
    assert!(matches!((found.life, found.record, found.problem), (Life::Starting, None, None)));
}

#[test]
fn one_without_a_lock_is_not_there_yet_or_no_longer() {
    let world = World::dead();
    std::fs::remove_file(world.path.join(LOCK)).unwrap();
    assert!(find(world.home.path(), "demo").unwrap().is_none());
    assert!(sandboxes(world.home.path()).unwrap().is_empty());
}

#[test]
fn one_of_another_boot_is_dead_and_said_to_be() {
    let mut world = World::running();
    world.write(|record| record.boot_id = "another".into());
    // Whoever holds its lock in this boot is somebody else.
    assert_eq!(world.find().life, Life::Starting);
    world.lock = None;
    assert!(matches!(world.find().life, Life::Dead { rebooted: true, .. }));
}

#[test]
fn looking_keeps_nobody_from_looking_nor_from_holding_the_lock() {
    let world = World::dead();
    let own = layout::open_directory(CWD, &world.path).unwrap();
    let looker = File::open(world.path.join(LOCK)).unwrap();
    rustix::fs::flock(&looker, FlockOperation::NonBlockingLockShared).unwrap();
    let looker = Lock(looker);
    assert_eq!(held(&own).unwrap(), Held::No, "two look at once");
    drop(looker);
    drop(world.find());
    let lock = hold(&world.path);
    assert_eq!(held(&own).unwrap(), Held::Yes);
    drop(lock);
}

#[test]
fn a_lock_that_was_swept_meanwhile_is_not_taken_for_a_free_one() {
    let world = World::dead();
    let own = layout::open_directory(CWD, &world.path).unwrap();
    assert_eq!(held(&own).unwrap(), Held::No);
    std::fs::remove_file(world.path.join(LOCK)).unwrap();
    assert_eq!(held(&own).unwrap(), Held::Absent);
}

#[test]
fn a_lock_that_cannot_be_held_is_a_problem() {
    let world = World::dead();
    for strange in ["link", "directory", "socket"] {
        std::fs::remove_file(world.path.join(LOCK)).or_else(|_| std::fs::remove_dir(world.path.join(LOCK))).unwrap();
        match strange {
            "link" => symlink(RECORD, world.path.join(LOCK)).unwrap(),
            "directory" => std::fs::create_dir(world.path.join(LOCK)).unwrap(),
            _ => drop(UnixListener::bind(world.path.join(LOCK)).unwrap()),
        }
        let found = world.find();
        assert!(matches!(found.problem, Some(Problem::Lock)), "{strange}");
        assert!(matches!(found.life, Life::Dead { .. }), "{strange}");
    }
}

#[test]
fn a_record_that_does_not_fit_its_directory_is_a_problem() {
    for held in [true, false] {
        let world = if held { World::running() } else { World::dead() };
        world.write(|record| record.name = "another".into());
        assert!(matches!(world.problem(), Problem::Name { name } if name == "another"));
        world.write(|record| record.incarnation = "i-2".into());
        assert!(matches!(world.problem(), Problem::Incarnation { found: Some(found), .. } if found == "i-1"));
        std::fs::write(world.path.join(RECORD), "damaged").unwrap();
        assert!(matches!(world.problem(), Problem::Record(RecordError::Damaged)));
        // And one that fits is none.
        world.write(|_| {});
        assert!(world.find().problem.is_none());
    }
}

#[test]
fn a_directory_has_to_belong_to_us_or_to_the_supervisor_in_its_record() {
    let world = World::running();
    world.write(|record| record.supervisor_user = SOMEBODY);
    assert!(world.find().problem.is_none(), "it is not given away yet");
    chown(&world.path, Some(SOMEBODY), None).unwrap();
    assert!(world.find().problem.is_none());
    chown(&world.path, Some(SOMEBODY + 1), None).unwrap();
    assert!(matches!(world.problem(), Problem::Owner { owner, recorded: SOMEBODY } if owner == SOMEBODY + 1));
}

#[test]
fn what_a_supervisor_writes_itself_is_not_believed() {
    let world = World::running();
    for (file, forged) in [(RECORD, true), (INCARNATION, false)] {
        assert!(world.find().problem.is_none());
        chown(world.path.join(file), Some(SOMEBODY), None).unwrap();
        let problem = world.problem();
        assert_eq!(matches!(problem, Problem::Record(RecordError::Forged { author: SOMEBODY })), forged);
        assert_eq!(matches!(problem, Problem::Incarnation { .. }), !forged);
        chown(world.path.join(file), Some(rustix::process::geteuid().as_raw()), None).unwrap();
    }
}

#[test]
fn what_belongs_to_others_is_not_looked_into() {
    let world = World::running();
    let other = make(world.home.path(), "other");
    drop(hold(&other));
    chown(&world.path, Some(1000), None).unwrap();
    assert!(matches!(find(world.home.path(), "demo"), Err(FoundError::Open(path)) if path == world.path));
    assert_eq!(sandboxes(world.home.path()).unwrap().len(), 1, "it hides no other");
}

#[test]
fn a_supervisor_that_opens_its_directory_hides_neither_itself_nor_others() {
    let mut world = World::running();
    let other = make(world.home.path(), "other");
    drop(hold(&other));
    world.write(|record| record.supervisor_user = SOMEBODY);
    for owner in [SOMEBODY, rustix::process::geteuid().as_raw()] {
        chown(&world.path, Some(owner), None).unwrap();
        std::fs::set_permissions(&world.path, Permissions::from_mode(0o777)).unwrap();
        let found = world.find();
        assert!(matches!(found.problem, Some(Problem::Open)), "{:?}", found.problem);
        assert_eq!((found.life, found.record.is_some()), (Life::Running, true));
        assert_eq!(sandboxes(world.home.path()).unwrap().len(), 2);
    }
    world.lock = None;
    let found = world.find();
    assert!(matches!(found.life, Life::Dead { facts, .. } if facts.len() == 1));
    // What else is wrong is told first.
    world.write(|record| record.name = "another".into());
    assert!(matches!(world.find().problem, Some(Problem::Name { .. })));
}

#[test]
fn one_that_cannot_be_looked_at_keeps_nobody_from_looking_at_others() {
    let world = World::running();
    let other = make(world.home.path(), "other");
    drop(hold(&other));
    let own = layout::open_directory(CWD, &world.path).unwrap();
    std::fs::remove_file(world.path.join(LOCK)).unwrap();
    // A device that nobody drives.
    rustix::fs::mknodat(&own, LOCK, FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(0, 255)).unwrap();
    let strange = world.find();
    assert!(matches!(strange.problem, Some(Problem::Lock)), "{:?}", strange.problem);
    assert_eq!(sandboxes(world.home.path()).unwrap().len(), 2);
    let unseen = Found::unseen(world.path.clone(), io::ErrorKind::Other.into());
    assert!(matches!((unseen.life, unseen.problem), (Life::Starting, Some(Problem::Io(_)))));
}

#[test]
fn links_are_not_followed() {
    let world = World::running();
    let elsewhere = world.home.path().join("elsewhere");
    std::fs::rename(&world.path, &elsewhere).unwrap();
    symlink(&elsewhere, &world.path).unwrap();
    assert!(matches!(find(world.home.path(), "demo"), Err(FoundError::Open(_))));
    assert!(sandboxes(world.home.path()).unwrap().is_empty());
    let above = sandboxes_directory(world.home.path());
    std::fs::rename(&above, world.home.path().join("moved")).unwrap();
    symlink(world.home.path().join("moved"), &above).unwrap();
    assert!(matches!(sandboxes(world.home.path()), Err(FoundError::Io { .. })));
}

#[test]
fn a_parent_that_others_can_change_is_refused() {
    let world = World::running();
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
fn the_journal_of_a_dead_one_is_told_as_far_as_it_goes() {
    let world = World::dead();
    let journal = world.path.join(JOURNAL);
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, [whole.as_slice(), b"torn"].concat()).unwrap();
    let found = world.find();
    assert!(found.problem.is_none());
    assert!(matches!(found.life, Life::Dead { facts, .. } if facts.len() == 1));
    assert_eq!(std::fs::read(&journal).unwrap().len(), whole.len() + 4, "looking changes nothing");

    std::fs::write(&journal, "nonsense").unwrap();
    assert!(matches!(world.find().problem, Some(Problem::Journal(JournalError::NoJournal))));
    std::fs::remove_file(&journal).unwrap();
    symlink(RECORD, &journal).unwrap();
    assert!(matches!(world.find().problem, Some(Problem::Journal(JournalError::Open(_)))));
    std::fs::remove_file(&journal).unwrap();
    File::create(&journal).unwrap().set_len(Journal::LARGEST + 1).unwrap();
    assert!(matches!(world.find().problem, Some(Problem::Large(_))));
    std::fs::remove_file(&journal).unwrap();
    assert!(matches!(world.find().life, Life::Dead { facts, .. } if facts.is_empty()));
    let own = layout::open_directory(CWD, &world.path).unwrap();
    Journal::create(&own, "i-2").unwrap();
    assert!(matches!(world.find().problem, Some(Problem::Incarnation { found: Some(found), .. }) if found == "i-2"));
}

#[test]
fn a_journal_that_tells_more_than_is_remembered_is_told_as_far_as_that_goes() {
    let world = World::dead();
    let own = layout::open_directory(CWD, &world.path).unwrap();
    // Little on a disk, and much in memory.
    let command = Some(vec![String::new(); 60_000]);
    let mut journal = Journal::open(&own).unwrap();
    for _ in 0..40 {
        journal.append(Fact { command: command.clone(), ..Fact::new(1, FactKind::JobStarted) }).unwrap();
    }
    let found = world.find();
    let Life::Dead { facts, .. } = &found.life else { panic!("{:?}", found.life) };
    assert!(facts.len() < 41 && found.weight() <= Journal::LOADED, "{}", facts.len());
    let told = facts.last().unwrap().sequence;
    assert!(matches!(found.problem, Some(Problem::Long(last)) if last == told), "{:?}", found.problem);

    // Many of them together do not take as much each, and the last one has its own.
    let bytes = std::fs::read(world.path.join(JOURNAL)).unwrap();
    for number in 0..5 {
        let path = make(world.home.path(), &format!("other-{number}"));
        drop(hold(&path));
        std::fs::write(path.join(JOURNAL), &bytes).unwrap();
    }
    let all = sandboxes(world.home.path()).unwrap();
    assert_eq!(all.len(), 6);
    assert!(all.iter().map(Found::weight).sum::<usize>() <= LISTED + all.len() * ALLOWANCE);
    assert!(all.iter().all(|found| matches!(&found.life, Life::Dead { .. })));
}

#[test]
fn names_that_no_hash_can_be_are_left_out() {
    let world = World::running();
    let above = sandboxes_directory(world.home.path());
    for name in ["short", "2A97516C354B68848CDBD8F5"] {
        std::fs::create_dir(above.join(name)).unwrap();
    }
    File::create(above.join("0".repeat(24))).unwrap();
    assert_eq!(sandboxes(world.home.path()).unwrap().len(), 1);
}
