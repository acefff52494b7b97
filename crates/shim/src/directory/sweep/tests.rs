use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use carrel_sandbox::cgroup::{Cgroup, CgroupLimits, HostCgroups, LimitPolicy};
use carrel_shim_client::layout::{INCARNATION, JOBS, JOURNAL, RECORD, process_start_time};
use carrel_shim_client::messages::{EndReason, Fact, FactKind};
use carrel_shim_client::{Journal, Liveness, find};

use super::*;
use crate::directory::RunDirectory;
use crate::directory::tests::{OTHER_USER, eventually, home, kinds, record};

/// A unique incarnation.
pub(super) fn incarnation(test: &str) -> String {
    format!("sweep-{test}-{}", std::process::id())
}

/// The directory of a persistent sandbox whose shim is dead.
pub(super) fn dead_persistent(path: &Path, incarnation: &str) {
    let mut held = RunDirectory::claim(path, incarnation).unwrap();
    held.record(&record(path, incarnation, true)).unwrap();
    held.logs(None, OTHER_USER).unwrap();
    std::fs::write(path.join("jobs/one.stdout.log"), "said").unwrap();
    drop((held.listen().unwrap(), held.listen_shim().unwrap()));
    held.chown(OTHER_USER).unwrap();
}

fn ends(path: &Path) -> usize {
    kinds(path).into_iter().filter(|kind| *kind == FactKind::Ended).count()
}

/// A process in its own cgroup.
pub(in crate::directory) struct CgroupProcess {
    name: String,
    pub(in crate::directory) child: Child,
}

impl CgroupProcess {
    pub(in crate::directory) fn start(name: &str, owner: Option<u32>) -> Self {
        let group = Cgroup::create(
            &HostCgroups::detect().unwrap(),
            name,
            &CgroupLimits::default(),
            LimitPolicy::AllowUnenforced,
        )
        .unwrap();
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        group.add(rustix::process::Pid::from_child(&child)).unwrap();
        if let Some(owner) = owner {
            group.delegate(owner).unwrap();
        }
        group.detach();
        Self { name: name.to_owned(), child }
    }

    pub(in crate::directory) fn is_there(&self) -> bool {
        Cgroup::adopt(&HostCgroups::detect().unwrap(), &self.name).is_ok()
    }

    pub(in crate::directory) fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for CgroupProcess {
    fn drop(&mut self) {
        let _ended = (self.child.kill(), self.child.wait());
        if let Ok(group) = Cgroup::adopt(&HostCgroups::detect().unwrap(), &self.name) {
            group.remove().unwrap();
        }
    }
}

//= promises.supervisor.records-none-directories-without
#[test]
fn a_sandbox_that_died_at_startup_is_swept() {
    let (_home, path) = home();
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&path).unwrap();
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
    assert!(!path.exists());
}

//= carrel.supervisor.death-sandbox-left-swept
//= promises.supervisor.records-none-directories-without
#[test]
fn an_invalid_record_blocks_neither_its_name_nor_other_sweeps() {
    let (_home, path) = home();
    let sandboxes = path.parent().unwrap();
    for (name, incarnation) in [("empty", ""), ("nonsense", "../../x"), ("whole", "incarnation-1")] {
        drop(RunDirectory::claim(&sandboxes.join(name), "incarnation-0").unwrap());
        std::fs::write(sandboxes.join(name).join(INCARNATION), incarnation).unwrap();
        std::fs::write(sandboxes.join(name).join(RECORD), "nonsense").unwrap();
    }
    let again = RunDirectory::claim(&sandboxes.join("empty"), "incarnation-2").unwrap();
    again.remove().unwrap();
    assert_eq!(sweep(sandboxes).unwrap(), 2);
    assert_eq!(std::fs::read_dir(sandboxes).unwrap().count(), 0);
}

