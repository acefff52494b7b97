//! From a prompt to the agent's first event, with a stream open.

use std::time::Instant;

use anyhow::Result;

use super::client::EventStream;
use super::server::{AgentsServer, ServerOrigin};
use super::session_client::SessionClient;
use super::{FACE, PEER};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{since, timed_in_turn};

const SESSION: &str = "first";

/// One session with an open stream.
struct SessionListener<'a> {
    talk: SessionClient<'a>,
    events: EventStream,
    /// What identifies an event of the agent. Our server also emits the user's own message.
    agent: &'static str,
    said: u32,
}

/// Measures prompts that both agents echo.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (ours, theirs) = (AgentsServer::start(ServerOrigin::Ours)?, AgentsServer::start(ServerOrigin::Theirs)?);
    let mut our_listener = SessionListener::new(&ours, r#""role":"assistant""#)?;
    let mut their_listener = SessionListener::new(&theirs, r#""method":"mock/echo""#)?;
    let [first, their_first] =
        timed_in_turn(effort.of(1001, 11), [&mut || our_listener.hears(), &mut || their_listener.hears()])?;
    Ok(vec![
        Benchmark::new("agents server, prompt to the agent's first event", FACE, &first, "ms")
            .beside(PEER, &their_first)
            .aim("faster", first.median() < their_first.median()),
    ])
}

// === impl SessionListener ===

impl<'a> SessionListener<'a> {
    fn new(server: &'a AgentsServer, agent: &'static str) -> Result<Self> {
        let mut talk = SessionClient::with_mock(server)?;
        talk.introduce()?;
        talk.create(SESSION)?;
        let events = talk.events(SESSION)?;
        Ok(Self { talk, events, agent, said: 0 })
    }

    fn hears(&mut self) -> Result<f64> {
        self.said += 1;
        let words = format!("word-{}.", self.said);
        let asked = Instant::now();
        self.talk.prompt(SESSION, &words)?;
        loop {
            let event = self.events.next()?;
            if event.contains(self.agent) && event.contains(&words) {
                break;
            }
        }
        let taken = since(asked);
        self.talk.taken()?;
        Ok(taken)
    }
}
