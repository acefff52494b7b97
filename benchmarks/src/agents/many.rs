//! Fifty sessions: how long they take, and what a server holds with them.

use std::thread::sleep;
use std::time::Instant;

use anyhow::Result;

use super::server::{Server, Whose};
use super::talk::Talk;
use super::{FACE, PEER};
use crate::measure::Effort;
use crate::memory::{REST, pss_of};
use crate::report::Benchmark;
use crate::samples::{Samples, since, timed_in_turn};

const MANY: u32 = 50;

/// Measures fifty sessions. Theirs are all of one agent's process, whose memory does not count: what costs it least.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Benchmark>> {
    let (mut memory, mut their_memory) = (Vec::new(), Vec::new());
    let [times, their_times] = timed_in_turn(
        effort.of(11, 1),
        [&mut || fifty(Whose::Ours, &mut memory), &mut || fifty(Whose::Theirs, &mut their_memory)],
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

fn fifty(whose: Whose, memory: &mut Vec<f64>) -> Result<f64> {
    let server = Server::start(whose)?;
    let mut talk = Talk::with_mock(&server)?;
    talk.introduce()?;
    let asked = Instant::now();
    for number in 0..MANY {
        talk.create(&format!("session-{number}"))?;
    }
    let taken = since(asked);
    sleep(REST);
    memory.push(pss_of(server.pid())?);
    Ok(taken)
}