#[test]
fn a_parent_directory_writable_by_others_is_not_swept() {
    let (_home, path) = home();
    drop(RunDirectory::claim(&path, "incarnation-1").unwrap());
    std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(matches!(sweep(path.parent().unwrap()), Err(DirectoryError::Open(_))));
    assert!(matches!(collect(&path), Err(DirectoryError::Open(_))));
    std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
}

//= promises.adoption.entries-killed-shim-missing
#[test]
fn a_persistent_sandbox_stays_and_its_end_is_recorded_exactly_once() {
    let (home, path) = home();
    dead_persistent(&path, &incarnation("persistent"));
    assert_eq!(ends(&path), 0);
    // Killed in the middle of an append.
    let torn = [std::fs::read(path.join(JOURNAL)).unwrap().as_slice(), b"\0\0\0\x20torn"].concat();
    std::fs::write(path.join(JOURNAL), torn).unwrap();
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0, "a second sweep does nothing");
    assert_eq!(kinds(&path), [FactKind::Claimed, FactKind::Ended]);
    for name in [AGENT_SOCKET, SHIM_SOCKET] {
        assert!(!path.join(name).exists(), "{name}");
    }
    assert_eq!(std::fs::read_to_string(path.join("jobs/one.stdout.log")).unwrap(), "said");

    let found = find(home.path(), "name").unwrap().unwrap();
    assert!(found.problem.is_none(), "{:?}", found.problem);
    let Liveness::Dead { facts, rebooted: false } = found.life else { panic!("{:?}", found.life) };
    assert_eq!(facts.last().unwrap().reason, Some(EndReason::SupervisorLost));
    assert_eq!(facts.last().unwrap().sequence, 2);
    assert!(eventually(|| collect(&path).unwrap()));
    assert!(!path.exists());
}

#[test]
fn a_recorded_end_is_not_recorded_again() {
    for kind in [FactKind::Ended, FactKind::Failed] {
        let (_home, path) = home();
        dead_persistent(&path, &incarnation("recorded"));
        let own = open_directory(CWD, &path).unwrap();
        Journal::open(&own).unwrap().append(Fact::new(5, kind)).unwrap();
        sweep(path.parent().unwrap()).unwrap();
        sweep(path.parent().unwrap()).unwrap();
        assert_eq!(kinds(&path), [FactKind::Claimed, kind]);
    }
}

//= promises.adoption.entries-killed-shim-missing
#[test]
fn jobs_running_when_the_shim_died_are_recorded_as_ended_with_the_sandbox() {
    let (_home, path) = home();
    dead_persistent(&path, &incarnation("jobs"));
    let own = open_directory(CWD, &path).unwrap();
    let mut journal = Journal::open(&own).unwrap();
    let about = |job: &str, kind| Fact { job: Some(job.to_owned()), ..Fact::new(5, kind) };
    for job in ["one", "two", "three"] {
        journal.append(about(job, FactKind::JobStarted)).unwrap();
    }
    journal.append(about("two", FactKind::JobEnded)).unwrap();
    sweep(path.parent().unwrap()).unwrap();
    sweep(path.parent().unwrap()).unwrap();
    let facts = Journal::load(&own).unwrap().facts;
    let recorded: Vec<_> = facts.iter().skip(5).map(|fact| (fact.kind, fact.job.as_deref())).collect();
    let expected = [(FactKind::JobEnded, Some("one")), (FactKind::JobEnded, Some("three")), (FactKind::Ended, None)];
    assert_eq!(recorded, expected);
}

#[test]
fn an_invalid_journal_does_not_prevent_the_sweep() {
    for strange in ["nonsense", "absent", "link", "tree"] {
        let (_home, path) = home();
        dead_persistent(&path, &incarnation("strange"));
        std::fs::remove_file(path.join(JOURNAL)).unwrap();
        match strange {
            "nonsense" => std::fs::write(path.join(JOURNAL), strange).unwrap(),
            "link" => symlink(INCARNATION, path.join(JOURNAL)).unwrap(),
            "tree" => std::fs::create_dir_all(path.join(JOURNAL).join("a")).unwrap(),
            _ => {}
        }
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1, "{strange}");
        assert!(path.exists() && !path.join(SHIM_SOCKET).exists(), "{strange}");
        assert!(eventually(|| collect(&path).unwrap()), "{strange}");
    }
}

