//! Fifty sessions: the time to create them, and the memory of a server with them.

use std::thread::sleep;
use std::time::Instant;

use anyhow::Result;

use super::server::{AgentsServer, ServerOrigin};
use super::session_client::SessionClient;
use super::{FACE, PEER};
use crate::measure::MeasurementEffort;
use crate::memory::{REST, pss_of};
use crate::report::Benchmark;
use crate::samples::{Samples, since, timed_in_turn};

const MANY: u32 = 50;

/// Measures fifty sessions. Those of the published server share one agent process, whose memory does not count: its best
/// case.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (mut memory, mut their_memory) = (Vec::new(), Vec::new());
    let [times, their_times] = timed_in_turn(
        effort.of(11, 1),
        [&mut || fifty(ServerOrigin::Ours, &mut memory), &mut || fifty(ServerOrigin::Theirs, &mut their_memory)],
    )?;
    let (memory, their_memory) = (Samples::of(memory), Samples::of(their_memory));
    Ok(vec![
        Benchmark::new(format!("agents server, create {MANY} sessions one after the other"), FACE, &times, "ms")
            .beside(PEER, &their_times)
            .aim("faster", times.median() < their_times.median()),
        Benchmark::new(format!("memory of the agents server, {MANY} sessions (PSS)"), FACE, memory.median(), "MiB")
            .beside(PEER, their_memory.median())
            .aim("less", memory.median() < their_memory.median()),
    ])
}

fn fifty(origin: ServerOrigin, memory: &mut Vec<f64>) -> Result<f64> {
    let server = AgentsServer::start(origin)?;
    let mut client = SessionClient::with_mock(&server)?;
    client.initialize()?;
    let start = Instant::now();
    for number in 0..MANY {
        client.create(&format!("session-{number}"))?;
    }
    let elapsed = since(start);
    sleep(REST);
    memory.push(pss_of(server.pid())?);
    Ok(elapsed)
}
