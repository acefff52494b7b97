//! Thousands of jobs, and the same request a hundred times.

use std::sync::Arc;
use std::time::Duration;

use carrel_shim_client::messages::{FactKind, FailureCode, OutcomeKind};
use carrel_tests::{TestSandbox, full, outcome_of, run, run_within, script};
use tokio::sync::Barrier;

/// How many ended jobs are kept.
const KEPT: u32 = 100;
/// How many jobs run concurrently.
const CONCURRENT: usize = 16;

/// A job whose exit code follows from its number.
fn exit_with(number: usize) -> carrel_shim_client::messages::JobCommand {
    script(&format!("exit {}", number % 200))
}

/// Runs the jobs with these numbers, some concurrently. Each exits with a code of its own.
async fn run_jobs(sandbox: &Arc<TestSandbox>, numbers: std::ops::Range<usize>) {
    let mut tasks = Vec::new();
    for task in 0..CONCURRENT {
        let (sandbox, numbers) = (Arc::clone(sandbox), numbers.clone());
        tasks.push(tokio::spawn(async move {
            let mut shim = sandbox.shim().await;
            for number in numbers.skip(task).step_by(CONCURRENT) {
                let job = format!("job-{number}");
                assert!(shim.start(&job, &exit_with(number)).await.unwrap().created);
                let code = i32::try_from(number % 200).unwrap();
                assert_eq!(outcome_of(&shim.wait(&job).await.unwrap()), (OutcomeKind::Exited, Some(code), None));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

//= promises.jobs.job-longer-kept
//= promises.jobs.short-jobs-row-2
#[test]
fn ten_thousand_short_jobs_exit_with_their_own_codes_and_leave_two_facts_each_and_nothing_else() {
    let jobs = if full() { 10_000 } else { 2_000 };
    run_within(Duration::from_secs(300), async move {
        let sandbox = Arc::new(TestSandbox::with(|create| create.keep.ended_jobs = KEPT).await);
        let mut shim = sandbox.shim().await;
        let fresh = sandbox.footprint();
        run_jobs(&sandbox, 0..500).await;
        let before = sandbox.footprint();
        run_jobs(&sandbox, 500..jobs).await;
        let after = sandbox.footprint();
        assert!(after.memory < before.memory + (2 << 20), "{before:?} {after:?}");
        // The shim notices one by one that the clients have disconnected. The two files of its archive stay open.
        while sandbox.footprint().descriptors > fresh.descriptors + 2 {
            shim.status().await.unwrap();
        }

        let status = shim.status().await.unwrap();
        assert_eq!((status.running_jobs, status.ended_jobs), (0, KEPT));
        assert_eq!(status.pruned_jobs, jobs as u64 - u64::from(KEPT));
        let kept = shim.jobs().await.unwrap();
        assert_eq!(kept.len(), KEPT as usize);
        let files = std::fs::read_dir(sandbox.create.directory.0.join("jobs")).unwrap().count();
        assert_eq!(files, 2 * KEPT as usize);

        let facts = shim.journal(1).await.unwrap();
        assert!(facts.iter().zip(1..).all(|(fact, sequence)| fact.sequence == sequence));
        assert_eq!(facts.len(), 2 + 2 * jobs);
        let mut codes: Vec<Vec<Option<i32>>> = vec![Vec::new(); jobs];
        for fact in &facts[2..] {
            let number: usize = fact.job.as_ref().unwrap().strip_prefix("job-").unwrap().parse().unwrap();
            match fact.kind {
                FactKind::JobStarted => {
                    assert!(codes[number].is_empty());
                    assert_eq!(fact.command.as_ref().unwrap()[2], format!("exit {}", number % 200));
                    codes[number].push(None);
                }
                FactKind::JobEnded => codes[number].push(fact.outcome.as_ref().unwrap().code),
                other => panic!("{other:?}"),
            }
        }
        for (number, codes) in codes.iter().enumerate() {
            assert_eq!(codes[..], [None, Some(i32::try_from(number % 200).unwrap())], "job {number}");
        }

        // A request that is repeated late runs nothing.
        for number in [0, 1, jobs / 2] {
            let again = shim.start(&format!("job-{number}"), &exit_with(number)).await.unwrap_err();
            assert_eq!(again.code(), Some(FailureCode::JobPruned), "{again}");
            let other = shim.start(&format!("job-{number}"), &script("exit 201")).await.unwrap_err();
            assert_eq!(other.code(), Some(FailureCode::JobConflict), "{other}");
            let pruned = shim.job(&format!("job-{number}")).await.unwrap_err();
            assert_eq!(pruned.code(), Some(FailureCode::JobPruned), "{pruned}");
        }
        let newest = kept.last().unwrap();
        let number: usize = newest.job.strip_prefix("job-").unwrap().parse().unwrap();
        let attached = shim.start(&newest.job, &exit_with(number)).await.unwrap();
        assert!(!attached.created && attached.info.outcome == newest.outcome);
        assert_eq!(shim.journal(1).await.unwrap().len(), facts.len(), "these requests add no facts");
    });
}

/// Sends the same request on a hundred connections at once. Returns how many of them created the job.
async fn start_a_hundred_times(sandbox: &Arc<TestSandbox>) -> usize {
    let barrier = Arc::new(Barrier::new(100));
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let (sandbox, barrier) = (Arc::clone(sandbox), Arc::clone(&barrier));
        tasks.push(tokio::spawn(async move {
            let mut shim = sandbox.shim().await;
            barrier.wait().await;
            let started = shim.start("once", &script("echo run >>/tmp/runs; echo here; exit 6")).await.unwrap();
            assert_eq!(outcome_of(&shim.wait("once").await.unwrap()).1, Some(6));
            started.created
        }));
    }
    let mut created = 0;
    for task in tasks {
        created += usize::from(task.await.unwrap());
    }
    created
}

//= promises.jobs.runs-request-sent-100
#[test]
fn the_same_request_sent_a_hundred_times_at_once_and_again_later_runs_once() {
    run(async {
        let sandbox = Arc::new(TestSandbox::start().await);
        assert_eq!(start_a_hundred_times(&sandbox).await, 1);
        assert_eq!(start_a_hundred_times(&sandbox).await, 0);
        let other = sandbox.shim().await.start("once", &script("exit 6")).await.unwrap_err();
        assert_eq!(other.code(), Some(FailureCode::JobConflict));
        assert_eq!(sandbox.job("count", &script("cat /tmp/runs")).await.stdout, b"run\n");
    });
}
