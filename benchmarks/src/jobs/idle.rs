//! The memory of an idle job.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use carrel_shim_client::messages::{JobCommand, JobState};

use super::{FACE, command, connect};
use crate::measure::MeasurementEffort;
use crate::memory::{REST, pss};
use crate::report::Benchmark;
use crate::sandbox::MeasuredSandbox;

/// Measures shim and agent with many jobs that wait for input, and with the same jobs after their exit.
pub(super) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (sandbox, count) = (MeasuredSandbox::start()?, effort.of(100, 10));
    // Memory that the first job needs stays allocated.
    start_jobs(&sandbox, "first", 1)?;
    cancel_all(&sandbox)?;
    let none = pss_at_rest(&sandbox)?;
    start_jobs(&sandbox, "idle", count)?;
    let idle = pss_at_rest(&sandbox)?;
    cancel_all(&sandbox)?;
    let ended = pss_at_rest(&sandbox)?;
    let each = |mebibytes: f64| (mebibytes - none) * 1024.0 / count as f64;
    Ok(vec![
        Benchmark::new(
            format!("memory of shim and agentd for each of {count} idle jobs (PSS)"),
            FACE,
            each(idle),
            "KiB",
        ),
        Benchmark::new(
            format!("memory of shim and agentd for each of {count} ended jobs (PSS)"),
            FACE,
            each(ended),
            "KiB",
        ),
    ])
}

/// Starts that many jobs and waits until all of them run.
fn start_jobs(sandbox: &MeasuredSandbox, name: &str, count: usize) -> Result<()> {
    let command = JobCommand { stdin: true, ..command(&["cat"]) };
    sandbox.runtime.block_on(async {
        let mut client = connect(sandbox).await?;
        for number in 0..count {
            let job = format!("{name}-{number}");
            ensure!(client.start(&job, &command).await?.created, "there was a job {job}");
            // It has read its input when its output is received.
            client.write(&job, b"x", None).await?;
            while client.job(&job).await?.stdout.length == 0 {}
        }
        let running = client.jobs().await?.iter().filter(|job| job.state == JobState::Running).count();
        ensure!(running == count, "only {running} of {count} run");
        Ok(())
    })
}

/// Cancels all jobs.
fn cancel_all(sandbox: &MeasuredSandbox) -> Result<()> {
    sandbox.runtime.block_on(async {
        let mut client = connect(sandbox).await?;
        for job in client.jobs().await? {
            client.cancel(&job.job, Duration::ZERO).await?;
        }
        Ok(())
    })
}

/// The memory of shim and agent after an idle period, in MiB.
fn pss_at_rest(sandbox: &MeasuredSandbox) -> Result<f64> {
    sleep(REST);
    pss(&sandbox.owned)
}
