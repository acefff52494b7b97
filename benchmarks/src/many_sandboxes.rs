//! Many sandboxes at once: their creation rate, whether all of them answer, and the memory of an idle one.

use std::rc::Rc;
use std::time::Instant;

use anyhow::{Result, ensure};
use carrel_agent_client::AgentClient;
use carrel_shim_client::OwnedSandbox;
use tokio::task::LocalSet;

use crate::measure::MeasurementEffort;
use crate::memory::{REST, available, pss};
use crate::report::Benchmark;
use crate::samples::{Samples, since};
use crate::sandbox::{BenchmarkHome, runtime};

const FACE: &str = "shim client";
/// How many are created concurrently.
const AT_ONCE: usize = 8;

/// Sandboxes, and the time of each creation.
struct SandboxBatch {
    sandboxes: Vec<OwnedSandbox>,
    times: Samples,
    seconds: f64,
}

/// Measures one sandbox, and then many.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (home, runtime, count) = (Rc::new(BenchmarkHome::new()?), runtime()?, effort.of(200, 8));
    // Memory that the first sandbox needs stays allocated.
    drop(runtime.block_on(home.start())?);

    let alone = runtime.block_on(home.start())?;
    std::thread::sleep(REST);
    let resident = pss(&alone)?;
    drop(alone);

    let before = available()?;
    let batch = runtime.block_on(LocalSet::new().run_until(create_many(&home, count, 1)))?;
    let answered = runtime.block_on(count_responsive(&batch.sandboxes));
    std::thread::sleep(REST);
    let each = batch.sandboxes.iter().map(pss).sum::<Result<f64>>()? / count as f64;
    let on_host = (before - available()?) / count as f64;
    let mut lines = vec![
        Benchmark::new("memory of shim and agentd, one sandbox at rest (PSS)", FACE, resident, "MiB")
            .aim("at most 3 MiB", resident <= 3.0),
        Benchmark::new(format!("memory of shim and agentd, each of {count} at rest (PSS)"), FACE, each, "MiB")
            .aim("at most 3 MiB", each <= 3.0),
        Benchmark::new(format!("memory of the host, for each of {count} at rest"), FACE, on_host, "MiB")
            .aim("at most 5 MiB", on_host <= 5.0),
        Benchmark::new(format!("sandboxes that answer a ping, of {count} alive"), FACE, answered as f64, "")
            .aim("all", answered == count),
    ];
    lines.extend(batch.lines(count, "one after the other"));
    drop(batch);

    let batch = runtime.block_on(LocalSet::new().run_until(create_many(&home, count, AT_ONCE)))?;
    let answered = runtime.block_on(count_responsive(&batch.sandboxes));
    ensure!(answered == count, "only {answered} of {count} answer");
    lines.extend(batch.lines(count, "8 at a time"));
    drop(batch);
    ensure!(home.leftovers().is_empty(), "leftovers: {:?}", home.leftovers());
    Ok(lines)
}

/// Creates that many sandboxes, some concurrently.
async fn create_many(home: &Rc<BenchmarkHome>, count: usize, at_once: usize) -> Result<SandboxBatch> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..at_once)
        .map(|task| {
            let home = home.clone();
            tokio::task::spawn_local(async move {
                let mut created = Vec::new();
                for _ in (task..count).step_by(at_once) {
                    let start = Instant::now();
                    created.push((home.start().await?, since(start)));
                }
                anyhow::Ok(created)
            })
        })
        .collect();
    let mut created = Vec::new();
    for task in tasks {
        created.extend(task.await??);
    }
    let seconds = started.elapsed().as_secs_f64();
    let (sandboxes, times) = created.into_iter().unzip();
    Ok(SandboxBatch { sandboxes, times: Samples::of(times), seconds })
}

/// How many of them answer.
async fn count_responsive(sandboxes: &[OwnedSandbox]) -> usize {
    let mut answered = 0;
    for sandbox in sandboxes {
        if let Ok(client) = AgentClient::connect(sandbox.agent_socket()).await {
            answered += usize::from(client.ping().await.is_ok());
        }
    }
    answered
}

// === impl SandboxBatch ===

impl SandboxBatch {
    fn lines(&self, count: usize, how: &str) -> Vec<Benchmark> {
        vec![
            Benchmark::new(format!("create, {count} sandboxes {how}"), FACE, &self.times, "ms"),
            Benchmark::new(format!("creates per second, {how}"), FACE, count as f64 / self.seconds, "/s"),
        ]
    }
}
