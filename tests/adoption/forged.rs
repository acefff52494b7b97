//! Adoption verifies the record of a sandbox: a record that does not match is refused with the reason.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use carrel_shim_client::layout::{INCARNATION, LOCK, RECORD, SHIM_SOCKET, open_directory};
use carrel_shim_client::messages::{EndReason, FactKind, Hello, VERSION};
use carrel_shim_client::{
    AdoptError, DiscoveredSandbox, DiscoveryError, DiscoveryProblem, IdentityField, Liveness, OwnedSandbox,
    RecordError, SandboxRecord, encode, find, process_start_time, sandboxes,
};
use carrel_tests::{create, home, programs, run};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use crate::leftovers;
use crate::persistent::{AdoptableSandbox, NAME, exit_of};

fn open(path: &Path) -> OwnedFd {
    open_directory(rustix::fs::CWD, path).unwrap()
}

/// Replaces the record with a changed copy.
fn forge(sandbox: &AdoptableSandbox, change: impl FnOnce(&mut SandboxRecord)) {
    let mut record = sandbox.record.clone();
    change(&mut record);
    record.write(open(&sandbox.directory())).unwrap();
}

/// Restores the original record, and checks that the sandbox can be adopted.
async fn restore(sandbox: &AdoptableSandbox) {
    forge(sandbox, |_| {});
    let mut client = sandbox.adopt().await;
    assert_eq!(client.hello().incarnation, sandbox.record.incarnation);
    client.status().await.unwrap();
}

/// Tries to adopt the sandbox by an earlier discovery and by a new one; returns both errors and the new discovery.
async fn attempt(
    sandbox: &AdoptableSandbox,
    before: &DiscoveredSandbox,
) -> (AdoptError, DiscoveredSandbox, AdoptError) {
    let late = before.connect().await.expect_err("discovered before the change");
    let now = sandbox.find();
    let refused = now.connect().await.expect_err("discovered after the change");
    (late, now, refused)
}

//= promises.adoption.forged-records-reused-process
#[test]
fn a_forged_record_is_not_adopted() {
    run(async {
        let sandbox = AdoptableSandbox::start();
        let before = sandbox.find();
        let true_incarnation = sandbox.record.incarnation.clone();

        forge(&sandbox, |record| record.incarnation = "another".to_owned());
        let (late, now, refused) = attempt(&sandbox, &before).await;
        let is_expected = |problem: &DiscoveryProblem| match problem {
            DiscoveryProblem::Incarnation { recorded, found } => {
                recorded == "another" && found.as_ref() == Some(&true_incarnation)
            }
            _ => false,
        };
        assert!(matches!(&late, AdoptError::Damaged(problem) if is_expected(problem)), "{late:?}");
        assert!(now.record.is_none() && is_expected(now.problem.as_ref().unwrap()), "{now:?}");
        assert!(matches!(refused, AdoptError::NotRunning), "{refused:?}");
        restore(&sandbox).await;

        forge(&sandbox, |record| record.name = "another".to_owned());
        let (late, now, refused) = attempt(&sandbox, &before).await;
        assert!(matches!(&late, AdoptError::Damaged(DiscoveryProblem::Name { name }) if name == "another"), "{late:?}");
        assert!(matches!(&now.problem, Some(DiscoveryProblem::Name { .. })), "{now:?}");
        assert!(matches!(refused, AdoptError::NotRunning), "{refused:?}");
        restore(&sandbox).await;

        let user = sandbox.record.supervisor_user;
        forge(&sandbox, |record| record.supervisor_user += 1);
        let (late, now, _) = attempt(&sandbox, &before).await;
        let is_expected = |problem: &DiscoveryProblem| matches!(problem, DiscoveryProblem::Owner { owner, recorded } if *owner == user && *recorded == user + 1);
        assert!(matches!(&late, AdoptError::Damaged(problem) if is_expected(problem)), "{late:?}");
        assert!(is_expected(now.problem.as_ref().unwrap()), "{now:?}");
        restore(&sandbox).await;

        // A compromised shim could only write a record that its own user owns.
        chown(sandbox.directory().join(RECORD), Some(user), None).unwrap();
        let (late, now, _) = attempt(&sandbox, &before).await;
        let is_expected = |problem: &DiscoveryProblem| matches!(problem, DiscoveryProblem::Record(RecordError::Forged { author }) if *author == user);
        assert!(matches!(&late, AdoptError::Damaged(problem) if is_expected(problem)), "{late:?}");
        assert!(is_expected(now.problem.as_ref().unwrap()), "{now:?}");
        restore(&sandbox).await;
    });
}

