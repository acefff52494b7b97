//! From a prompt to the first event that the agent has a part in, with a stream open.

use std::time::Instant;

use anyhow::Result;

use super::client::Events;
use super::server::{Server, Whose};
use super::talk::Talk;
use super::{FACE, PEER};
use crate::measure::Effort;
use crate::report::Benchmark;
use crate::samples::{since, timed_in_turn};

const SESSION: &str = "first";

/// One session, and somebody who listens.
struct Listener<'a> {
    talk: Talk<'a>,
    events: Events,
    /// By what an event of the agent is known. The user's own words are one too, at ours.
    agent: &'static str,
    said: u32,
}

/// Measures prompts that both agents say back.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Benchmark>> {
    let (ours, theirs) = (Server::start(Whose::Ours)?, Server::start(Whose::Theirs)?);
    let mut our_listener = Listener::new(&ours, r#""role":"assistant""#)?;
    let mut their_listener = Listener::new(&theirs, r#""method":"mock/echo""#)?;
    let [first, their_first] =
        timed_in_turn(effort.of(1001, 11), [&mut || our_listener.hears(), &mut || their_listener.hears()])?;
    Ok(vec![
        Benchmark::new("agents server, prompt to the agent's first event", FACE, &first, "ms")
            .beside(PEER, &their_first)
            .aim("faster", first.median() < their_first.median()),
    ])
}

// === impl Listener ===

impl<'a> Listener<'a> {
    fn new(server: &'a Server, agent: &'static str) -> Result<Self> {
        let mut talk = Talk::with_mock(server)?;
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
