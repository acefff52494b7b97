//! From the start of a server to its first healthy answer.

use anyhow::Result;

use super::server::{AgentsServer, ServerOrigin};
use super::{FACE, PEER};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::timed_in_turn;

/// Measures servers that are started in turn.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let [ours, theirs] = timed_in_turn(
        effort.of(101, 3),
        [&mut || Ok(AgentsServer::start(ServerOrigin::Ours)?.start_time), &mut || {
            Ok(AgentsServer::start(ServerOrigin::Theirs)?.start_time)
        }],
    )?;
    let met = ours.median() < theirs.median() && ours.median() < 50.0;
    Ok(vec![
        Benchmark::new("agents server, start to healthy", FACE, &ours, "ms")
            .beside(PEER, &theirs)
            .aim("faster, and under 50 ms", met),
    ])
}
