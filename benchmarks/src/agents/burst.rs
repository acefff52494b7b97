//! As many events as an agent can emit at once, to one reader: their rate, and whether all of them arrive.

use std::time::Instant;

use anyhow::{Context, Result};

use super::client::EventStream;
use super::server::{AgentsServer, ServerOrigin};
use super::session_client::SessionClient;
use super::{FACE, PEER};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, timed_in_turn};

const SESSION: &str = "burst";

/// The events received so far.
#[derive(Debug, Default)]
struct BurstTally {
    received: usize,
    last: usize,
    /// Whether any was received out of order or twice.
    disordered: bool,
}

/// The received events of the burst in each round.
#[derive(Debug, Default)]
struct BurstTallies(Vec<BurstTally>);

/// Measures bursts of a scripted agent, and of the built-in agent of our server.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let count = effort.of(100_000, 5_000);
    let [mut ours, mut mock, mut theirs] = [const { BurstTallies(Vec::new()) }; 3];
    let [rate, mock_rate, their_rate] = timed_in_turn(
        effort.of(11, 1),
        [&mut || scripted(ServerOrigin::Ours, count, &mut ours), &mut || built_in(count, &mut mock), &mut || {
            scripted(ServerOrigin::Theirs, count, &mut theirs)
        }],
    )?;
    let mut lines = Vec::new();
    for (agent, rate, tallies) in [("an agent's process", &rate, &ours), ("the built-in agent", &mock_rate, &mock)] {
        let name = |what: &str| format!("agents server, burst of {count} from {agent}: {what}");
        lines.push(
            Benchmark::new(name("events per second"), FACE, rate, "/s")
                .beside(PEER, &their_rate)
                .aim("faster", rate.median() > their_rate.median()),
        );
        let all = tallies.0.iter().all(|tally| tally.is_complete(count));
        lines.push(
            Benchmark::new(name("the fewest that arrived"), FACE, tallies.fewest(), "")
                .beside(PEER, theirs.fewest())
                .aim("all, in order, each once", all),
        );
    }
    Ok(lines)
}

/// Events per second of a scripted agent that emits that many.
fn scripted(origin: ServerOrigin, count: usize, tallies: &mut BurstTallies) -> Result<f64> {
    let server = AgentsServer::with_scripted_agent(origin)?;
    burst(SessionClient::with_scripted_agent(&server)?, ["1", &count.to_string()], count, tallies)
        .with_context(|| format!("{origin:?}"))
}

/// Events per second of the built-in agent of our server.
fn built_in(count: usize, tallies: &mut BurstTallies) -> Result<f64> {
    let server = AgentsServer::start(ServerOrigin::Ours)?;
    burst(SessionClient::with_mock(&server)?, ["burst 1", &format!("burst {count}")], count, tallies)
}

fn burst(
    mut client: SessionClient<'_>,
    [first, prompt]: [&str; 2],
    count: usize,
    tallies: &mut BurstTallies,
) -> Result<f64> {
    client.initialize()?;
    client.create(SESSION)?;
    let mut events = client.events(SESSION)?;
    // The process is started before: its start time is another benchmark.
    client.prompt(SESSION, first)?;
    receive(&mut events, 1)?;
    client.wait_for_response()?;
    let start = Instant::now();
    client.prompt(SESSION, prompt)?;
    let tally = receive(&mut events, count)?;
    let elapsed = start.elapsed().as_secs_f64();
    client.wait_for_response()?;
    let rate = tally.received as f64 / elapsed;
    tallies.0.push(tally);
    Ok(rate)
}

/// Receives the events of a burst until the last one, or the end of the turn.
fn receive(events: &mut EventStream, count: usize) -> Result<BurstTally> {
    let mut tally = BurstTally::default();
    while tally.last < count {
        let event = events.next()?;
        if let Some(number) = number_of(event) {
            tally.add(number);
        } else if event.contains("stopReason") && tally.received > 0 {
            // Nothing follows: the missing events are lost.
            break;
        }
    }
    Ok(tally)
}

/// The number of a message of a burst; none for the message of the user.
fn number_of(event: &str) -> Option<usize> {
    let (before, after) = event.split_once(r#""text":"burst "#)?;
    let digits = after.split('"').next()?;
    if before.contains(r#""role":"user""#) { None } else { digits.parse().ok() }
}

// === impl BurstTally ===

impl BurstTally {
    fn add(&mut self, number: usize) {
        self.disordered |= number <= self.last;
        self.received += 1;
        self.last = number;
    }

    /// Whether each event from 1 on was received once and in order.
    fn is_complete(&self, count: usize) -> bool {
        !self.disordered && self.received == count && self.last == count
    }
}

// === impl BurstTallies ===

impl BurstTallies {
    fn fewest(&self) -> f64 {
        Samples::of(self.0.iter().map(|tally| tally.received as f64).collect()).least()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(numbers: &[usize]) -> BurstTally {
        let mut tally = BurstTally::default();
        numbers.iter().for_each(|&number| tally.add(number));
        tally
    }

    #[test]
    fn a_burst_is_complete_only_if_each_event_is_received_once_and_in_order() {
        assert!(tally(&[1, 2, 3]).is_complete(3));
        for numbers in [&[1, 3][..], &[1, 2], &[1, 3, 2], &[1, 2, 2, 3], &[1, 1, 3]] {
            assert!(!tally(numbers).is_complete(3), "{numbers:?}");
        }
    }

    #[test]
    fn the_message_of_the_user_does_not_count() {
        let event = |role: &str| format!(r#"data: {{"message":{{"role":"{role}","parts":[{{"text":"burst 17"}}]}}}}"#);
        assert_eq!(number_of(&event("assistant")), Some(17));
        assert_eq!(number_of(&event("user")), None);
    }
}
