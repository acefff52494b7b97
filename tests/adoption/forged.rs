//! What is written about a sandbox is verified, not believed: whatever does not fit is not adopted, and says why.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use carrel_shim_client::layout::{INCARNATION, LOCK, RECORD, SHIM_SOCKET, open_directory};
use carrel_shim_client::messages::{EndReason, FactKind, Hello, VERSION};
use carrel_shim_client::{
    AdoptError, DiscoveredSandbox, DiscoveryError, DiscoveryProblem, IdentityField, Liveness, OwnedSandbox,
    RecordError, SandboxRecord, began, encode, find, sandboxes,
};
use carrel_tests::{create, home, programs, run};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use crate::left;
use crate::standing::{NAME, Standing, end};

fn open(path: &Path) -> OwnedFd {
    open_directory(rustix::fs::CWD, path).unwrap()
}

/// Writes another record in place of the true one.
fn forge(standing: &Standing, change: impl FnOnce(&mut SandboxRecord)) {
    let mut record = standing.record.clone();
    change(&mut record);
    record.write(open(&standing.directory())).unwrap();
}

/// The true record again, and that it is one that can be adopted.
async fn restore(standing: &Standing) {
    forge(standing, |_| {});
    let mut client = standing.adopt().await;
    assert_eq!(client.hello().incarnation, standing.record.incarnation);
    client.status().await.unwrap();
}

/// What comes of adopting it: for one who saw it before it was forged, and for one who comes now.
async fn attempt(standing: &Standing, before: &DiscoveredSandbox) -> (AdoptError, DiscoveredSandbox, AdoptError) {
    let late = before.connect().await.expect_err("one who saw it before");
    let now = standing.find();
    let refused = now.connect().await.expect_err("one who comes now");
    (late, now, refused)
}

//= promises.adoption.forged-records-reused-process
#[test]
fn a_record_that_was_forged_is_not_believed() {
    run(async {
        let standing = Standing::start();
        let before = standing.find();
        let true_name = standing.record.incarnation.clone();

        forge(&standing, |record| record.incarnation = "another".to_owned());
        let (late, now, refused) = attempt(&standing, &before).await;
        let is_told = |problem: &DiscoveryProblem| match problem {
            DiscoveryProblem::Incarnation { recorded, found } => {
                recorded == "another" && found.as_ref() == Some(&true_name)
            }
            _ => false,
        };
        assert!(matches!(&late, AdoptError::Problem(problem) if is_told(problem)), "{late:?}");
        assert!(now.record.is_none() && is_told(now.problem.as_ref().unwrap()), "{now:?}");
        assert!(matches!(refused, AdoptError::NotRunning), "{refused:?}");
        restore(&standing).await;

        forge(&standing, |record| record.name = "another".to_owned());
        let (late, now, refused) = attempt(&standing, &before).await;
        assert!(matches!(&late, AdoptError::Problem(DiscoveryProblem::Name { name }) if name == "another"), "{late:?}");
        assert!(matches!(&now.problem, Some(DiscoveryProblem::Name { .. })), "{now:?}");
        assert!(matches!(refused, AdoptError::NotRunning), "{refused:?}");
        restore(&standing).await;

        let user = standing.record.supervisor_user;
        forge(&standing, |record| record.supervisor_user += 1);
        let (late, now, _) = attempt(&standing, &before).await;
        let told = |problem: &DiscoveryProblem| matches!(problem, DiscoveryProblem::Owner { owner, recorded } if *owner == user && *recorded == user + 1);
        assert!(matches!(&late, AdoptError::Problem(problem) if told(problem)), "{late:?}");
        assert!(told(now.problem.as_ref().unwrap()), "{now:?}");
        restore(&standing).await;

        // As a supervisor that was taken over would have to write it.
        chown(standing.directory().join(RECORD), Some(user), None).unwrap();
        let (late, now, _) = attempt(&standing, &before).await;
        let told = |problem: &DiscoveryProblem| matches!(problem, DiscoveryProblem::Record(RecordError::Forged { author }) if *author == user);
        assert!(matches!(&late, AdoptError::Problem(problem) if told(problem)), "{late:?}");
        assert!(told(now.problem.as_ref().unwrap()), "{now:?}");
        restore(&standing).await;
    });
}

