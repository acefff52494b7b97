use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use carrel_shim_client::layout::RECORD;
use carrel_shim_client::messages::{Create, JobRetention, PeerProcess, SandboxLimits};
use carrel_shim_client::{boot_id, process_start_time};
use rustix::fs::inotify;

use super::*;

/// A uid above all shims without an id range: no other process on this host considers its cgroups abandoned.
pub(super) const OTHER_USER: u32 = SUPERVISORS + 10_000;

/// A home, held exclusively among tests of this kind.
pub(super) struct LockedHome {
    directory: tempfile::TempDir,
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl LockedHome {
    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Serializes tests that lock or fork: a forked process briefly has our descriptors, and with them our locks.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Retries a condition: a forked process briefly has our descriptors, and with them our locks.
pub(super) fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        if is_so() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// A record as a shim in this process would write it.
pub(super) fn record(path: &Path, incarnation: &str, persistent: bool) -> SandboxRecord {
    let root = (&carrel_image::RootFs::default()).into();
    let create = Create {
        name: "name".into(),
        incarnation: incarnation.into(),
        directory: path.into(),
        programs: "/p".into(),
        ids: "/i".into(),
        agentd: "/a".into(),
        root,
        mounts: vec![],
        project: None,
        disk: 1 << 20,
        kept_disk: None,
        hostname: "h".into(),
        limits: SandboxLimits::default(),
        allow_unenforced: false,
        image: "host".into(),
        lasting: persistent,
        logs: None,
        keep: JobRetention::default(),
        network_of: None,
        gvisor: None,
    };
    let pid = std::process::id();
    SandboxRecord {
        name: "name".into(),
        incarnation: incarnation.into(),
        boot_id: boot_id().unwrap(),
        release: "0".into(),
        version: 1,
        shim_pid: pid,
        shim_began: process_start_time(pid).unwrap(),
        created_ms: 1,
        image: "host".into(),
        owner: PeerProcess { pid, user: 0, began: 0, command: String::new() },
        id_base: 0x4000_0000,
        id_count: 65_536,
        supervisor_user: OTHER_USER,
        cgroup: incarnation.into(),
        logs: path.join(JOBS).into(),
        agent_socket: path.join(AGENT_SOCKET).into(),
        shim_socket: path.join(SHIM_SOCKET).into(),
        lasting: persistent,
        create,
        device: 0,
        inode: 0,
    }
}

/// A home and the path of a sandbox in it.
pub(super) fn home() -> (LockedHome, PathBuf) {
    let home = LockedHome { _alone: alone(), directory: tempfile::tempdir().unwrap() };
    let name = layout::directory_name("name").unwrap();
    let path = layout::sandboxes_directory(home.path()).join(name);
    (home, path)
}

pub(super) fn kinds(path: &Path) -> Vec<FactKind> {
    let own = open_directory(CWD, path).unwrap();
    Journal::load(&own).unwrap().facts.into_iter().map(|fact| fact.kind).collect()
}

#[test]
fn a_missing_home_is_not_created() {
    let home = tempfile::tempdir().unwrap();
    let moved = home.path().join("moved");
    let refused = RunDirectory::claim(&moved.join("run/sandboxes/x"), "incarnation-1");
    assert!(matches!(refused, Err(DirectoryError::Io { .. })), "{refused:?}");
    assert!(!moved.exists());
    std::fs::create_dir(&moved).unwrap();
    RunDirectory::claim(&moved.join("run/sandboxes/x"), "incarnation-1").unwrap();
}

//= carrel.supervisor.death-sandbox-left-swept
#[test]
fn a_directory_has_one_holder_and_is_swept_after_its_death() {
    let (_home, path) = home();
    let held = RunDirectory::claim(&path, "incarnation-1").unwrap();
    assert!(matches!(RunDirectory::claim(&path, "incarnation-2"), Err(DirectoryError::Taken)));
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0);
    assert!(!collect(&path).unwrap());
    let _sockets = (held.listen().unwrap(), held.listen_shim().unwrap());
    assert_eq!((held.socket(), held.shim_socket()), (path.join("agent.sock"), path.join("shim.sock")));

    drop(held);
    assert!(path.join(AGENT_SOCKET).exists(), "it was not removed");
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
    assert!(!path.exists());
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0);
}

