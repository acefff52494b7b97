//! Jobs of a sandbox that is paused: they stand still, and so do their clocks.

use std::time::Duration;

use carrel_shim_client::ShimError;
use carrel_shim_client::messages::{EndReason, FactKind, JobCommand, OutcomeKind, ShimState};
use carrel_tests::{Sandbox, ending, run, script, until};
use rustix::process::{Pid, Signal};

async fn kinds(sandbox: &Sandbox) -> Vec<FactKind> {
    sandbox.shim().await.journal(1).await.unwrap().iter().map(|fact| fact.kind).collect()
}

//= promises.jobs.time-sandbox-paused
#[test]
fn pausing_and_continuing_are_facts_and_jobs_stand_still_meanwhile() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        let mut follow = sandbox.follow("ticks", &script("while :; do echo tick; done")).await;
        until(&mut follow, "tick").await;
        shim.pause().await.unwrap();
        shim.pause().await.unwrap();
        assert_eq!(shim.status().await.unwrap().state, ShimState::Paused);
        // What is started now begins when it continues.
        shim.start("later", &script("echo later; exit 3")).await.unwrap();
        let before = shim.job("ticks").await.unwrap().stdout.length;
        for _ in 0..1000 {
            shim.status().await.unwrap();
        }
        let after = shim.job("ticks").await.unwrap().stdout.length;
        // What was on its way when it stopped may still have arrived.
        assert!(after - before < 4 << 20, "{before} to {after}");
        assert!(shim.job("later").await.unwrap().outcome.is_none());
        shim.resume().await.unwrap();
        shim.resume().await.unwrap();
        assert_eq!(ending(&shim.wait("later").await.unwrap()), (OutcomeKind::Exited, Some(3), None));
        shim.cancel("ticks", Duration::ZERO).await.unwrap();
        let told: Vec<_> = kinds(&sandbox).await.into_iter().filter(|kind| *kind != FactKind::JobEnded).collect();
        use FactKind::{Claimed, JobStarted, Paused, Resumed, Started};
        assert_eq!(told, [Claimed, Started, JobStarted, Paused, JobStarted, Resumed]);
    });
}

//= promises.jobs.time-sandbox-paused
#[test]
fn time_in_which_the_sandbox_is_paused_is_not_counted() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        let command =
            JobCommand { timeout_ms: Some(4000), ..script("echo up; while [ ! -e /tmp/go ]; do :; done; exit 2") };
        let mut follow = sandbox.follow("timed", &command).await;
        until(&mut follow, "up").await;
        shim.pause().await.unwrap();
        // A job of another sandbox measures the time that passes here.
        let clock = Sandbox::start().await;
        let timed = JobCommand { timeout_ms: Some(4500), ..script("exec sleep 1000") };
        assert_eq!(ending(&clock.job("clock", &timed).await.info).0, OutcomeKind::TimedOut);
        assert!(shim.job("timed").await.unwrap().outcome.is_none());
        shim.resume().await.unwrap();
        sandbox.job("go", &script("touch /tmp/go")).await;
        assert_eq!(ending(&shim.wait("timed").await.unwrap()), (OutcomeKind::Exited, Some(2), None));
        // And when it continues, time goes on.
        let command = JobCommand { timeout_ms: Some(200), ..script("exec sleep 1000") };
        shim.pause().await.unwrap();
        shim.start("after", &command).await.unwrap();
        shim.resume().await.unwrap();
        assert_eq!(ending(&shim.wait("after").await.unwrap()).0, OutcomeKind::TimedOut);
    });
}

#[test]
fn a_cancelled_job_of_a_paused_sandbox_ends_when_it_continues() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut follow = sandbox.follow("job", &script("echo up; exec sleep 1000")).await;
        until(&mut follow, "up").await;
        let (mut shim, mut other) = (sandbox.shim().await, sandbox.shim().await);
        shim.pause().await.unwrap();
        let cancel = tokio::spawn(async move { other.cancel("job", Duration::ZERO).await });
        while shim.job("job").await.unwrap().state != carrel_shim_client::messages::JobState::Ending {}
        assert!(!cancel.is_finished());
        shim.resume().await.unwrap();
        assert_eq!(ending(&cancel.await.unwrap().unwrap()).0, OutcomeKind::Cancelled);
    });
}

//= promises.jobs.time-sandbox-paused
#[test]
fn a_paused_sandbox_is_stopped_and_its_jobs_end_with_it() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut follow = sandbox.follow("job", &script("echo up; exec sleep 1000")).await;
        until(&mut follow, "up").await;
        let mut shim = sandbox.shim().await;
        let mut subscription = sandbox.shim().await.subscribe(1).await.unwrap();
        shim.pause().await.unwrap();
        let ended = shim.stop(Duration::from_secs(20)).await.unwrap();
        assert_eq!(ended.reason, EndReason::Stopped);
        let mut kinds = Vec::new();
        while let Some(facts) = subscription.next().await.unwrap() {
            kinds.extend(facts.iter().map(|fact| fact.kind));
        }
        use FactKind::{Claimed, Ended, GuestExited, JobEnded, JobStarted, Paused, Resumed, Started, StopAsked};
        let expected = [Claimed, Started, JobStarted, Paused, StopAsked, Resumed, JobEnded, GuestExited, Ended];
        assert_eq!(kinds, expected);
        assert!(matches!(shim.status().await, Err(ShimError::Ended(_))));
        assert_eq!(sandbox.traces(), Vec::<String>::new());
    });
}

//= promises.jobs.time-sandbox-paused
#[test]
fn a_guest_that_is_killed_while_it_is_paused_is_noticed() {
    run(async {
        let mut sandbox = Sandbox::start().await;
        let mut follow = sandbox.follow("job", &script("echo up; exec sleep 1000")).await;
        until(&mut follow, "up").await;
        let mut shim = sandbox.shim().await;
        shim.pause().await.unwrap();
        let guest = Pid::from_raw(i32::try_from(sandbox.owned.pid()).unwrap()).unwrap();
        rustix::process::kill_process(guest, Signal::KILL).unwrap();
        // Some kernels end a process that stands still, others wait until it goes on.
        match shim.resume().await {
            Ok(()) | Err(ShimError::Ended(_) | ShimError::Gone) => {}
            Err(error) => panic!("{error}"),
        }
        let ended = sandbox.owned.ended().await.unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::GuestExit, Some(libc::SIGKILL)));
        assert_eq!(sandbox.traces(), Vec::<String>::new());
    });
}
