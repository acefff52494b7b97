//! How soon a sandbox is stopped.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use carrel_agent_client::{AgentClient, ExecRequest};

use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, since};
use crate::sandbox::{BenchmarkHome, runtime};

const FACE: &str = "shim client";
/// The grace period of a command.
const GRACE: Duration = Duration::from_secs(10);

/// Measures from the request until nothing is left, including the shim.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (home, runtime) = (BenchmarkHome::new()?, runtime()?);
    let (mut deleted, mut stopped) = (Vec::new(), Vec::new());
    for round in 0..=effort.of(101, 3) {
        for (grace, times) in [(Duration::ZERO, &mut deleted), (GRACE, &mut stopped)] {
            let mut sandbox = runtime.block_on(home.start())?;
            // A command that exits on SIGTERM.
            let request =
                ExecRequest { cmd: "sleep".to_owned(), args: vec!["1000".to_owned()], ..ExecRequest::default() };
            let running = runtime.block_on(async {
                let client = AgentClient::connect(sandbox.agent_socket()).await?;
                anyhow::Ok((client.exec(request).await?, client))
            })?;
            let start = Instant::now();
            runtime.block_on(sandbox.stop(grace))?;
            drop(sandbox);
            let elapsed = since(start);
            if round > 0 {
                times.push(elapsed);
            }
            drop(running);
            ensure!(home.leftovers().is_empty(), "leftovers: {:?}", home.leftovers());
        }
    }
    let (deleted, stopped) = (Samples::of(deleted), Samples::of(stopped));
    Ok(vec![
        Benchmark::new("delete, until nothing is left", FACE, &deleted, "ms")
            .aim("p50 under 20 ms", deleted.median() < 20.0),
        Benchmark::new("stop, with a command that ends when asked", FACE, &stopped, "ms")
            .aim("under 1 s", stopped.p99() < 1000.0),
    ])
}
