//! A hundred sandboxes that are created at once.

use std::process::Child;
use std::time::Instant;

use anyhow::{Result, ensure};
use carrel_api::agbox::v1::EventType;
use tokio::task::JoinSet;

use super::FACE;
use super::client::{DaemonClient, WatchedSandbox};
use super::create::bwrap;
use super::daemon::MeasuredDaemon;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, since};

/// Measures bursts, and as many of another program.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (daemon, count) = (MeasuredDaemon::start()?, effort.of(100, 8));
    let mut client = daemon.client()?;
    let (mut times, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=effort.of(5, 1) {
        let start = Instant::now();
        let names = (0..count).map(|_| daemon.name()).collect();
        let (sandboxes, mut each) = daemon.runtime.block_on(burst(&client, names))?;
        let total = since(start);
        daemon.runtime.block_on(client.delete_all(sandboxes))?;
        let peer = bwraps(count)?;
        // The first one is the warm-up.
        if round > 0 {
            times.append(&mut each);
            ours.push(total);
            theirs.push(peer);
        }
    }
    let (times, ours, theirs) = (Samples::of(times), Samples::of(ours), Samples::of(theirs));
    let rate = |times: &Samples| count as f64 / times.median() * 1e3;
    Ok(vec![
        Benchmark::new(format!("create, {count} at once, each to SANDBOX_READY seen"), FACE, &times, "ms")
            .aim("all succeed", true),
        Benchmark::new(format!("creates per second, {count} at once"), FACE, rate(&ours), "/s")
            .beside("as many `bwrap` at once", rate(&theirs)),
    ])
}

/// Creates all of these at once, and waits until they are ready; returns them with their times.
pub(super) async fn burst(client: &DaemonClient, names: Vec<String>) -> Result<(Vec<WatchedSandbox>, Vec<f64>)> {
    let (start, mut creating) = (Instant::now(), JoinSet::new());
    for name in names {
        let mut client = client.clone();
        creating.spawn(async move {
            let mut sandbox = client.create(&name).await?;
            sandbox.until(EventType::SandboxReady).await?;
            anyhow::Ok((sandbox, since(start)))
        });
    }
    let mut created = Vec::new();
    while let Some(one) = creating.join_next().await {
        created.push(one??);
    }
    Ok(created.into_iter().unzip())
}

/// Milliseconds of that many sandboxes of another program.
fn bwraps(count: usize) -> Result<f64> {
    let start = Instant::now();
    let children: Vec<Child> = (0..count).map(|_| bwrap().spawn()).collect::<Result<_, _>>()?;
    for mut child in children {
        ensure!(child.wait()?.success(), "bwrap failed");
    }
    Ok(since(start))
}
