//! Many idle sandboxes: their memory and the daemon's, whether all of them answer, and how soon the next daemon has adopted
//! them.

use std::thread::sleep;
use std::time::Instant;

use anyhow::Result;

use super::FACE;
use super::client::{DaemonClient, WatchedSandbox};
use super::daemon::MeasuredDaemon;
use super::many::burst;
use crate::measure::MeasurementEffort;
use crate::memory::{REST, available, pss_of};
use crate::report::Benchmark;
use crate::samples::since;

/// How many are created concurrently.
const AT_ONCE: usize = 50;

/// Measures a daemon without sandboxes, with the requested number, and the next daemon.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (mut daemon, count) = (MeasuredDaemon::start()?, effort.idle);
    let mut client = daemon.client()?;
    sleep(REST);
    let without = pss_of(daemon.pid())?;
    // Memory that the first sandbox needs stays allocated.
    let first = daemon.runtime.block_on(client.ready(&daemon.name()))?;
    daemon.runtime.block_on(client.delete_all(vec![first]))?;
    sleep(REST);

    let (before, mut sandboxes) = (available()?, Vec::new());
    while sandboxes.len() < count {
        let names = (sandboxes.len()..count).take(AT_ONCE).map(|_| daemon.name()).collect();
        sandboxes.extend(daemon.runtime.block_on(burst(&client, names))?.0);
    }
    sleep(REST);
    let with_all = pss_of(daemon.pid())?;
    let on_host = (before - available()?) / count as f64;
    let answered = daemon.runtime.block_on(count_responsive(&mut client, &mut sandboxes));

    let start = Instant::now();
    daemon.restart()?;
    let restarted = since(start);
    let mut client = daemon.client()?;
    let mut found = Vec::new();
    for sandbox in sandboxes {
        found.push(daemon.runtime.block_on(client.follow(&sandbox.id, sandbox.newest))?);
    }
    let after_restart = daemon.runtime.block_on(count_responsive(&mut client, &mut found));
    daemon.runtime.block_on(client.delete_all(found))?;
    Ok(vec![
        Benchmark::new("memory of the daemon, no sandbox (PSS)", FACE, without, "MiB"),
        Benchmark::new(format!("memory of the daemon, {count} sandboxes at rest (PSS)"), FACE, with_all, "MiB")
            .beside("no sandbox", without),
        Benchmark::new(format!("memory of the host, for each of {count} at rest"), FACE, on_host, "MiB")
            .aim("at most 5 MiB", on_host <= 5.0),
        Benchmark::new(format!("sandboxes that run `true`, of {count} at rest"), FACE, answered as f64, "")
            .aim("all", answered == count),
        Benchmark::new(format!("restart of the daemon, {count} sandboxes, to serving"), FACE, restarted, "ms")
            .aim("under 2 s", restarted < 2000.0),
        Benchmark::new(format!("sandboxes that run `true` after that, of {count}"), FACE, after_restart as f64, "")
            .aim("all", after_restart == count),
    ])
}

/// How many of them run a command.
async fn count_responsive(client: &mut DaemonClient, sandboxes: &mut [WatchedSandbox]) -> usize {
    let mut answered = 0;
    for sandbox in sandboxes {
        answered += usize::from(client.run(sandbox).await.is_ok());
    }
    answered
}
