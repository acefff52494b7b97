//! Creation of a sandbox, until its ready event and until the exit of its first command are received.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, ensure};
use carrel_api::agbox::v1::EventType;

use super::FACE;
use super::daemon::MeasuredDaemon;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, since, timed_in_turn};

pub(super) const BWRAP: &str = "`bwrap --unshare-all --ro-bind / / true`";

/// Measures sandboxes that are created and deleted, one at a time.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let daemon = MeasuredDaemon::start()?;
    let (mut client, mut finished) = (daemon.client()?, Vec::new());
    let [ready, bwrap] = timed_in_turn(
        effort.of(201, 5),
        [
            &mut || {
                daemon.runtime.block_on(async {
                    let start = Instant::now();
                    let mut sandbox = client.ready(&daemon.name()).await?;
                    let elapsed = since(start);
                    client.run(&mut sandbox).await?;
                    finished.push(since(start));
                    client.delete(&sandbox.id).await?;
                    sandbox.until(EventType::SandboxDeleted).await?;
                    Ok(elapsed)
                })
            },
            &mut || {
                let start = Instant::now();
                ensure!(bwrap().status()?.success(), "bwrap failed");
                Ok(since(start))
            },
        ],
    )?;
    // The first one is the warm-up.
    let finished = Samples::of(finished.split_off(1));
    let line = |name, ours: &Samples| {
        Benchmark::new(name, FACE, ours, "ms")
            .beside(BWRAP, &bwrap)
            .aim("at most 2 times", ours.median() <= 2.0 * bwrap.median())
    };
    Ok(vec![
        line("create, cold, to SANDBOX_READY seen", &ready),
        line("create, cold, to EXEC_FINISHED of `true` seen", &finished),
    ])
}

/// Another program that creates a sandbox for one command.
pub(super) fn bwrap() -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--ro-bind", "/", "/", "true"]).stdin(Stdio::null());
    command
}
