//! Creates a session, and the first session.

use std::time::Instant;

use anyhow::Result;

use super::server::{AgentsServer, ServerOrigin};
use super::session_client::SessionClient;
use super::{FACE, PEER};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{since, timed_in_turn};

/// Measures sessions of the built-in agents.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (ours, theirs) = (AgentsServer::start(ServerOrigin::Ours)?, AgentsServer::start(ServerOrigin::Theirs)?);
    let (mut our_talk, mut their_talk) = (SessionClient::with_mock(&ours)?, SessionClient::with_mock(&theirs)?);
    their_talk.introduce()?;
    let (mut made, mut their_made) = (0, 0);
    let [more, their_more] = timed_in_turn(
        effort.of(1001, 11),
        [&mut || one_more(&mut our_talk, &mut made), &mut || one_more(&mut their_talk, &mut their_made)],
    )?;
    let [first, their_first] = timed_in_turn(
        effort.of(51, 3),
        [&mut || the_first(ServerOrigin::Ours), &mut || the_first(ServerOrigin::Theirs)],
    )?;
    Ok(vec![
        Benchmark::new("agents server, create a session", FACE, &more, "ms")
            .beside(PEER, &their_more)
            .aim("faster", more.median() < their_more.median()),
        Benchmark::new("agents server, create its first session", FACE, &first, "ms")
            .beside(PEER, &their_first)
            .aim("faster", first.median() < their_first.median()),
    ])
}

/// A session where there are others: the published server already has the process of the agent.
fn one_more(talk: &mut SessionClient<'_>, made: &mut u32) -> Result<f64> {
    *made += 1;
    let asked = Instant::now();
    talk.create(&format!("session-{made}"))?;
    Ok(since(asked))
}

/// The first session: the published server starts the process of the agent.
fn the_first(whose: ServerOrigin) -> Result<f64> {
    let server = AgentsServer::start(whose)?;
    let mut talk = SessionClient::with_mock(&server)?;
    let asked = Instant::now();
    talk.introduce()?;
    talk.create("first")?;
    Ok(since(asked))
}
