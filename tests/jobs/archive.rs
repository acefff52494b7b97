//! Many jobs one after another: what a supervisor holds does not grow with those that have ended.

use std::time::Duration;

use carrel_shim_client::messages::{FailureCode, JobCommand, JobRetention, StreamName};
use carrel_tests::{Sandbox, ending, full, run_within, script};

/// How many jobs run at a time.
const TOGETHER: usize = 32;

#[test]
fn jobs_that_ended_long_ago_are_found_and_do_not_stay_in_memory() {
    // All of them take a while; a part of them shows the same.
    let (jobs, limit) = if full() { (10_000, Duration::from_secs(600)) } else { (600, Duration::from_secs(60)) };
    run_within(limit, async {
        let keep = JobRetention { ended_jobs: 100_000, ..JobRetention::default() };
        let sandbox = Sandbox::with(|create| create.keep = keep).await;
        let mut shim = sandbox.shim().await;
        let command = |number: usize| script(&format!("echo output {number}"));
        let before = sandbox.footprint().memory;
        for first in (0..jobs).step_by(TOGETHER) {
            let numbers = || first..(first + TOGETHER).min(jobs);
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
            assert_eq!(ending(&shim.job(&id).await.unwrap()).1, Some(0));
            let output = shim.read(&id, StreamName::Stdout, 0, 100).await.unwrap();
            assert_eq!((output.data, output.end), (format!("output {number}\n").into_bytes(), true));
            assert!(!shim.start(&id, &command(number)).await.unwrap().created, "it ran once");
            let other = shim.start(&id, &JobCommand { tty: true, ..command(number) }).await.unwrap_err();
            assert_eq!(other.code(), Some(FailureCode::JobConflict));
        }
        let mut listed: Vec<_> = shim.jobs().await.unwrap().into_iter().map(|info| info.job).collect();
        listed.sort_unstable_by_key(|job| job["job-".len()..].parse::<usize>().unwrap());
        assert_eq!(listed, (0..jobs).map(|number| format!("job-{number}")).collect::<Vec<_>>());
    });
}