//= promises.adoption.forged-records-reused-process
#[test]
fn a_pid_alone_does_not_identify_a_shim() {
    run(async {
        let sandbox = AdoptableSandbox::start();
        let before = sandbox.find();
        let (us, them) = (std::process::id(), sandbox.record.shim_pid);

        // The pid was reused.
        forge(&sandbox, |record| record.shim_pid = us);
        let (late, _, refused) = attempt(&sandbox, &before).await;
        for error in [late, refused] {
            assert!(matches!(error, AdoptError::Process { pid } if pid == us), "{error:?}");
        }
        forge(&sandbox, |record| record.shim_began -= 1);
        let (late, _, refused) = attempt(&sandbox, &before).await;
        for error in [late, refused] {
            assert!(matches!(error, AdoptError::Process { pid } if pid == them), "{error:?}");
        }
        assert_eq!(sandbox.find().record.unwrap().shim_handle().map(drop), None, "no process is signalled by that pid");
        restore(&sandbox).await;

        // A running process that is not the one that listens.
        forge(&sandbox, |record| (record.shim_pid, record.shim_began) = (us, process_start_time(us).unwrap()));
        let (late, _, refused) = attempt(&sandbox, &before).await;
        for error in [late, refused] {
            let is_expected =
                matches!(error, AdoptError::PeerProcess { found, recorded } if (found, recorded) == (them, us));
            assert!(is_expected, "{error:?}");
        }
        restore(&sandbox).await;

        // The holder of a lock from another boot is not the recorded shim.
        forge(&sandbox, |record| record.boot_id = "another".to_owned());
        let (late, now, refused) = attempt(&sandbox, &before).await;
        assert_eq!(now.life, Liveness::Starting);
        for error in [late, refused] {
            assert!(matches!(error, AdoptError::NotRunning), "{error:?}");
        }
        restore(&sandbox).await;
    });
}

/// Serves the socket of a sandbox in place of its shim, with the given greeting.
fn serve_as_shim(sandbox: &AdoptableSandbox, hello: Hello) -> tokio::task::JoinHandle<()> {
    let listener = UnixListener::bind(sandbox.directory().join(SHIM_SOCKET)).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut frame = Vec::new();
            encode(&mut frame, VERSION, 0, &hello).unwrap();
            socket.write_all(&frame).await.unwrap();
        }
    })
}

//= promises.adoption.forged-records-reused-process
#[test]
fn an_impostor_on_the_socket_of_the_shim_is_refused() {
    run(async {
        let sandbox = AdoptableSandbox::start();
        let before = sandbox.find();
        let hello = sandbox.adopt().await.hello().clone();
        let (us, them) = (std::process::id(), sandbox.record.shim_pid);
        let (socket, aside) = (sandbox.directory().join(SHIM_SOCKET), sandbox.directory().join("aside"));
        let forged_hello = |field: IdentityField| {
            let (another, mut hello) = ("another".to_owned(), Hello { shim_pid: us, ..hello.clone() });
            match field {
                IdentityField::Name => hello.name = another,
                IdentityField::Incarnation => hello.incarnation = another,
                IdentityField::BootId => hello.boot_id = another,
                IdentityField::Process => hello.shim_pid = them,
            }
            hello
        };

        std::fs::rename(&socket, &aside).unwrap();
        let impostor = serve_as_shim(&sandbox, hello.clone());
        let (late, now, refused) = attempt(&sandbox, &before).await;
        assert_eq!(now.life, Liveness::Running, "the record is the original");
        for error in [late, refused] {
            let is_expected =
                matches!(error, AdoptError::PeerProcess { found, recorded } if (found, recorded) == (us, them));
            assert!(is_expected, "{error:?}");
        }
        impostor.abort();

        // Even the recorded process has to claim the recorded identity.
        forge(&sandbox, |record| (record.shim_pid, record.shim_began) = (us, process_start_time(us).unwrap()));
        for claim in [IdentityField::Name, IdentityField::Incarnation, IdentityField::BootId, IdentityField::Process] {
            std::fs::remove_file(&socket).unwrap();
            let impostor = serve_as_shim(&sandbox, forged_hello(claim));
            let refused = sandbox.find().connect().await.expect_err("a false claim");
            assert!(matches!(refused, AdoptError::Claims { what, .. } if what == claim), "{refused:?}");
            impostor.abort();
        }
        std::fs::remove_file(&socket).unwrap();
        // The first process of a sandbox is a child of its shim.
        let impostor = serve_as_shim(&sandbox, Hello { shim_pid: us, ..hello.clone() });
        let refused = sandbox.find().connect().await.expect_err("another's sandbox");
        assert!(matches!(refused, AdoptError::Claims { what: IdentityField::Process, .. }), "{refused:?}");
        impostor.abort();
        std::fs::remove_file(&socket).unwrap();
        let honest = serve_as_shim(&sandbox, Hello { shim_pid: us, pid: sandbox.owner(), ..hello.clone() });
        sandbox.find().connect().await.expect("only its claims were wrong");
        honest.abort();

        std::fs::rename(&aside, &socket).unwrap();
        restore(&sandbox).await;
    });
}

