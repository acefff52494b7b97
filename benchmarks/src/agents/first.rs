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

/// A session with an open stream, in which prompts are timed.
struct PromptTimer<'a> {
    client: SessionClient<'a>,
    events: EventStream,
    /// Text in the events of the agent. Our server also emits the message of the user.
    agent: &'static str,
    prompts: u32,
}

/// Measures prompts that both agents echo.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (ours, theirs) = (AgentsServer::start(ServerOrigin::Ours)?, AgentsServer::start(ServerOrigin::Theirs)?);
    let mut our_timer = PromptTimer::new(&ours, r#""role":"assistant""#)?;
    let mut their_timer = PromptTimer::new(&theirs, r#""method":"mock/echo""#)?;
    let [first, their_first] =
        timed_in_turn(effort.of(1001, 11), [&mut || our_timer.time_prompt(), &mut || their_timer.time_prompt()])?;
    Ok(vec![
        Benchmark::new("agents server, prompt to the agent's first event", FACE, &first, "ms")
            .beside(PEER, &their_first)
            .aim("faster", first.median() < their_first.median()),
    ])
}

// === impl PromptTimer ===

impl<'a> PromptTimer<'a> {
    fn new(server: &'a AgentsServer, agent: &'static str) -> Result<Self> {
        let mut client = SessionClient::with_mock(server)?;
        client.initialize()?;
        client.create(SESSION)?;
        let events = client.events(SESSION)?;
        Ok(Self { client, events, agent, prompts: 0 })
    }

    fn time_prompt(&mut self) -> Result<f64> {
        self.prompts += 1;
        let prompt = format!("word-{}.", self.prompts);
        let start = Instant::now();
        self.client.prompt(SESSION, &prompt)?;
        loop {
            let event = self.events.next()?;
            if event.contains(self.agent) && event.contains(&prompt) {
                break;
            }
        }
        let elapsed = since(start);
        self.client.wait_for_response()?;
        Ok(elapsed)
    }
}
