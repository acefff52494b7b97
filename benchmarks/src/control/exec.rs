//! A command in a ready sandbox, until its exit is received.

use std::process::Command;

use anyhow::{Result, ensure};

use super::FACE;
use super::daemon::MeasuredDaemon;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::in_turn;

const PROGRAM: &str = "/bin/true";

/// Measures `true`, from the request to its exit on an open stream.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let daemon = MeasuredDaemon::start()?;
    let mut client = daemon.client()?;
    let mut sandbox = daemon.runtime.block_on(client.ready(&daemon.name()))?;
    let [ours, bare] = in_turn(
        effort.of(1001, 5),
        [&mut || daemon.runtime.block_on(client.run(&mut sandbox)).map(drop), &mut || {
            ensure!(Command::new(PROGRAM).status()?.success(), "{PROGRAM} failed");
            Ok(())
        }],
    )?;
    daemon.runtime.block_on(client.delete_all(vec![sandbox]))?;
    Ok(vec![
        Benchmark::new("exec of `true`, to EXEC_FINISHED seen", FACE, &ours, "ms")
            .beside("one bare spawn", &bare)
            .aim("at most 1 ms more (first implementation: 73 ms)", ours.median() - bare.median() <= 1.0),
    ])
}