//= promises.adoption.forged-records-reused-process
#[test]
fn a_process_that_was_written_down_is_not_taken_for_the_supervisor_by_its_number() {
    run(async {
        let standing = Standing::start();
        let before = standing.find();
        let (us, them) = (std::process::id(), standing.record.shim_pid);

        // The number was given to another.
        forge(&standing, |record| record.shim_pid = us);
        let (late, _, refused) = attempt(&standing, &before).await;
        for error in [late, refused] {
            assert!(matches!(error, AdoptError::Process { pid } if pid == us), "{error:?}");
        }
        forge(&standing, |record| record.shim_began -= 1);
        let (late, _, refused) = attempt(&standing, &before).await;
        for error in [late, refused] {
            assert!(matches!(error, AdoptError::Process { pid } if pid == them), "{error:?}");
        }
        assert_eq!(standing.find().record.unwrap().shim_handle().map(drop), None, "nobody is signalled by that number");
        restore(&standing).await;

        // A process that is there, and not the one that listens.
        forge(&standing, |record| (record.shim_pid, record.shim_began) = (us, began(us).unwrap()));
        let (late, _, refused) = attempt(&standing, &before).await;
        for error in [late, refused] {
            let told = matches!(error, AdoptError::PeerProcess { found, recorded } if (found, recorded) == (them, us));
            assert!(told, "{error:?}");
        }
        restore(&standing).await;

        // Whoever holds a lock of another boot is not the supervisor that is written down.
        forge(&standing, |record| record.boot_id = "another".to_owned());
        let (late, now, refused) = attempt(&standing, &before).await;
        assert_eq!(now.life, Liveness::Starting);
        for error in [late, refused] {
            assert!(matches!(error, AdoptError::NotRunning), "{error:?}");
        }
        restore(&standing).await;
    });
}

