//! A hostile guest that breaks the protocol of jobs: its frames are dropped or end it, and memory is bounded.

use std::time::Duration;

use carrel_shim_client::messages::{EndReason, FailureCode, JobFollow, JobState, OutcomeKind};
use carrel_tests::{TestSandbox, agentd_path, follow_all, outcome_of, run, script, script_with_stdin};

/// A sandbox whose init process is the hostile guest, with the given behaviour.
async fn hostile_guest(part: &str) -> TestSandbox {
    TestSandbox::with(|create| {
        create.agentd = agentd_path().with_file_name("carrel-liar").into();
        create.hostname = part.to_owned();
    })
    .await
}

#[test]
fn an_honest_guest_passes_the_same_test() {
    run(async {
        let mut sandbox = hostile_guest("job-honest").await;
        let transcript = sandbox.job("a", &script("")).await;
        assert_eq!((outcome_of(&transcript.info).1, &transcript.stdout[..]), (Some(7), &b"hello"[..]));
        assert_eq!(sandbox.owned.statistics().await.unwrap().stray_frames, 0);
    });
}

//= promises.jobs.guest-floods-lies-never
#[test]
fn stray_frames_are_dropped_and_counted_and_the_job_ends_normally() {
    run(async {
        for (part, strays) in [("job-acks", 5), ("job-unknown", 8), ("job-twice", 4), ("job-nonsense", 9)] {
            let mut sandbox = hostile_guest(part).await;
            let mut shim = sandbox.shim().await;
            shim.start("a", &script_with_stdin("")).await.unwrap();
            let info = shim.wait("a").await.unwrap();
            assert_eq!(outcome_of(&info), (OutcomeKind::Exited, Some(7), None), "{part}");
            assert_eq!((info.stdout.length, info.stdin_bytes), (5, 0), "{part}");
            // Frames after the end may still be in transit.
            while sandbox.owned.statistics().await.unwrap().stray_frames < strays {}
            assert_eq!(sandbox.owned.statistics().await.unwrap().stray_frames, strays, "{part}");
            // The next job is not mistaken for the former one.
            assert!(shim.start("b", &script_with_stdin("")).await.unwrap().created);
            assert_eq!(outcome_of(&shim.wait("b").await.unwrap()).1, Some(7), "{part}");
            let ended = shim.journal(1).await.unwrap().iter().filter(|fact| fact.outcome.is_some()).count();
            assert_eq!(ended, 2, "{part}");
        }
    });
}

//= promises.jobs.guest-floods-lies-never
//= promises.jobs.kept-output
#[test]
fn a_guest_that_floods_a_job_with_output_is_served_in_bounded_memory() {
    run(async {
        let sandbox = hostile_guest("job-floods").await;
        let mut shim = sandbox.shim().await;
        shim.start("a", &script("")).await.unwrap();
        while shim.job("a").await.unwrap().stdout.length < 100 << 20 {}
        let info = shim.job("a").await.unwrap();
        assert_eq!((info.state, info.stdout.cut_from), (JobState::Running, Some(64 << 20)));
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
        shim.stop(Duration::ZERO).await.unwrap();
        assert_eq!(sandbox.traces(), Vec::<String>::new());
    });
}

//= promises.jobs.guest-floods-lies-never
#[test]
fn a_guest_that_ignores_flow_control_of_a_held_job_is_killed_with_a_reason() {
    run(async {
        let mut sandbox = hostile_guest("job-floods").await;
        let mut holder = sandbox.raw_shim().await;
        let mut shim = sandbox.shim().await;
        shim.start("a", &script("")).await.unwrap();
        holder.request(1, &JobFollow { hold: true, ..follow_all("a") }).await;
        let mut peak = 0;
        let ended = loop {
            if let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", sandbox.owned.shim_pid())) {
                let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
                peak = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(peak);
            }
            if let Err(carrel_shim_client::ShimError::Ended(ended)) = shim.status().await {
                break ended;
            }
        };
        assert_eq!(ended.reason, EndReason::Misbehaved, "{ended:?}");
        assert!(peak < 32 * 1024, "{peak} KiB");
        assert_eq!(sandbox.owned.ended().await.unwrap().reason, EndReason::Misbehaved);
        assert_eq!(sandbox.traces(), Vec::<String>::new());
        // A guest that announces an excessive window gets no job.
        let wide = hostile_guest("job-floods-widely").await;
        let refused = wide.shim().await.start("a", &script("")).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::Unsupported));
    });
}

//= promises.jobs.guest-floods-lies-never
#[test]
fn a_guest_that_never_responds_delays_no_client_and_can_be_stopped() {
    run(async {
        for part in ["honest", "deaf"] {
            let sandbox = hostile_guest(part).await;
            let (mut shim, mut other) = (sandbox.shim().await, sandbox.shim().await);
            shim.start("a", &script_with_stdin("")).await.unwrap();
            let waiting = tokio::spawn(async move { other.cancel("a", Duration::from_millis(1)).await });
            // More than the buffers hold, so that the guest would have to read.
            let mut refused = 0;
            for number in 0..20 {
                let large = script(&format!(": {}", "x".repeat(500_000)));
                if let Err(error) = shim.start(&format!("large-{number}"), &large).await {
                    assert_eq!(error.code(), Some(FailureCode::TooMany), "{part}: {error}");
                    refused += 1;
                }
            }
            assert!(part != "deaf" || refused > 0);
            assert_eq!(shim.job("a").await.unwrap().state, JobState::Ending);
            assert!(sandbox.footprint().peak < 64 << 20, "{:?}", sandbox.footprint());
            let ended = shim.stop(Duration::from_millis(10)).await.unwrap();
            assert_eq!((ended.reason, ended.signal), (EndReason::Stopped, Some(libc::SIGKILL)), "{part}");
            assert_eq!(outcome_of(&waiting.await.unwrap().unwrap()).0, OutcomeKind::Cancelled, "{part}");
            assert_eq!(sandbox.traces(), Vec::<String>::new());
        }
    });
}
