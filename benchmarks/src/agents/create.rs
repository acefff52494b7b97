//! One session more, and the first one.

use std::time::Instant;

use anyhow::Result;

use super::server::{Server, Whose};
use super::talk::Talk;
use super::{FACE, PEER};
use crate::measure::Effort;
use crate::report::Benchmark;
use crate::samples::{since, timed_in_turn};

/// Measures sessions of the built-in agents.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Benchmark>> {
    let (ours, theirs) = (Server::start(Whose::Ours)?, Server::start(Whose::Theirs)?);
    let (mut our_talk, mut their_talk) = (Talk::with_mock(&ours)?, Talk::with_mock(&theirs)?);
    their_talk.introduce()?;
    let (mut made, mut their_made) = (0, 0);
    let [more, their_more] = timed_in_turn(
        effort.of(1001, 11),
        [&mut || one_more(&mut our_talk, &mut made), &mut || one_more(&mut their_talk, &mut their_made)],
    )?;
    let [first, their_first] =
        timed_in_turn(effort.of(51, 3), [&mut || the_first(Whose::Ours), &mut || the_first(Whose::Theirs)])?;
    Ok(vec![
        Benchmark::new("agents server, create a session", FACE, &more, "ms")
            .beside(PEER, &their_more)
            .aim("faster", more.median() < their_more.median()),
        Benchmark::new("agents server, create its first session", FACE, &first, "ms")
            .beside(PEER, &their_first)
            .aim("faster", first.median() < their_first.median()),
    ])
}

/// One where there are others: theirs has the process of the agent already.
fn one_more(talk: &mut Talk<'_>, made: &mut u32) -> Result<f64> {
    *made += 1;
    let asked = Instant::now();
    talk.create(&format!("session-{made}"))?;
    Ok(since(asked))
}

/// One where there is nothing: theirs starts the process of the agent.
fn the_first(whose: Whose) -> Result<f64> {
    let server = Server::start(whose)?;
    let mut talk = Talk::with_mock(&server)?;
    let asked = Instant::now();
    talk.introduce()?;
    talk.create("first")?;
    Ok(since(asked))
}