/// Serves the socket of a sandbox in place of its supervisor, and says what it is told to say.
fn pose(standing: &Standing, hello: Hello) -> tokio::task::JoinHandle<()> {
    let listener = UnixListener::bind(standing.directory().join(SHIM_SOCKET)).unwrap();
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
fn whoever_serves_the_socket_in_place_of_the_supervisor_is_found_out() {
    run(async {
        let standing = Standing::start();
        let before = standing.find();
        let hello = standing.adopt().await.hello().clone();
        let (us, them) = (std::process::id(), standing.record.shim_pid);
        let (socket, aside) = (standing.directory().join(SHIM_SOCKET), standing.directory().join("aside"));
        let lie = |what: IdentityField| {
            let (another, mut hello) = ("another".to_owned(), Hello { shim_pid: us, ..hello.clone() });
            match what {
                IdentityField::Name => hello.name = another,
                IdentityField::Incarnation => hello.incarnation = another,
                IdentityField::BootId => hello.boot_id = another,
                IdentityField::Process => hello.shim_pid = them,
            }
            hello
        };

        std::fs::rename(&socket, &aside).unwrap();
        let impostor = pose(&standing, hello.clone());
        let (late, now, refused) = attempt(&standing, &before).await;
        assert_eq!(now.life, Liveness::Running, "all that is written is true");
        for error in [late, refused] {
            let told = matches!(error, AdoptError::PeerProcess { found, recorded } if (found, recorded) == (us, them));
            assert!(told, "{error:?}");
        }
        impostor.abort();

        // Even one that is in the record has to say of itself what is written there.
        forge(&standing, |record| (record.shim_pid, record.shim_began) = (us, began(us).unwrap()));
        for claim in [IdentityField::Name, IdentityField::Incarnation, IdentityField::BootId, IdentityField::Process] {
            std::fs::remove_file(&socket).unwrap();
            let impostor = pose(&standing, lie(claim));
            let refused = standing.find().connect().await.expect_err("a liar");
            assert!(matches!(refused, AdoptError::Claims { what, .. } if what == claim), "{refused:?}");
            impostor.abort();
        }
        std::fs::remove_file(&socket).unwrap();
        // The first process of a sandbox is a child of whoever supervises it.
        let posed = pose(&standing, Hello { shim_pid: us, ..hello.clone() });
        let refused = standing.find().connect().await.expect_err("another's sandbox");
        assert!(matches!(refused, AdoptError::Claims { what: IdentityField::Process, .. }), "{refused:?}");
        posed.abort();
        std::fs::remove_file(&socket).unwrap();
        let honest = pose(&standing, Hello { shim_pid: us, pid: standing.owner(), ..hello.clone() });
        standing.find().connect().await.expect("only its words were wrong");
        honest.abort();

        std::fs::rename(&aside, &socket).unwrap();
        restore(&standing).await;
    });
}

//= promises.adoption.forged-records-reused-process
#[test]
fn a_directory_of_another_or_behind_a_link_is_not_looked_into_and_an_open_one_is() {
    run(async {
        let standing = Standing::start();
        let before = standing.find();
        let directory = standing.directory();
        let refused = async |what: &str| {
            let late = before.connect().await.expect_err(what);
            assert!(matches!(&late, AdoptError::Found(DiscoveryError::Open(path)) if *path == directory), "{late:?}");
            let now = find(standing.home.path(), NAME);
            assert!(matches!(&now, Err(DiscoveryError::Open(path)) if *path == directory), "{now:?}");
            assert!(sandboxes(standing.home.path()).unwrap().is_empty(), "{what}");
            assert_eq!(carrel_shim::sweep(&standing.sandboxes()).unwrap(), 0, "{what}");
        };
        let supervisor = standing.record.supervisor_user;
        chown(&directory, Some(1000), None).unwrap();
        refused("somebody else's").await;
        chown(&directory, Some(supervisor), None).unwrap();
        restore(&standing).await;

        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        let now = standing.find();
        assert!(matches!((&now.problem, &now.life), (Some(DiscoveryProblem::Open), Liveness::Running)), "{now:?}");
        assert_eq!(sandboxes(standing.home.path()).unwrap().len(), 1, "it does not hide itself");
        before.connect().await.expect("nor does it get rid of its supervision");
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
        restore(&standing).await;

        let elsewhere = standing.home.path().join("elsewhere");
        std::fs::rename(&directory, &elsewhere).unwrap();
        symlink(&elsewhere, &directory).unwrap();
        refused("a link").await;
        std::fs::remove_file(&directory).unwrap();
        std::fs::rename(&elsewhere, &directory).unwrap();
        restore(&standing).await;

        // Another supervisor's: it is not hidden, and not believed.
        chown(&directory, Some(supervisor + 1), None).unwrap();
        let (late, now, _) = attempt(&standing, &before).await;
        assert!(matches!(late, AdoptError::Problem(DiscoveryProblem::Owner { .. })), "{late:?}");
        assert!(matches!(now.problem, Some(DiscoveryProblem::Owner { .. })), "{now:?}");
        chown(&directory, Some(supervisor), None).unwrap();
        restore(&standing).await;
    });
}

#[test]
fn one_that_took_the_name_meanwhile_is_not_taken_for_the_one_that_was_found() {
    run(async {
        let mut standing = Standing::start();
        let before = standing.find();
        standing.bereave();
        standing.orphan().await;
        assert!(carrel_shim::collect(&standing.directory()).unwrap());
        let refused = before.connect().await.expect_err("it is gone");
        assert!(matches!(refused, AdoptError::NotRunning), "{refused:?}");
        let mut next = OwnedSandbox::start(&programs(), &create(standing.home.path(), NAME)).await.unwrap();
        let refused = before.connect().await.expect_err("it is another");
        assert!(matches!(refused, AdoptError::Replaced), "{refused:?}");
        standing.find().connect().await.expect("whoever looks now finds the other");
        next.stop(std::time::Duration::ZERO).await.unwrap();
    });
}

//= promises.adoption.sandbox-another-boot-host
#[test]
fn one_that_was_made_before_this_host_booted_is_dead_and_swept_completely() {
    run(async {
        let mut standing = Standing::start();
        standing.bereave();
        standing.orphan().await;
        forge(&standing, |record| record.boot_id = "another".to_owned());
        let found = standing.find();
        assert!(found.problem.is_none() && matches!(found.life, Liveness::Dead { rebooted: true, .. }), "{found:?}");
        assert!(matches!(found.connect().await, Err(AdoptError::NotRunning)));
        assert_eq!(carrel_shim::sweep(&standing.sandboxes()).unwrap(), 1);
        assert_eq!(left::of(standing.create()), [standing.directory().display().to_string()]);
        let Liveness::Dead { facts, rebooted: true } = standing.find().life else { panic!("{:?}", standing.find()) };
        let last = facts.last().unwrap();
        assert_eq!((last.kind, last.reason), (FactKind::Ended, Some(EndReason::SupervisorLost)));
        assert!(carrel_shim::collect(&standing.directory()).unwrap());
        assert_eq!(left::of(standing.create()), Vec::<String>::new());
    });
}

//= promises.adoption.sandbox-another-boot-host
#[test]
fn an_ephemeral_one_that_was_made_before_this_host_booted_is_removed_whole() {
    run(async {
        let home = home();
        let create = create(home.path(), NAME);
        let mut owned = OwnedSandbox::start(&programs(), &create).await.unwrap();
        let mut record = find(home.path(), NAME).unwrap().unwrap().record.unwrap();
        let shim = record.shim_handle().unwrap();
        rustix::process::pidfd_send_signal(&shim, Signal::KILL).unwrap();
        end(&shim).await;
        assert!(owned.ended().await.is_err());
        record.boot_id = "another".to_owned();
        record.write(open(&create.directory.0)).unwrap();
        assert!(matches!(find(home.path(), NAME).unwrap().unwrap().life, Liveness::Dead { rebooted: true, .. }));
        assert_eq!(carrel_shim::sweep(create.directory.0.parent().unwrap()).unwrap(), 1);
        assert_eq!(left::of(&create), Vec::<String>::new());
    });
}

#[test]
fn one_whose_lock_was_taken_away_is_swept_too() {
    run(async {
        let mut standing = Standing::start();
        standing.bereave();
        standing.orphan().await;
        std::fs::remove_file(standing.directory().join(LOCK)).unwrap();
        assert!(sandboxes(standing.home.path()).unwrap().is_empty());
        assert_eq!(carrel_shim::sweep(&standing.sandboxes()).unwrap(), 1);
        assert_eq!(left::of(standing.create()), [standing.directory().display().to_string()]);
        assert!(carrel_shim::collect(&standing.directory()).unwrap());
        assert_eq!(left::of(standing.create()), Vec::<String>::new());
    });
}

#[test]
fn the_group_of_one_whose_directory_says_nothing_any_more_is_found_by_its_owner() {
    run(async {
        let mut standing = Standing::start();
        let ids = standing.create().ids.0.clone();
        carrel_shim::sweep_groups(&ids).unwrap();
        assert_eq!(standing.find().life, Liveness::Running, "it has its range");
        standing.bereave();
        standing.orphan().await;
        std::fs::remove_file(standing.directory().join(INCARNATION)).unwrap();
        carrel_shim::sweep(&standing.sandboxes()).unwrap();
        let groups = || left::of(standing.create()).into_iter().filter(|path| path.contains("/cgroup/")).count();
        assert!(groups() > 0, "nobody knows whose it is");
        left::until_unmounted(standing.create()).await;
        // Until the first process of this host has buried the dead, they count as somebody who cannot be seen.
        while groups() > 0 {
            carrel_shim::sweep_groups(&ids).unwrap();
            tokio::task::yield_now().await;
        }
        std::fs::write(standing.directory().join(INCARNATION), &standing.record.incarnation).unwrap();
    });
}