//= carrel.supervisor.death-sandbox-left-swept
//= promises.supervisor.directories-open-behind-link
#[test]
fn a_directory_of_another_user_or_behind_a_symlink_is_rejected() {
    let (home, path) = home();
    let sandboxes = path.parent().unwrap();
    drop(RunDirectory::claim(&sandboxes.join("ours"), "incarnation-0").unwrap());
    let elsewhere = home.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join(INCARNATION), "precious").unwrap();
    symlink(&elsewhere, sandboxes.join("link")).unwrap();
    assert!(matches!(RunDirectory::claim(&sandboxes.join("link"), "i"), Err(DirectoryError::Io { .. })));
    assert!(!collect(&sandboxes.join("link")).unwrap());
    std::fs::create_dir(sandboxes.join("open")).unwrap();
    std::fs::set_permissions(sandboxes.join("open"), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(matches!(RunDirectory::claim(&sandboxes.join("open"), "i"), Err(DirectoryError::Open(_))));
    sweep(sandboxes).unwrap();
    assert_eq!(std::fs::read_to_string(elsewhere.join(INCARNATION)).unwrap(), "precious");
}

#[test]
fn a_claim_is_the_first_fact_of_a_journal() {
    let (_home, path) = home();
    let mut held = RunDirectory::claim(&path, "incarnation-1").unwrap();
    let mut journal = held.take_journal().unwrap();
    assert!(held.take_journal().is_err(), "there is one");
    assert_eq!(journal.last(), 1);
    journal.append(Fact::new(2, FactKind::Started)).unwrap();
    assert_eq!(kinds(&path), [FactKind::Claimed, FactKind::Started]);
    let own = open_directory(CWD, &path).unwrap();
    assert_eq!(Journal::load(&own).unwrap().incarnation, "incarnation-1");
    assert!(matches!(RunDirectory::claim(&path.with_file_name("x"), ""), Err(DirectoryError::Journal(_))));
    assert!(!path.with_file_name("x").exists(), "nothing of what was begun is left");
}

#[test]
fn a_stale_directory_is_claimed_again_and_removed_completely() {
    let (_home, path) = home();
    let mut first = RunDirectory::claim(&path, "incarnation-1").unwrap();
    first.record(&record(&path, "incarnation-1", false)).unwrap();
    first.logs(None, OTHER_USER).unwrap();
    std::fs::create_dir_all(path.join("jobs/deep/er")).unwrap();
    drop((first.listen().unwrap(), first.listen_shim().unwrap()));
    first.chown(OTHER_USER).unwrap();
    drop(first);
    let second = RunDirectory::claim(&path, "incarnation-2").unwrap();
    assert_eq!(std::fs::read_to_string(path.join(INCARNATION)).unwrap(), "incarnation-2");
    assert_eq!(kinds(&path), [FactKind::Claimed]);
    let mut names: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [INCARNATION, JOURNAL, LOCK], "nothing of the first is left");
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), rustix::process::geteuid().as_raw());
    second.listen().unwrap();
    second.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_persistent_sandbox_keeps_its_name_until_it_is_removed() {
    let (_home, path) = home();
    let mut first = RunDirectory::claim(&path, "incarnation-1").unwrap();
    first.record(&record(&path, "incarnation-1", true)).unwrap();
    first.logs(None, OTHER_USER).unwrap();
    std::fs::write(path.join("jobs/one.stdout.log"), "said").unwrap();
    drop((first.listen().unwrap(), first.listen_shim().unwrap()));
    first.keep().unwrap();
    assert!(!path.join(AGENT_SOCKET).exists() && !path.join(SHIM_SOCKET).exists());
    let before = std::fs::read(path.join(JOURNAL)).unwrap();
    assert!(matches!(RunDirectory::claim(&path, "incarnation-2"), Err(DirectoryError::Uncollected)));
    assert_eq!(std::fs::read(path.join(JOURNAL)).unwrap(), before, "a refused claim changes nothing");
    assert_eq!(std::fs::read_to_string(path.join("jobs/one.stdout.log")).unwrap(), "said");
    assert_eq!(std::fs::read_to_string(path.join(INCARNATION)).unwrap(), "incarnation-1");
    assert!(eventually(|| collect(&path).unwrap()));
    assert!(!path.exists());
    assert!(eventually(|| collect(&path).unwrap()), "nothing of it is left");
    RunDirectory::claim(&path, "incarnation-2").unwrap().remove().unwrap();
}

