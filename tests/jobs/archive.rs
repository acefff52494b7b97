//! The archive of jobs that have ended: they stay available without using memory of the shim.

use std::time::Duration;

use carrel_shim_client::messages::{FailureCode, JobCommand, JobRetention, StreamName};
use carrel_tests::{TestSandbox, full, outcome_of, run_within, script};

/// How many jobs run concurrently.
const CONCURRENT: usize = 32;

#[test]
fn jobs_that_ended_long_ago_are_available_and_not_kept_in_memory() {
    // Fewer jobs show the same, in less time.
    let (jobs, limit) = if full() { (10_000, Duration::from_secs(600)) } else { (600, Duration::from_secs(60)) };
    run_within(limit, async {
        let keep = JobRetention { ended_jobs: 100_000, ..JobRetention::default() };
        let sandbox = TestSandbox::with(|create| create.keep = keep).await;
        let mut shim = sandbox.shim().await;
        let command = |number: usize| script(&format!("echo output {number}"));
        let before = sandbox.footprint().memory;
        for first in (0..jobs).step_by(CONCURRENT) {
            let numbers = || first..(first + CONCURRENT).min(jobs);
            for number in numbers() {
                assert!(shim.start(&format!("job-{number}"), &command(number)).await.unwrap().created);
            }
            for number in numbers() {
                shim.wait(&format!("job-{number}")).await.unwrap();
            }
        }
        println!("{jobs} jobs: {} kB of memory, {} kB before", sandbox.footprint().memory / 1024, before / 1024);
        let status = shim.status().await.unwrap();
        assert_eq!((status.running_jobs, status.ended_jobs as usize), (0, jobs));
        for number in [0, 1, jobs / 2, jobs - 1] {
            let id = format!("job-{number}");
            assert_eq!(outcome_of(&shim.job(&id).await.unwrap()).1, Some(0));
            let output = shim.read(&id, StreamName::Stdout, 0, 100).await.unwrap();
            assert_eq!((output.data, output.end), (format!("output {number}\n").into_bytes(), true));
            assert!(!shim.start(&id, &command(number)).await.unwrap().created, "the job runs once");
            let other = shim.start(&id, &JobCommand { tty: true, ..command(number) }).await.unwrap_err();
            assert_eq!(other.code(), Some(FailureCode::JobConflict));
        }
        let mut listed: Vec<_> = shim.jobs().await.unwrap().into_iter().map(|info| info.job).collect();
        listed.sort_unstable_by_key(|job| job["job-".len()..].parse::<usize>().unwrap());
        assert_eq!(listed, (0..jobs).map(|number| format!("job-{number}")).collect::<Vec<_>>());
    });
}
