//! Process groups of jobs: when the end of a job is reported, all processes of its group are dead.

use std::time::Duration;

use carrel_shim_client::messages::{JobCommand, OutcomeKind};
use carrel_tests::{TestSandbox, outcome_of, read_until, run, script};

/// A shell that ignores SIGTERM, with a child in its group that ignores it too.
const STUBBORN: &str = "trap '' TERM; sleep 1000 & echo partial; echo out >&2; wait; wait";
/// A shell that exits on SIGTERM and leaves such a child behind.
const LEAVES_CHILD: &str = "sh -c 'trap \"\" TERM; echo partial; exec sleep 1000' & wait";

//= promises.jobs.processes-group-live-cancel
#[test]
fn the_whole_process_group_of_a_cancelled_job_is_dead_when_the_cancel_returns() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let alone = sandbox.processes();
        assert_eq!(alone, [sandbox.owned.pid()]);
        let cases = [
            (STUBBORN, Duration::ZERO, Some(libc::SIGKILL)),
            (STUBBORN, Duration::from_millis(100), Some(libc::SIGKILL)),
            (LEAVES_CHILD, Duration::from_secs(30), Some(libc::SIGTERM)),
            // It exits by itself on SIGTERM, with a code of its own.
            ("trap 'echo bye; exit 7' TERM; echo partial; while :; do sleep 0.01; done", Duration::from_secs(30), None),
        ];
        for (number, (text, grace, signal)) in cases.into_iter().enumerate() {
            let job = format!("job-{number}");
            let mut follow = sandbox.follow(&job, &script(text)).await;
            read_until(&mut follow, "partial\n").await;
            assert!(sandbox.processes().len() > 1, "the job has processes");
            let mut shim = sandbox.shim().await;
            let info = shim.cancel(&job, grace).await.unwrap();
            assert_eq!(sandbox.processes(), alone, "{text}");
            let code = if signal.is_none() { Some(7) } else { None };
            assert_eq!(outcome_of(&info), (OutcomeKind::Cancelled, code, signal), "{text}");
            let output = std::fs::read_to_string(&info.stdout.path.unwrap().0).unwrap();
            assert!(output.starts_with("partial\n"), "{output}");
            assert_eq!(output.contains("bye"), signal.is_none());
            // The outcome of a job that has ended does not change.
            assert_eq!(shim.cancel(&job, Duration::ZERO).await.unwrap().outcome, info.outcome);
        }
    });
}

//= promises.jobs.processes-group-live-cancel
#[test]
fn a_process_group_whose_leader_has_exited_can_be_cancelled() {
    run(async {
        let sandbox = TestSandbox::start().await;
        // The leader has exited; its child holds the output open and writes to it.
        let text = "sh -c 'trap \"\" TERM; while :; do echo chatter; sleep 0.01; done' & echo first; exit 0";
        let mut follow = sandbox.follow("left", &script(text)).await;
        read_until(&mut follow, "first\n").await;
        read_until(&mut follow, "chatter\n").await;
        let info = sandbox.shim().await.cancel("left", Duration::ZERO).await.unwrap();
        assert_eq!(info.outcome.as_ref().map(|outcome| outcome.kind), Some(OutcomeKind::Cancelled));
        assert_eq!(sandbox.processes(), [sandbox.owned.pid()]);
    });
}

//= promises.jobs.processes-group-live-cancel
#[test]
fn the_whole_process_group_of_a_job_that_timed_out_is_dead_and_its_output_is_kept() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        for (number, text) in [STUBBORN, LEAVES_CHILD].into_iter().enumerate() {
            let mut time = 300;
            let (info, output) = loop {
                let job = format!("job-{number}-{time}");
                let command = JobCommand { timeout_ms: Some(time), ..script(text) };
                shim.start(&job, &command).await.unwrap();
                let info = shim.wait(&job).await.unwrap();
                assert_eq!(sandbox.processes(), [sandbox.owned.pid()]);
                let output = std::fs::read(&info.stdout.path.as_ref().unwrap().0).unwrap();
                // A job that timed out before it wrote anything proves nothing: the next one has more time.
                if !output.is_empty() {
                    break (info, output);
                }
                time *= 5;
            };
            let signal = if text == STUBBORN { libc::SIGKILL } else { libc::SIGTERM };
            assert_eq!(outcome_of(&info), (OutcomeKind::TimedOut, None, Some(signal)));
            assert_eq!(output, b"partial\n");
            assert!(info.ended_ms.unwrap() >= info.started_ms + time);
        }
        // A job that exits before its timeout.
        let command = JobCommand { timeout_ms: Some(30_000), ..script("exit 4") };
        shim.start("quick", &command).await.unwrap();
        assert_eq!(outcome_of(&shim.wait("quick").await.unwrap()), (OutcomeKind::Exited, Some(4), None));
    });
}

//= promises.jobs.process-left-group-job
#[test]
fn a_process_that_leaves_the_group_outlives_the_job_but_not_the_sandbox() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        let text = "setsid sh -c 'echo away >/tmp/away; exec sleep 1000' >/dev/null 2>&1 & echo up; exec sleep 1000";
        let mut follow = sandbox.follow("escape", &script(text)).await;
        read_until(&mut follow, "up").await;
        sandbox.job("away", &script("while [ ! -s /tmp/away ]; do :; done")).await;
        let info = sandbox.shim().await.cancel("escape", Duration::ZERO).await.unwrap();
        assert_eq!(outcome_of(&info), (OutcomeKind::Cancelled, None, Some(libc::SIGKILL)));
        let left: Vec<u32> = sandbox.processes().into_iter().filter(|pid| *pid != sandbox.owned.pid()).collect();
        let [escaped] = left[..] else { panic!("{left:?}") };
        assert_eq!(std::fs::read(format!("/proc/{escaped}/cmdline")).unwrap(), b"sleep\x001000\0");
        let process_start_time = carrel_shim_client::process_start_time(escaped);
        sandbox.owned.stop(Duration::ZERO).await.unwrap();
        assert_ne!(
            carrel_shim_client::process_start_time(escaped),
            process_start_time,
            "it is dead, or another process has its pid"
        );
        assert_eq!((sandbox.processes(), sandbox.traces()), (vec![], vec![]));
    });
}

#[test]
fn signals_reach_the_whole_process_group_and_invalid_numbers_are_refused() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let text = "trap 'echo one' USR1; sh -c \"trap 'echo two; exit' USR1; echo up; while :; do sleep 0.01; done\" & wait; wait; exit 5";
        let mut follow = sandbox.follow("signals", &script(text)).await;
        read_until(&mut follow, "up").await;
        let mut shim = sandbox.shim().await;
        for wrong in [0, -1, 65, i32::MIN] {
            let refused = shim.signal("signals", wrong).await.unwrap_err();
            assert_eq!(refused.code(), Some(carrel_shim_client::messages::FailureCode::InvalidRequest));
        }
        shim.signal("signals", libc::SIGUSR1).await.unwrap();
        assert_eq!(outcome_of(&shim.wait("signals").await.unwrap()), (OutcomeKind::Exited, Some(5), None));
        let text = shim.read("signals", carrel_shim_client::messages::StreamName::Stdout, 0, 100).await.unwrap().data;
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("one\n") && text.contains("two\n"), "{text}");
    });
}