#[test]
fn a_sandbox_of_another_boot_is_swept() {
    for stays in [true, false] {
        let (home, path) = home();
        let held = RunDirectory::claim(&path, &incarnation("boot")).unwrap();
        let mut made = record(&path, &incarnation("boot"), stays);
        made.boot_id = "another".into();
        held.record(&made).unwrap();
        held.chown(OTHER_USER).unwrap();
        drop(held);
        // Its pid is that of a live process, in another boot: it is not signalled.
        assert_eq!(process_start_time(made.shim_pid), Some(made.shim_began));
        assert_eq!(made.shim(), None);
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
        assert_eq!(path.exists(), stays);
        if stays {
            let found = find(home.path(), "name").unwrap().unwrap();
            assert!(matches!(found.life, Liveness::Dead { rebooted: true, .. }));
            assert_eq!(ends(&path), 1);
        }
    }
}

#[test]
fn a_cgroup_is_removed_with_its_sandbox_persistent_or_not() {
    for stays in [true, false] {
        let (_home, path) = home();
        let name = incarnation(if stays { "group-stays" } else { "group-goes" });
        let held = RunDirectory::claim(&path, &name).unwrap();
        held.record(&record(&path, &name, stays)).unwrap();
        held.chown(OTHER_USER).unwrap();
        let mut grouped = CgroupProcess::start(&name, Some(OTHER_USER));
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0);
        assert!(grouped.lives() && grouped.is_there(), "its supervisor lives");
        drop(held);
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
        assert!(!grouped.is_there());
        assert!(!grouped.child.wait().unwrap().success());
        assert_eq!(path.exists(), stays);
    }
}

#[test]
fn a_forged_incarnation_does_not_remove_another_cgroup() {
    let (_home, path) = home();
    let name = incarnation("another");
    let mut grouped = CgroupProcess::start(&name, Some(OTHER_USER + 1));
    dead_persistent(&path, &incarnation("liar"));
    // Compromised, it names another cgroup.
    std::fs::write(path.join(INCARNATION), &name).unwrap();
    chown(path.join(INCARNATION), Some(OTHER_USER), None).unwrap();
    for _ in 0..2 {
        // The second time the directory is ours again, but the author of the name is not.
        sweep(path.parent().unwrap()).unwrap();
        assert!(grouped.lives() && grouped.is_there());
    }
    assert!(eventually(|| collect(&path).unwrap()));
    assert!(grouped.lives() && grouped.is_there());
    // The same content by the owner of the cgroup.
    dead_persistent(&path, &name);
    chown(&path, Some(OTHER_USER + 1), None).unwrap();
    assert!(eventually(|| collect(&path).unwrap()));
    assert!(!grouped.is_there());
}

#[test]
fn a_swept_directory_is_inaccessible_to_the_next_shim_with_the_same_uid() {
    let (_home, path) = home();
    dead_persistent(&path, &incarnation("taken-back"));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), OTHER_USER);
    sweep(path.parent().unwrap()).unwrap();
    let after = std::fs::metadata(&path).unwrap();
    assert_eq!((after.uid(), after.mode() & 0o7777), (rustix::process::geteuid().as_raw(), 0o700));
}

#[test]
fn a_record_of_a_newer_release_is_kept() {
    let (_home, path) = home();
    dead_persistent(&path, &incarnation("newer"));
    let mut newer = std::fs::read(path.join(RECORD)).unwrap();
    newer[8] += 1;
    std::fs::write(path.join(RECORD), newer).unwrap();
    sweep(path.parent().unwrap()).unwrap();
    assert!(path.join(RECORD).exists());
    assert!(matches!(RunDirectory::claim(&path, "i"), Err(DirectoryError::Uncollected)));
    assert!(eventually(|| collect(&path).unwrap()));
}