#[test]
fn files_writable_by_a_shim_are_its_own_and_trusted_files_are_not() {
    let (_home, path) = home();
    let mut held = RunDirectory::claim(&path, "incarnation-1").unwrap();
    held.record(&record(&path, "incarnation-1", false)).unwrap();
    let handle = held.logs(None, OTHER_USER).unwrap();
    assert_eq!(held.logs_path(), path.join(JOBS));
    held.chown(OTHER_USER).unwrap();
    let owner = |name: &str| std::fs::symlink_metadata(path.join(name)).unwrap().uid();
    for name in [".", LOCK, JOURNAL, JOBS] {
        assert_eq!(owner(name), OTHER_USER, "{name}");
    }
    for name in [INCARNATION, RECORD] {
        assert_eq!(owner(name), rustix::process::geteuid().as_raw(), "{name}");
    }
    assert_eq!(std::fs::metadata(path.join(JOBS)).unwrap().mode() & 0o7777, 0o700);
    let above = std::fs::metadata(path.parent().unwrap()).unwrap();
    assert_eq!((above.mode() & 0o7777, above.gid()), (0o1730, SUPERVISORS));
    // From here nothing above the sandbox's own directory can be reached.
    let mut up = open_directory(&handle, ".").unwrap();
    for _ in 0..8 {
        up = open_directory(&up, "..").unwrap();
    }
    assert_eq!(rustix::fs::fstat(&up).unwrap().st_ino, std::fs::metadata(&path).unwrap().ino());
    held.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn an_output_directory_elsewhere_must_be_empty_and_is_kept() {
    let (home, path) = home();
    let logs = home.path().join("logs/of/one");
    let mut held = RunDirectory::claim(&path, "incarnation-1").unwrap();
    let handle = held.logs(Some(&logs), OTHER_USER).unwrap();
    assert_eq!(held.logs_path(), logs);
    let up = rustix::fs::fstat(open_directory(&handle, "..").unwrap()).unwrap();
    assert_eq!(up.st_ino, rustix::fs::fstat(&handle).unwrap().st_ino, "it cannot be left");
    let made = std::fs::metadata(&logs).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o7777), (OTHER_USER, 0o700));
    std::fs::write(logs.join("one.stdout.log"), "said").unwrap();

    // Not where another sandbox uses it.
    let mut other = RunDirectory::claim(&path.with_file_name("other"), "incarnation-2").unwrap();
    assert!(matches!(other.logs(Some(&logs), OTHER_USER + 1), Err(DirectoryError::LogsTaken(_))));
    held.remove().unwrap();
    drop(handle);
    assert_eq!(std::fs::read_to_string(logs.join("one.stdout.log")).unwrap(), "said");
    // But where one did before.
    drop(other.logs(Some(&logs), OTHER_USER + 1).unwrap());
    assert_eq!(std::fs::metadata(&logs).unwrap().uid(), OTHER_USER + 1);

    // Not where other files are, nor behind a symlink, nor of another user.
    let precious = home.path().join("precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("file"), "").unwrap();
    symlink("precious", home.path().join("link")).unwrap();
    let theirs = home.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(1000), None).unwrap();
    assert!(matches!(other.logs(Some(&precious), OTHER_USER), Err(DirectoryError::Logs(_))));
    assert!(matches!(other.logs(Some(&home.path().join("link")), OTHER_USER), Err(DirectoryError::Io { .. })));
    assert!(matches!(other.logs(Some(&theirs), OTHER_USER), Err(DirectoryError::Logs(_))));
    assert_eq!(std::fs::metadata(&precious).unwrap().uid(), rustix::process::geteuid().as_raw());
    std::fs::remove_file(precious.join("file")).unwrap();
    assert!(other.logs(Some(&precious), OTHER_USER).is_ok(), "there is nothing else in it now");
    other.remove().unwrap();
}

