//! The time to create a session, and to create the first session of a server.

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
    let (mut our_client, mut their_client) = (SessionClient::with_mock(&ours)?, SessionClient::with_mock(&theirs)?);
    their_client.initialize()?;
    let (mut created, mut their_created) = (0, 0);
    let [next, their_next] = timed_in_turn(
        effort.of(1001, 11),
        [&mut || next_session(&mut our_client, &mut created), &mut || {
            next_session(&mut their_client, &mut their_created)
        }],
    )?;
    let [first, their_first] = timed_in_turn(
        effort.of(51, 3),
        [&mut || first_session(ServerOrigin::Ours), &mut || first_session(ServerOrigin::Theirs)],
    )?;
    Ok(vec![
        Benchmark::new("agents server, create a session", FACE, &next, "ms")
            .beside(PEER, &their_next)
            .aim("faster", next.median() < their_next.median()),
        Benchmark::new("agents server, create its first session", FACE, &first, "ms")
            .beside(PEER, &their_first)
            .aim("faster", first.median() < their_first.median()),
    ])
}

/// A session on a server with others: the published server already has the process of the agent.
fn next_session(client: &mut SessionClient<'_>, created: &mut u32) -> Result<f64> {
    *created += 1;
    let start = Instant::now();
    client.create(&format!("session-{created}"))?;
    Ok(since(start))
}

/// The first session: the published server starts the process of the agent.
fn first_session(origin: ServerOrigin) -> Result<f64> {
    let server = AgentsServer::start(origin)?;
    let mut client = SessionClient::with_mock(&server)?;
    let start = Instant::now();
    client.initialize()?;
    client.create("first")?;
    Ok(since(start))
}
