//! The latency of an agent: alone and through a relay, idle and during a transfer of a gibibyte.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use carrel_agent_client::AgentClient;
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use crate::agent::MeasuredAgent;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, in_turn, since};
use crate::sandbox::{MeasuredSandbox, runtime};

const MEBIBYTE: usize = 1024 * 1024;
/// The pause between two pings of a busy agent.
const PAUSE: Duration = Duration::from_millis(1);

/// Transfers files through the same socket while pings are timed.
struct FileTransfer<'a> {
    socket: &'a Path,
    original: &'a Path,
    inside: &'a str,
    times: usize,
}

/// Measures pings.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (agent, sandbox) = (MeasuredAgent::start()?, MeasuredSandbox::start()?);
    let idle = |runtime: &Runtime, client: &AgentClient| Ok(runtime.block_on(client.ping())?);
    let [direct, relayed] = in_turn(
        effort.of(10_001, 101),
        [&mut || idle(&agent.runtime, &agent.client), &mut || idle(&sandbox.runtime, &sandbox.client)],
    )?;
    let mut lines = vec![
        Benchmark::new("ping through the relay", "agent client, relay", &relayed, "ms")
            .beside("ping of an agent without one", &direct),
    ];

    let (total, each) = (effort.of(1024, 64), effort.of(256, 16));
    let mut original = NamedTempFile::new()?;
    for _ in 0..each {
        original.write_all(&[7; MEBIBYTE])?;
    }
    let transfer = |socket, inside| FileTransfer { socket, original: original.path(), inside, times: total / each };
    let inside = agent.path("inside").to_string_lossy().into_owned();
    let paths = [
        ("agent client", &agent.runtime, &agent.client, transfer(&agent.socket, &inside), &direct),
        (
            "agent client, relay",
            &sandbox.runtime,
            &sandbox.client,
            transfer(sandbox.owned.agent_socket(), "/inside"),
            &relayed,
        ),
    ];
    for (face, runtime, client, transfer, idle) in paths {
        let (inward, outward) = (
            transfer.pings(runtime, client, FileTransfer::inward)?,
            transfer.pings(runtime, client, FileTransfer::outward)?,
        );
        for (direction, times) in [("in", inward), ("out", outward)] {
            lines.push(
                Benchmark::new(format!("ping while {total} MiB move {direction}, p99"), face, times.p99(), "ms")
                    .beside("ping at rest, median", idle.median())
                    .aim("under 20 ms", times.p99() < 20.0),
            );
        }
    }
    Ok(lines)
}

// === impl FileTransfer ===

impl FileTransfer<'_> {
    /// Pings during a transfer by another client on another thread.
    fn pings(&self, runtime: &Runtime, client: &AgentClient, direction: fn(&Self) -> Result<()>) -> Result<Samples> {
        std::thread::scope(|scope| {
            let transferring = scope.spawn(|| direction(self));
            let mut times = Vec::new();
            while !transferring.is_finished() {
                let start = Instant::now();
                runtime.block_on(client.ping())?;
                times.push(since(start));
                std::thread::sleep(PAUSE);
            }
            transferring.join().ok().context("the transfer panicked")??;
            Ok(Samples::of(times))
        })
    }

    fn inward(&self) -> Result<()> {
        let runtime = runtime()?;
        runtime.block_on(async {
            let files = AgentClient::connect(self.socket).await?.files();
            // To a new file each time: the truncation of an existing one would be measured as well.
            for number in 0..self.times {
                files.upload_file(format!("{}-{number}", self.inside), File::open(self.original)?).await?;
            }
            Ok(())
        })
    }

    fn outward(&self) -> Result<()> {
        let runtime = runtime()?;
        runtime.block_on(async {
            let files = AgentClient::connect(self.socket).await?.files();
            for _ in 0..self.times {
                files.download_file(format!("{}-0", self.inside), File::create("/dev/null")?).await?;
            }
            Ok(())
        })
    }
}
