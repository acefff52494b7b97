//! How soon a sandbox stops, resumes, and is deleted.

use std::time::Instant;

use anyhow::Result;
use carrel_api::agbox::v1::EventType;

use super::FACE;
use super::client::{DaemonClient, WatchedSandbox};
use super::daemon::MeasuredDaemon;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, since};

/// Measures from each request to its event, with a command that exits on SIGTERM.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let daemon = MeasuredDaemon::start()?;
    let mut client = daemon.client()?;
    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..=effort.of(101, 3) {
        let steps = daemon.runtime.block_on(lifecycle(&mut client, &daemon.name()))?;
        // The first one is the warm-up.
        if round > 0 {
            times.iter_mut().zip(steps).for_each(|(times, step)| times.push(step));
        }
    }
    let [created, stopped, resumed, deleted] = times.map(Samples::of);
    Ok(vec![
        Benchmark::new("stop, to SANDBOX_STOPPED seen", FACE, &stopped, "ms")
            .aim("under 1 s (first implementation: 5.1 s)", stopped.p99() < 1000.0),
        Benchmark::new("resume, to SANDBOX_READY seen", FACE, &resumed, "ms")
            .beside("create, cold, to SANDBOX_READY seen", &created)
            .aim("at most 1.2 times", resumed.median() <= 1.2 * created.median()),
        Benchmark::new("delete, to SANDBOX_DELETED seen", FACE, &deleted, "ms")
            .aim("p50 under 20 ms (first implementation: 0.3 s)", deleted.median() < 20.0),
    ])
}

/// Milliseconds of each step in the lifecycle of one sandbox.
async fn lifecycle(client: &mut DaemonClient, id: &str) -> Result<[f64; 4]> {
    let start = Instant::now();
    let mut sandbox = client.ready(id).await?;
    let created = since(start);
    start_command(client, &mut sandbox).await?;

    let start = Instant::now();
    client.stop(id).await?;
    sandbox.until(EventType::SandboxStopped).await?;
    let stopped = since(start);

    let start = Instant::now();
    client.resume(id).await?;
    sandbox.until(EventType::SandboxReady).await?;
    let resumed = since(start);
    start_command(client, &mut sandbox).await?;

    let start = Instant::now();
    client.delete(id).await?;
    sandbox.until(EventType::SandboxDeleted).await?;
    Ok([created, stopped, resumed, since(start)])
}

/// Starts a long-running command, and a second one: when that has exited, the first one runs.
async fn start_command(client: &mut DaemonClient, sandbox: &mut WatchedSandbox) -> Result<()> {
    client.exec(&sandbox.id, &["sleep", "1000"]).await?;
    client.run(sandbox).await.map(drop)
}
