//! The daemon: what a sandbox and a command cost through it, how events come, and what it holds while all rest.

mod client;
mod create;
mod daemon;
mod events;
mod exec;
mod idle;
mod life;
mod many;
mod syncs;

use anyhow::Result;

use crate::measure::Effort;
use crate::report::Benchmark;

const FACE: &str = "gRPC";

/// Measures `carrel serve`, each part with a daemon of its own.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Benchmark>> {
    let parts = [create::run, exec::run, life::run, events::run, syncs::run, many::run, idle::run];
    Ok(parts.into_iter().map(|part| part(effort)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}