#[test]
fn a_shim_cannot_make_its_directory_persistent() {
    let (_home, path) = home();
    let held = RunDirectory::claim(&path, &incarnation("forged")).unwrap();
    held.record(&record(&path, &incarnation("forged"), true)).unwrap();
    held.chown(OTHER_USER).unwrap();
    drop(held);
    chown(path.join(RECORD), Some(OTHER_USER), None).unwrap();
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
    assert!(!path.exists());
}

#[test]
fn any_content_that_a_shim_put_into_its_directory_is_removed() {
    let (home, path) = home();
    let outside = home.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "precious").unwrap();
    for collected in [false, true] {
        let mut held = RunDirectory::claim(&path, &incarnation("hostile")).unwrap();
        held.logs(None, OTHER_USER).unwrap();
        for place in [path.clone(), path.join(JOBS)] {
            std::fs::create_dir_all(place.join("a/b/c")).unwrap();
            std::fs::write(place.join("a/b/file"), "").unwrap();
            symlink(&outside, place.join("link")).unwrap();
            symlink("..", place.join("a/up")).unwrap();
        }
        // Well-known names with another file type.
        std::fs::create_dir_all(path.join("agent.sock/a")).unwrap();
        symlink(outside.join("file"), path.join(SHIM_SOCKET)).unwrap();
        symlink(&outside, path.join(RECORD)).unwrap();
        std::fs::remove_file(path.join(LOCK)).unwrap();
        std::fs::create_dir_all(path.join("lock/a")).unwrap();
        held.chown(OTHER_USER).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        drop(held);
        if collected {
            assert!(eventually(|| collect(&path).unwrap()));
        } else {
            assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
        }
        assert!(!path.exists());
        assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "precious");
    }
}

#[test]
fn a_directory_whose_lock_was_removed_is_swept() {
    let (_home, path) = home();
    drop(RunDirectory::claim(&path, &incarnation("unlocked")).unwrap());
    std::fs::remove_file(path.join(LOCK)).unwrap();
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
    assert!(!path.exists());
}

#[test]
fn a_directory_of_another_user_is_left_alone() {
    let (_home, path) = home();
    drop(RunDirectory::claim(&path, &incarnation("theirs")).unwrap());
    chown(&path, Some(1000), None).unwrap();
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0);
    assert!(!collect(&path).unwrap());
    chown(&path, Some(OTHER_USER), None).unwrap();
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
}

#[test]
fn a_directory_that_replaced_another_is_not_removed() {
    let (home, path) = home();
    drop(RunDirectory::claim(&path, &incarnation("first")).unwrap());
    let parent = open_parent(path.parent().unwrap()).unwrap().unwrap();
    let name = path.file_name().unwrap();
    let SweepAttempt::Dead(first) = try_name(&parent, name, 1).unwrap() else { panic!("it is dead") };
    // While it is locked, its name is given to a live one.
    let aside: PathBuf = home.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    let second = RunDirectory::claim(&path, &incarnation("second")).unwrap();
    first.remove().unwrap();
    assert!(std::fs::read_dir(&aside).unwrap().next().is_none(), "its own content is removed");
    assert!(path.join(LOCK).exists() && path.join(JOURNAL).exists(), "nothing of the other is touched");
    assert!(matches!(try_name(&parent, name, 1).unwrap(), SweepAttempt::Left));
    second.remove().unwrap();
}

#[test]
fn concurrent_sweeps_sweep_once() {
    let (_home, path) = home();
    let sandboxes = path.parent().unwrap();
    for number in 0..20 {
        drop(RunDirectory::claim(&sandboxes.join(number.to_string()), &incarnation("crowd")).unwrap());
    }
    dead_persistent(&path, &incarnation("crowd-persistent"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(sweep(sandboxes).is_ok()));
        }
    });
    sweep(sandboxes).unwrap();
    assert_eq!(std::fs::read_dir(sandboxes).unwrap().count(), 1);
    assert_eq!(ends(&path), 1);
}
