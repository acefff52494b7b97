//! Events: their latency after the commit, and their rate.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use carrel_api::agbox::v1::{EventType, SandboxEvent};
use tokio::task::JoinSet;

use super::FACE;
use super::client::{DaemonClient, WatchedSandbox};
use super::daemon::MeasuredDaemon;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::Samples;

/// In how many sandboxes commands run concurrently.
const SANDBOXES: usize = 8;
/// How many subscribers each of them has, on separate connections.
const SUBSCRIBERS: usize = 4;

/// Milliseconds from the time of an event until it was received.
#[derive(Default)]
struct EventDelays {
    /// From before the daemon's commit: the write to the disk is included.
    started: Vec<f64>,
    /// From the time when the shim noticed the exit of the command: the transfer to the daemon is included.
    finished: Vec<f64>,
}

/// Measures with one command at a time, and then with the maximum.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let daemon = MeasuredDaemon::start()?;
    let mut client = daemon.client()?;
    let (mut single, mut concurrent) = (EventDelays::default(), EventDelays::default());
    let seconds = daemon.runtime.block_on(async {
        let mut sandboxes = vec![client.ready(&daemon.name()).await?];
        measure_delays(&daemon, &mut client, &mut sandboxes, effort.of(500, 5), &mut single).await?;
        while sandboxes.len() < SANDBOXES {
            sandboxes.push(client.ready(&daemon.name()).await?);
        }
        let seconds = measure_delays(&daemon, &mut client, &mut sandboxes, effort.of(150, 3), &mut concurrent).await?;
        client.delete_all(sandboxes).await?;
        anyhow::Ok(seconds)
    })?;

    let delivered = (concurrent.started.len() + concurrent.finished.len()) as f64;
    let mut lines = Vec::new();
    for (delays, load) in [(single, "one command at a time"), (concurrent, "8 commands at a time")] {
        let (started, finished) = (Samples::of(delays.started), Samples::of(delays.finished));
        let line = |name: &str, delays: &Samples| {
            let line = Benchmark::new(format!("{name} received, 4 subscribers, {load}"), FACE, delays, "ms");
            // With the maximum, waiting for a CPU is measured as well.
            match load.starts_with("one") {
                true => line.aim("p50 under 1 ms, p99 under 5 ms", delays.median() < 1.0 && delays.p99() < 5.0),
                false => line,
            }
        };
        lines.push(line("EXEC_STARTED from before its commit to", &started));
        lines.push(line("EXEC_FINISHED from the end of the command to", &finished));
    }
    let rate = |name: &str, count: f64| Benchmark::new(name, FACE, count / seconds, "/s");
    lines.push(rate("events committed per second, 8 commands at a time", delivered / SUBSCRIBERS as f64));
    lines.push(rate("events delivered per second, 32 subscribers", delivered));
    Ok(lines)
}

/// Runs that many commands in each sandbox, one after the other, with subscribers; adds their delays, and returns the
/// seconds that it took.
async fn measure_delays(
    daemon: &MeasuredDaemon,
    client: &mut DaemonClient,
    sandboxes: &mut Vec<WatchedSandbox>,
    count: usize,
    total: &mut EventDelays,
) -> Result<f64> {
    let mut following = JoinSet::new();
    for sandbox in sandboxes.iter_mut() {
        // Earlier events come before this one.
        let newest = client.run(sandbox).await?;
        for _ in 0..SUBSCRIBERS {
            let mut other = daemon.connect().await?;
            let mut followed = other.follow(&sandbox.id, newest).await?;
            following.spawn(async move {
                let delays = delays(&mut followed, count).await;
                // A connection is closed when it is dropped.
                drop(other);
                delays
            });
        }
    }
    let (start, mut running) = (Instant::now(), JoinSet::new());
    for mut sandbox in sandboxes.drain(..) {
        let mut client = client.clone();
        running.spawn(async move {
            for _ in 0..count {
                client.run(&mut sandbox).await?;
            }
            anyhow::Ok(sandbox)
        });
    }
    while let Some(ran) = running.join_next().await {
        sandboxes.push(ran??);
    }
    while let Some(followed) = following.join_next().await {
        let mut followed = followed??;
        total.started.append(&mut followed.started);
        total.finished.append(&mut followed.finished);
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Receives the events of that many commands.
async fn delays(followed: &mut WatchedSandbox, count: usize) -> Result<EventDelays> {
    let mut received = EventDelays::default();
    while received.finished.len() < count {
        let event = followed.next().await?;
        let delay = delay(&event)?;
        match event.event_type() {
            EventType::ExecStarted => received.started.push(delay),
            EventType::ExecFinished => received.finished.push(delay),
            kind => anyhow::bail!("{}: {kind:?}", followed.id),
        }
    }
    Ok(received)
}

/// Milliseconds since the time of an event.
fn delay(event: &SandboxEvent) -> Result<f64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let at = event.occurred_at.context("an event without a timestamp")?;
    let at = Duration::new(at.seconds.try_into()?, at.nanos.try_into()?);
    Ok((now.as_secs_f64() - at.as_secs_f64()) * 1e3)
}