//= promises.adoption.forged-records-reused-process
#[test]
fn a_directory_of_another_user_or_behind_a_symlink_is_refused_and_one_with_wrong_permissions_is_reported() {
    run(async {
        let sandbox = AdoptableSandbox::start();
        let before = sandbox.find();
        let directory = sandbox.directory();
        let refused = async |case: &str| {
            let late = before.connect().await.expect_err(case);
            assert!(
                matches!(&late, AdoptError::Discovery(DiscoveryError::Open(path)) if *path == directory),
                "{late:?}"
            );
            let now = find(sandbox.home.path(), NAME);
            assert!(matches!(&now, Err(DiscoveryError::Open(path)) if *path == directory), "{now:?}");
            assert!(sandboxes(sandbox.home.path()).unwrap().is_empty(), "{case}");
            assert_eq!(carrel_shim::sweep(&sandbox.sandboxes()).unwrap(), 0, "{case}");
        };
        let supervisor = sandbox.record.supervisor_user;
        chown(&directory, Some(1000), None).unwrap();
        refused("another user's").await;
        chown(&directory, Some(supervisor), None).unwrap();
        restore(&sandbox).await;

        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        let now = sandbox.find();
        assert!(matches!((&now.problem, &now.life), (Some(DiscoveryProblem::Open), Liveness::Running)), "{now:?}");
        assert_eq!(sandboxes(sandbox.home.path()).unwrap().len(), 1, "the sandbox cannot hide itself");
        before.connect().await.expect("nor can it prevent its adoption");
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
        restore(&sandbox).await;

        let elsewhere = sandbox.home.path().join("elsewhere");
        std::fs::rename(&directory, &elsewhere).unwrap();
        symlink(&elsewhere, &directory).unwrap();
        refused("a link").await;
        std::fs::remove_file(&directory).unwrap();
        std::fs::rename(&elsewhere, &directory).unwrap();
        restore(&sandbox).await;

        // It belongs to another shim: it is listed, but not adopted.
        chown(&directory, Some(supervisor + 1), None).unwrap();
        let (late, now, _) = attempt(&sandbox, &before).await;
        assert!(matches!(late, AdoptError::Damaged(DiscoveryProblem::Owner { .. })), "{late:?}");
        assert!(matches!(now.problem, Some(DiscoveryProblem::Owner { .. })), "{now:?}");
        chown(&directory, Some(supervisor), None).unwrap();
        restore(&sandbox).await;
    });
}

#[test]
fn a_replacement_of_the_same_name_is_not_adopted_as_the_original() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        let before = sandbox.find();
        sandbox.kill_owner();
        sandbox.kill_shim().await;
        assert!(carrel_shim::collect(&sandbox.directory()).unwrap());
        let refused = before.connect().await.expect_err("it is gone");
        assert!(matches!(refused, AdoptError::NotRunning), "{refused:?}");
        let mut next = OwnedSandbox::start(&programs(), &create(sandbox.home.path(), NAME)).await.unwrap();
        let refused = before.connect().await.expect_err("it is another");
        assert!(matches!(refused, AdoptError::Replaced), "{refused:?}");
        sandbox.find().connect().await.expect("a new discovery finds the replacement");
        next.stop(std::time::Duration::ZERO).await.unwrap();
    });
}

