//! The end of a job is the end of its process group: when it is told, all of it is dead.

use std::time::Duration;

use carrel_shim_client::messages::{JobCommand, OutcomeKind};
use carrel_tests::{Sandbox, ending, run, script, until};

/// A shell that obeys no wish to end, with a child in its group that does not either.
const STUBBORN: &str = "trap '' TERM; sleep 1000 & echo partial; echo out >&2; wait; wait";
/// A shell that goes when it is asked to, and leaves such a child behind.
const LEAVES_ONE: &str = "sh -c 'trap \"\" TERM; echo partial; exec sleep 1000' & wait";

//= promises.jobs.processes-group-live-cancel
#[test]
fn a_cancelled_job_is_dead_with_its_whole_group_when_that_is_told() {
    run(async {
        let sandbox = Sandbox::start().await;
        let alone = sandbox.processes();
        assert_eq!(alone, [sandbox.owned.pid()]);
        let cases = [
            (STUBBORN, Duration::ZERO, Some(libc::SIGKILL)),
            (STUBBORN, Duration::from_millis(100), Some(libc::SIGKILL)),
            (LEAVES_ONE, Duration::from_secs(30), Some(libc::SIGTERM)),
            // It ends by itself, in order, and says so.
            ("trap 'echo bye; exit 7' TERM; echo partial; while :; do sleep 0.01; done", Duration::from_secs(30), None),
        ];
        for (number, (text, grace, signal)) in cases.into_iter().enumerate() {
            let job = format!("job-{number}");
            let mut follow = sandbox.follow(&job, &script(text)).await;
            until(&mut follow, "partial\n").await;
            assert!(sandbox.processes().len() > 1, "somebody is there to be ended");
            let mut shim = sandbox.shim().await;
            let info = shim.cancel(&job, grace).await.unwrap();
            assert_eq!(sandbox.processes(), alone, "{text}");
            let code = if signal.is_none() { Some(7) } else { None };
            assert_eq!(ending(&info), (OutcomeKind::Cancelled, code, signal), "{text}");
            let output = std::fs::read_to_string(&info.stdout.path.unwrap().0).unwrap();
            assert!(output.starts_with("partial\n"), "{output}");
            assert_eq!(output.contains("bye"), signal.is_none());
            // One that has ended stays as it ended.
            assert_eq!(shim.cancel(&job, Duration::ZERO).await.unwrap().outcome, info.outcome);
        }
    });
}

//= promises.jobs.processes-group-live-cancel
#[test]
fn a_group_whose_first_process_has_ended_is_cancelled_all_the_same() {
    run(async {
        let sandbox = Sandbox::start().await;
        // The first one is gone; the second holds its output and chatters.
        let text = "sh -c 'trap \"\" TERM; while :; do echo chatter; sleep 0.01; done' & echo first; exit 0";
        let mut follow = sandbox.follow("left", &script(text)).await;
        until(&mut follow, "first\n").await;
        until(&mut follow, "chatter\n").await;
        let info = sandbox.shim().await.cancel("left", Duration::ZERO).await.unwrap();
        assert_eq!(info.outcome.as_ref().map(|outcome| outcome.kind), Some(OutcomeKind::Cancelled));
        assert_eq!(sandbox.processes(), [sandbox.owned.pid()]);
    });
}

//= promises.jobs.processes-group-live-cancel
#[test]
fn a_job_whose_time_is_up_is_dead_with_its_whole_group_and_keeps_what_it_wrote() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        for (number, text) in [STUBBORN, LEAVES_ONE].into_iter().enumerate() {
            let mut time = 300;
            let (info, output) = loop {
                let job = format!("job-{number}-{time}");
                let command = JobCommand { timeout_ms: Some(time), ..script(text) };
                shim.start(&job, &command).await.unwrap();
                let info = shim.wait(&job).await.unwrap();
                assert_eq!(sandbox.processes(), [sandbox.owned.pid()]);
                let output = std::fs::read(&info.stdout.path.as_ref().unwrap().0).unwrap();
                // One whose time was up before it had begun is no such job yet: the next has more.
                if !output.is_empty() {
                    break (info, output);
                }
                time *= 5;
            };
            let signal = if text == STUBBORN { libc::SIGKILL } else { libc::SIGTERM };
            assert_eq!(ending(&info), (OutcomeKind::TimedOut, None, Some(signal)));
            assert_eq!(output, b"partial\n");
            assert!(info.ended_ms.unwrap() >= info.started_ms + time);
        }
        // In time.
        let command = JobCommand { timeout_ms: Some(30_000), ..script("exit 4") };
        shim.start("quick", &command).await.unwrap();
        assert_eq!(ending(&shim.wait("quick").await.unwrap()), (OutcomeKind::Exited, Some(4), None));
    });
}

//= promises.jobs.process-left-group-job
#[test]
fn whoever_leaves_the_group_outlives_the_job_and_not_the_sandbox() {
    run(async {
        let mut sandbox = Sandbox::start().await;
        let text = "setsid sh -c 'echo away >/tmp/away; exec sleep 1000' >/dev/null 2>&1 & echo up; exec sleep 1000";
        let mut follow = sandbox.follow("escape", &script(text)).await;
        until(&mut follow, "up").await;
        sandbox.job("away", &script("while [ ! -s /tmp/away ]; do :; done")).await;
        let info = sandbox.shim().await.cancel("escape", Duration::ZERO).await.unwrap();
        assert_eq!(ending(&info), (OutcomeKind::Cancelled, None, Some(libc::SIGKILL)));
        let left: Vec<u32> = sandbox.processes().into_iter().filter(|pid| *pid != sandbox.owned.pid()).collect();
        let [escaped] = left[..] else { panic!("{left:?}") };
        assert_eq!(std::fs::read(format!("/proc/{escaped}/cmdline")).unwrap(), b"sleep\x001000\0");
        let began = carrel_shim_client::began(escaped);
        sandbox.owned.stop(Duration::ZERO).await.unwrap();
        assert_ne!(carrel_shim_client::began(escaped), began, "it is gone, or its number belongs to another");
        assert_eq!((sandbox.processes(), sandbox.traces()), (vec![], vec![]));
    });
}

#[test]
fn signals_reach_the_whole_group_and_numbers_that_are_none_are_refused() {
    run(async {
        let sandbox = Sandbox::start().await;
        let text = "trap 'echo one' USR1; sh -c \"trap 'echo two; exit' USR1; echo up; while :; do sleep 0.01; done\" & wait; wait; exit 5";
        let mut follow = sandbox.follow("signals", &script(text)).await;
        until(&mut follow, "up").await;
        let mut shim = sandbox.shim().await;
        for wrong in [0, -1, 65, i32::MIN] {
            let refused = shim.signal("signals", wrong).await.unwrap_err();
            assert_eq!(refused.code(), Some(carrel_shim_client::messages::FailureCode::InvalidRequest));
        }
        shim.signal("signals", libc::SIGUSR1).await.unwrap();
        assert_eq!(ending(&shim.wait("signals").await.unwrap()), (OutcomeKind::Exited, Some(5), None));
        let text = shim.read("signals", carrel_shim_client::messages::StreamName::Stdout, 0, 100).await.unwrap().data;
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("one\n") && text.contains("two\n"), "{text}");
    });
}
