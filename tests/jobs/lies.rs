//! A guest that lies about jobs: what it says is counted or ends it, nothing hangs, and memory is bounded.

use std::time::Duration;

use carrel_shim_client::messages::{EndReason, FailureCode, JobFollow, JobState, OutcomeKind};
use carrel_tests::{Sandbox, agentd_path, all_of, ending, fed, run, script};

/// A sandbox whose first program is a liar with the given part.
async fn liar(part: &str) -> Sandbox {
    Sandbox::with(|create| {
        create.agentd = agentd_path().with_file_name("carrel-liar").into();
        create.hostname = part.to_owned();
    })
    .await
}

#[test]
fn an_honest_part_runs_a_job_as_an_agent_does() {
    run(async {
        let mut sandbox = liar("job-honest").await;
        let seen = sandbox.job("a", &script("")).await;
        assert_eq!((ending(&seen.info).1, &seen.stdout[..]), (Some(7), &b"hello"[..]));
        assert_eq!(sandbox.owned.statistics().await.unwrap().stray_frames, 0);
    });
}

//= promises.jobs.guest-floods-lies-never
#[test]
fn words_that_make_no_sense_are_dropped_and_counted_and_the_job_ends_as_it_should() {
    run(async {
        for (part, strays) in [("job-acks", 5), ("job-unknown", 8), ("job-twice", 4), ("job-nonsense", 9)] {
            let mut sandbox = liar(part).await;
            let mut shim = sandbox.shim().await;
            shim.start("a", &fed("")).await.unwrap();
            let info = shim.wait("a").await.unwrap();
            assert_eq!(ending(&info), (OutcomeKind::Exited, Some(7), None), "{part}");
            assert_eq!((info.stdout.length, info.stdin_bytes), (5, 0), "{part}");
            // What it says behind the end is on its way.
            while sandbox.owned.statistics().await.unwrap().stray_frames < strays {}
            assert_eq!(sandbox.owned.statistics().await.unwrap().stray_frames, strays, "{part}");
            // The next one is not taken for the one before.
            assert!(shim.start("b", &fed("")).await.unwrap().created);
            assert_eq!(ending(&shim.wait("b").await.unwrap()).1, Some(7), "{part}");
            let ended = shim.journal(1).await.unwrap().iter().filter(|fact| fact.outcome.is_some()).count();
            assert_eq!(ended, 2, "{part}");
        }
    });
}

//= promises.jobs.guest-floods-lies-never
//= promises.jobs.kept-output
#[test]
fn a_guest_that_floods_a_job_is_heard_and_takes_no_memory() {
    run(async {
        let sandbox = liar("job-floods").await;
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
fn a_guest_that_does_not_wait_for_those_who_hold_a_job_is_ended_with_a_reason() {
    run(async {
        let mut sandbox = liar("job-floods").await;
        let mut holder = sandbox.raw_shim().await;
        let mut shim = sandbox.shim().await;
        shim.start("a", &script("")).await.unwrap();
        holder.ask(1, &JobFollow { hold: true, ..all_of("a") }).await;
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
        // One that says at the beginning that it will send very much is given no job.
        let wide = liar("job-floods-widely").await;
        let refused = wide.shim().await.start("a", &script("")).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::Unsupported));
    });
}

//= promises.jobs.guest-floods-lies-never
#[test]
fn a_guest_that_never_answers_holds_up_nobody_and_can_be_stopped() {
    run(async {
        for part in ["honest", "deaf"] {
            let sandbox = liar(part).await;
            let (mut shim, mut other) = (sandbox.shim().await, sandbox.shim().await);
            shim.start("a", &fed("")).await.unwrap();
            let waiting = tokio::spawn(async move { other.cancel("a", Duration::from_millis(1)).await });
            // So much that the guest would have to listen to be told all of it.
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
            assert_eq!(ending(&waiting.await.unwrap().unwrap()).0, OutcomeKind::Cancelled, "{part}");
            assert_eq!(sandbox.traces(), Vec::<String>::new());
        }
    });
}