//= promises.adoption.sandbox-another-boot-host
#[test]
fn a_persistent_sandbox_from_before_a_reboot_is_dead_and_swept_except_for_its_journal() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        sandbox.kill_owner();
        sandbox.kill_shim().await;
        forge(&sandbox, |record| record.boot_id = "another".to_owned());
        let found = sandbox.find();
        assert!(found.problem.is_none() && matches!(found.life, Liveness::Dead { rebooted: true, .. }), "{found:?}");
        assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
        assert_eq!(carrel_shim::sweep(&sandbox.sandboxes()).unwrap(), 1);
        assert_eq!(leftovers::of(sandbox.create()), [sandbox.directory().display().to_string()]);
        let Liveness::Dead { facts, rebooted: true } = sandbox.find().life else { panic!("{:?}", sandbox.find()) };
        let last = facts.last().unwrap();
        assert_eq!((last.kind, last.reason), (FactKind::Ended, Some(EndReason::SupervisorLost)));
        assert!(carrel_shim::collect(&sandbox.directory()).unwrap());
        assert_eq!(leftovers::of(sandbox.create()), Vec::<String>::new());
    });
}

//= promises.adoption.sandbox-another-boot-host
#[test]
fn an_ephemeral_sandbox_from_before_a_reboot_is_removed_completely() {
    run(async {
        let home = home();
        let create = create(home.path(), NAME);
        let mut owned = OwnedSandbox::start(&programs(), &create).await.unwrap();
        let mut record = find(home.path(), NAME).unwrap().unwrap().record.unwrap();
        let shim = record.shim_handle().unwrap();
        rustix::process::pidfd_send_signal(&shim, Signal::KILL).unwrap();
        exit_of(&shim).await;
        assert!(owned.ended().await.is_err());
        record.boot_id = "another".to_owned();
        record.write(open(&create.directory.0)).unwrap();
        assert!(matches!(find(home.path(), NAME).unwrap().unwrap().life, Liveness::Dead { rebooted: true, .. }));
        assert_eq!(carrel_shim::sweep(create.directory.0.parent().unwrap()).unwrap(), 1);
        assert_eq!(leftovers::of(&create), Vec::<String>::new());
    });
}

#[test]
fn a_sandbox_without_its_lock_file_is_swept() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        sandbox.kill_owner();
        sandbox.kill_shim().await;
        std::fs::remove_file(sandbox.directory().join(LOCK)).unwrap();
        assert!(sandboxes(sandbox.home.path()).unwrap().is_empty());
        assert_eq!(carrel_shim::sweep(&sandbox.sandboxes()).unwrap(), 1);
        assert_eq!(leftovers::of(sandbox.create()), [sandbox.directory().display().to_string()]);
        assert!(carrel_shim::collect(&sandbox.directory()).unwrap());
        assert_eq!(leftovers::of(sandbox.create()), Vec::<String>::new());
    });
}

#[test]
fn the_cgroup_of_a_sandbox_without_its_incarnation_file_is_found_by_its_owner() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        let ids = sandbox.create().ids.0.clone();
        carrel_shim::sweep_groups(&ids).unwrap();
        assert_eq!(sandbox.find().life, Liveness::Running, "it holds its range of ids");
        sandbox.kill_owner();
        sandbox.kill_shim().await;
        std::fs::remove_file(sandbox.directory().join(INCARNATION)).unwrap();
        carrel_shim::sweep(&sandbox.sandboxes()).unwrap();
        let groups = || leftovers::of(sandbox.create()).into_iter().filter(|path| path.contains("/cgroup/")).count();
        assert!(groups() > 0, "the cgroups are not attributed to the sandbox");
        leftovers::until_unmounted(sandbox.create()).await;
        // Until init has reaped the dead processes, they count as unknown members of the cgroup.
        while groups() > 0 {
            carrel_shim::sweep_groups(&ids).unwrap();
            tokio::task::yield_now().await;
        }
        std::fs::write(sandbox.directory().join(INCARNATION), &sandbox.record.incarnation).unwrap();
    });
}