#[test]
fn inspection_does_not_prevent_a_claim() {
    let (_home, path) = home();
    drop(RunDirectory::claim(&path, "incarnation-1").unwrap());
    let looker = File::open(path.join(LOCK)).unwrap();
    rustix::fs::flock(&looker, FlockOperation::NonBlockingLockShared).unwrap();
    let opened = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&opened, path.join(LOCK), inotify::WatchFlags::OPEN).unwrap();
    std::thread::scope(|scope| {
        let claimed = scope.spawn(|| RunDirectory::claim(&path, "incarnation-2").unwrap());
        // The inspection is active.
        rustix::io::read(&opened, &mut [0; 64]).unwrap();
        drop(looker);
        drop(claimed.join().unwrap());
    });
    assert_eq!(std::fs::read_to_string(path.join(INCARNATION)).unwrap(), "incarnation-2");
}

#[test]
fn a_process_that_had_the_lock_open_before_cannot_hold_it_afterwards() {
    let (home, path) = home();
    let first = RunDirectory::claim(&path, "incarnation-1").unwrap();
    first.chown(OTHER_USER).unwrap();
    let before = File::options().write(true).open(path.join(LOCK)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    drop(first);
    let second = RunDirectory::claim(&path, "incarnation-2").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700, "it is private again");
    rustix::fs::flock(&before, FlockOperation::NonBlockingLockExclusive).unwrap();
    let life = || carrel_shim_client::find(home.path(), "name").unwrap().unwrap().life;
    assert_eq!(life(), carrel_shim_client::Liveness::Starting);
    drop(second);
    assert!(matches!(life(), carrel_shim_client::Liveness::Dead { .. }), "another file is the lock");
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
    assert!(!path.exists());
}

#[test]
fn an_inspector_is_distinguished_from_a_shim() {
    let (_home, path) = home();
    let held = RunDirectory::claim(&path, "incarnation-1").unwrap();
    let own = open_directory(CWD, &path).unwrap();
    assert!(matches!(hold(&own, OFlags::empty(), 1).unwrap(), LockAttempt::Taken));
    drop(held);
    assert!(matches!(hold(&own, OFlags::empty(), 1).unwrap(), LockAttempt::Held(_)));
    std::fs::remove_file(path.join(LOCK)).unwrap();
    assert!(matches!(hold(&own, OFlags::empty(), 1).unwrap(), LockAttempt::Absent));
    for strange in ["link", "tree"] {
        match strange {
            "link" => symlink(INCARNATION, path.join(LOCK)).unwrap(),
            _ => std::fs::create_dir_all(path.join(LOCK).join("a/b")).unwrap(),
        }
        assert!(matches!(hold(&own, OFlags::CREATE, 1).unwrap(), LockAttempt::Held(_)), "{strange}");
        assert!(std::fs::symlink_metadata(path.join(LOCK)).unwrap().is_file());
        std::fs::remove_file(path.join(LOCK)).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path.join(INCARNATION)).unwrap(), "incarnation-1");
}
