//! A supervisor that receives SIGTERM: the host shuts down, and its sandbox ends in order.

use std::path::{Path, PathBuf};

use carrel_shim_client::Journal;
use carrel_shim_client::messages::{EndReason, FactKind, OutcomeKind, PersistentDisk};
use carrel_tests::{Sandbox, ending, run, script, until};
use rustix::process::{Pid, Signal};

/// Every file of that name below a directory.
fn named(directory: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(named(&path, name));
        } else if path.ends_with(name) {
            found.push(path);
        }
    }
    found
}

fn terminate(sandbox: &Sandbox) {
    let pid = Pid::from_raw(i32::try_from(sandbox.owned.shim_pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
}

#[test]
fn a_supervisor_that_is_terminated_ends_its_sandbox_in_order_and_the_journal_says_why() {
    run(async {
        let disks = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        let mut sandbox = Sandbox::with(|create| {
            create.lasting = true;
            let disk = PersistentDisk::at(disks.path().join("disk"));
            create.kept_disk = Some(PersistentDisk { unlimited: Some(true), ..disk });
        })
        .await;
        let text = "trap 'sleep 1; echo saved >/saved-state && sync /saved-state; exit 3' TERM; echo up; \
                    while :; do sleep 0.01; done";
        let mut follow = sandbox.follow("saves", &script(text)).await;
        until(&mut follow, "up").await;
        terminate(&sandbox);
        // Whoever sends it once more does not take the time away that the sandbox has.
        terminate(&sandbox);
        let ended = sandbox.owned.ended().await.unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::HostShutdown, None), "{ended:?}");
        assert_eq!(ending(&watch_end(follow).await), (OutcomeKind::Exited, Some(3), None));
        let files = named(disks.path(), "saved-state");
        assert_eq!(files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect::<Vec<_>>(), ["saved\n"]);

        let directory = std::fs::File::open(&sandbox.create.directory.0).unwrap();
        let facts = Journal::load(&directory).unwrap().facts;
        let told = |kind| facts.iter().filter(|fact| fact.kind == kind).map(|fact| fact.reason).collect::<Vec<_>>();
        assert_eq!(told(FactKind::StopAsked), [Some(EndReason::HostShutdown)]);
        assert_eq!(told(FactKind::Ended), [Some(EndReason::HostShutdown)]);
        let status = sandbox.owned.leave().unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(carrel_shim::collect(&sandbox.create.directory.0).unwrap());
    });
}

/// What a follower is told at the end.
async fn watch_end(mut follow: carrel_shim_client::Follow) -> carrel_shim_client::messages::JobInfo {
    loop {
        match follow.next().await.unwrap().expect("the end comes last") {
            carrel_shim_client::FollowEvent::Ended(info) => return info,
            _other => {}
        }
    }
}
