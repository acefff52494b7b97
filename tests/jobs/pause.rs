//! Jobs of a paused sandbox: their processes and their timeouts are suspended.

use std::time::Duration;

use carrel_shim_client::ShimError;
use carrel_shim_client::messages::{EndReason, FactKind, JobCommand, OutcomeKind, ShimState};
use carrel_tests::{TestSandbox, outcome_of, read_until, run, script};
use rustix::process::{Pid, Signal};

async fn kinds(sandbox: &TestSandbox) -> Vec<FactKind> {
    sandbox.shim().await.journal(1).await.unwrap().iter().map(|fact| fact.kind).collect()
}

//= promises.jobs.time-sandbox-paused
#[test]
fn pause_and_resume_are_recorded_and_jobs_are_suspended_in_between() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        let mut follow = sandbox.follow("ticks", &script("while :; do echo tick; done")).await;
        read_until(&mut follow, "tick").await;
        shim.pause().await.unwrap();
        shim.pause().await.unwrap();
        assert_eq!(shim.status().await.unwrap().state, ShimState::Paused);
        // A job that is started now runs after the resume.
        shim.start("later", &script("echo later; exit 3")).await.unwrap();
        let before = shim.job("ticks").await.unwrap().stdout.length;
        for _ in 0..1000 {
            shim.status().await.unwrap();
        }
        let after = shim.job("ticks").await.unwrap().stdout.length;
        // Output in transit at the time of the pause may still arrive.
        assert!(after - before < 4 << 20, "{before} to {after}");
        assert!(shim.job("later").await.unwrap().outcome.is_none());
        shim.resume().await.unwrap();
        shim.resume().await.unwrap();
        assert_eq!(outcome_of(&shim.wait("later").await.unwrap()), (OutcomeKind::Exited, Some(3), None));
        shim.cancel("ticks", Duration::ZERO).await.unwrap();
        let recorded: Vec<_> = kinds(&sandbox).await.into_iter().filter(|kind| *kind != FactKind::JobEnded).collect();
        use FactKind::{Claimed, JobStarted, Paused, Resumed, Started};
        assert_eq!(recorded, [Claimed, Started, JobStarted, Paused, JobStarted, Resumed]);
    });
}

//= promises.jobs.time-sandbox-paused
#[test]
fn the_timeout_of_a_job_does_not_include_the_time_of_a_pause() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        let command =
            JobCommand { timeout_ms: Some(4000), ..script("echo up; while [ ! -e /tmp/go ]; do :; done; exit 2") };
        let mut follow = sandbox.follow("timed", &command).await;
        read_until(&mut follow, "up").await;
        shim.pause().await.unwrap();
        // A job of another sandbox measures the time.
        let clock = TestSandbox::start().await;
        let timed = JobCommand { timeout_ms: Some(4500), ..script("exec sleep 1000") };
        assert_eq!(outcome_of(&clock.job("clock", &timed).await.info).0, OutcomeKind::TimedOut);
        assert!(shim.job("timed").await.unwrap().outcome.is_none());
        shim.resume().await.unwrap();
        sandbox.job("go", &script("touch /tmp/go")).await;
        assert_eq!(outcome_of(&shim.wait("timed").await.unwrap()), (OutcomeKind::Exited, Some(2), None));
        // After the resume the timeout elapses.
        let command = JobCommand { timeout_ms: Some(200), ..script("exec sleep 1000") };
        shim.pause().await.unwrap();
        shim.start("after", &command).await.unwrap();
        shim.resume().await.unwrap();
        assert_eq!(outcome_of(&shim.wait("after").await.unwrap()).0, OutcomeKind::TimedOut);
    });
}

#[test]
fn a_cancelled_job_of_a_paused_sandbox_ends_after_the_resume() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut follow = sandbox.follow("job", &script("echo up; exec sleep 1000")).await;
        read_until(&mut follow, "up").await;
        let (mut shim, mut other) = (sandbox.shim().await, sandbox.shim().await);
        shim.pause().await.unwrap();
        let cancel = tokio::spawn(async move { other.cancel("job", Duration::ZERO).await });
        while shim.job("job").await.unwrap().state != carrel_shim_client::messages::JobState::Ending {}
        assert!(!cancel.is_finished());
        shim.resume().await.unwrap();
        assert_eq!(outcome_of(&cancel.await.unwrap().unwrap()).0, OutcomeKind::Cancelled);
    });
}

//= promises.jobs.time-sandbox-paused
#[test]
fn a_paused_sandbox_can_be_stopped_and_its_jobs_end_with_it() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut follow = sandbox.follow("job", &script("echo up; exec sleep 1000")).await;
        read_until(&mut follow, "up").await;
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
fn the_death_of_a_paused_guest_is_detected() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        let mut follow = sandbox.follow("job", &script("echo up; exec sleep 1000")).await;
        read_until(&mut follow, "up").await;
        let mut shim = sandbox.shim().await;
        shim.pause().await.unwrap();
        let guest = Pid::from_raw(i32::try_from(sandbox.owned.pid()).unwrap()).unwrap();
        rustix::process::kill_process(guest, Signal::KILL).unwrap();
        // Some kernels kill a frozen process at once, others when it is thawed.
        match shim.resume().await {
            Ok(()) | Err(ShimError::Ended(_) | ShimError::Gone) => {}
            Err(error) => panic!("{error}"),
        }
        let ended = sandbox.owned.ended().await.unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::GuestExit, Some(libc::SIGKILL)));
        assert_eq!(sandbox.traces(), Vec::<String>::new());
    });
}
