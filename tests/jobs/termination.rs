//! SIGTERM to a shim: the host shuts down, and the shim stops its sandbox in order.

use std::path::{Path, PathBuf};

use carrel_shim_client::Journal;
use carrel_shim_client::messages::{EndReason, FactKind, OutcomeKind, PersistentDisk};
use carrel_tests::{TestSandbox, outcome_of, read_until, run, script};
use rustix::process::{Pid, Signal};

/// All files with a name below a directory.
fn find_files(directory: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(find_files(&path, name));
        } else if path.ends_with(name) {
            found.push(path);
        }
    }
    found
}

fn signal_shim(sandbox: &TestSandbox, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(sandbox.owned.shim_pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn terminate(sandbox: &TestSandbox) {
    signal_shim(sandbox, Signal::TERM);
}

#[test]
fn stray_signals_do_not_end_a_shim() {
    run(async {
        let sandbox = TestSandbox::with(|_| {}).await;
        // It blocks the signals once it serves.
        let mut follow = sandbox.follow("before", &script("echo alive")).await;
        read_until(&mut follow, "alive").await;
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM] {
            signal_shim(&sandbox, signal);
            // The signal was delivered before the shim reads the request.
            let mut follow = sandbox.follow(&format!("after-{}", signal.as_raw()), &script("echo alive")).await;
            read_until(&mut follow, "alive").await;
        }
    });
}

#[test]
fn a_shim_that_receives_sigterm_stops_its_sandbox_in_order_and_records_the_reason() {
    run(async {
        let disks = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        let mut sandbox = TestSandbox::with(|create| {
            create.lasting = true;
            let disk = PersistentDisk::at(disks.path().join("disk"));
            create.kept_disk = Some(PersistentDisk { unlimited: Some(true), ..disk });
        })
        .await;
        let text = "trap 'sleep 1; echo saved >/saved-state && sync /saved-state; exit 3' TERM; echo up; \
                    while :; do sleep 0.01; done";
        let mut follow = sandbox.follow("saves", &script(text)).await;
        read_until(&mut follow, "up").await;
        terminate(&sandbox);
        // A second signal does not shorten the grace period.
        terminate(&sandbox);
        let ended = sandbox.owned.ended().await.unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::HostShutdown, None), "{ended:?}");
        assert_eq!(outcome_of(&wait_for_end(follow).await), (OutcomeKind::Exited, Some(3), None));
        let files = find_files(disks.path(), "saved-state");
        assert_eq!(files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect::<Vec<_>>(), ["saved\n"]);

        let directory = std::fs::File::open(&sandbox.create.directory.0).unwrap();
        let facts = Journal::load(&directory).unwrap().facts;
        let reasons = |kind| facts.iter().filter(|fact| fact.kind == kind).map(|fact| fact.reason).collect::<Vec<_>>();
        assert_eq!(reasons(FactKind::StopAsked), [Some(EndReason::HostShutdown)]);
        assert_eq!(reasons(FactKind::Ended), [Some(EndReason::HostShutdown)]);
        let status = sandbox.owned.detach().unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(carrel_shim::collect(&sandbox.create.directory.0).unwrap());
    });
}

/// Reads all events. Returns the last one, the end of the job.
async fn wait_for_end(mut follow: carrel_shim_client::Follow) -> carrel_shim_client::messages::JobInfo {
    loop {
        match follow.next().await.unwrap().expect("the last event is the end of the job") {
            carrel_shim_client::FollowEvent::Ended(info) => return info,
            _other => {}
        }
    }
}
