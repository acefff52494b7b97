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

/// What has arrived so far.
#[derive(Debug, Default)]
struct BurstTally {
    arrived: usize,
    last: usize,
    /// Whether any arrived out of order or twice.
    disorder: bool,
}

/// The events that arrived of each round's burst.
#[derive(Debug, Default)]
struct BurstTallies(Vec<BurstTally>);

/// Measures bursts of a program, and of our server's built-in agent.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let count = effort.of(100_000, 5_000);
    let [mut ours, mut mock, mut theirs] = [const { BurstTallies(Vec::new()) }; 3];
    let [rate, mock_rate, their_rate] = timed_in_turn(
        effort.of(11, 1),
        [&mut || played(ServerOrigin::Ours, count, &mut ours), &mut || built_in(count, &mut mock), &mut || {
            played(ServerOrigin::Theirs, count, &mut theirs)
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
        let all = tallies.0.iter().all(|tally| tally.is_whole(count));
        lines.push(
            Benchmark::new(name("the fewest that arrived"), FACE, tallies.fewest(), "")
                .beside(PEER, theirs.fewest())
                .aim("all, in order, each once", all),
        );
    }
    Ok(lines)
}

/// Events per second of a program that emits that many.
fn played(whose: ServerOrigin, count: usize, tallies: &mut BurstTallies) -> Result<f64> {
    let server = AgentsServer::with_player(whose)?;
    burst(SessionClient::with_player(&server)?, ["1", &count.to_string()], count, tallies)
        .with_context(|| format!("{whose:?}"))
}

/// Events per second of our server's built-in agent.
fn built_in(count: usize, tallies: &mut BurstTallies) -> Result<f64> {
    let server = AgentsServer::start(ServerOrigin::Ours)?;
    burst(SessionClient::with_mock(&server)?, ["burst 1", &format!("burst {count}")], count, tallies)
}

fn burst(
    mut talk: SessionClient<'_>,
    [word, words]: [&str; 2],
    count: usize,
    tallies: &mut BurstTallies,
) -> Result<f64> {
    talk.introduce()?;
    talk.create(SESSION)?;
    let mut events = talk.events(SESSION)?;
    // The process is started first: its start time is another number.
    talk.prompt(SESSION, word)?;
    hear(&mut events, 1)?;
    talk.taken()?;
    let asked = Instant::now();
    talk.prompt(SESSION, words)?;
    let tally = hear(&mut events, count)?;
    let taken = asked.elapsed().as_secs_f64();
    talk.taken()?;
    let rate = tally.arrived as f64 / taken;
    tallies.0.push(tally);
    Ok(rate)
}

/// Receives all events of a burst, or those that arrive.
fn hear(events: &mut EventStream, count: usize) -> Result<BurstTally> {
    let mut tally = BurstTally::default();
    while tally.last < count {
        let event = events.next()?;
        if let Some(number) = number_of(event) {
            tally.take(number);
        } else if event.contains("stopReason") && tally.arrived > 0 {
            // Nothing follows: what has not arrived is lost.
            break;
        }
    }
    Ok(tally)
}

/// The number of a message of a burst; none for the user's own message.
fn number_of(event: &str) -> Option<usize> {
    let (before, behind) = event.split_once(r#""text":"burst "#)?;
    let digits = behind.split('"').next()?;
    if before.contains(r#""role":"user""#) { None } else { digits.parse().ok() }
}

// === impl BurstTally ===

impl BurstTally {
    fn take(&mut self, number: usize) {
        self.disorder |= number <= self.last;
        self.arrived += 1;
        self.last = number;
    }

    /// Whether each event from 1 on arrived once and in order.
    fn is_whole(&self, count: usize) -> bool {
        !self.disorder && self.arrived == count && self.last == count
    }
}

// === impl BurstTallies ===

impl BurstTallies {
    fn fewest(&self) -> f64 {
        Samples::of(self.0.iter().map(|tally| tally.arrived as f64).collect()).least()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(numbers: &[usize]) -> BurstTally {
        let mut tally = BurstTally::default();
        numbers.iter().for_each(|&number| tally.take(number));
        tally
    }

    #[test]
    fn a_burst_is_complete_only_if_each_event_arrived_once_and_in_order() {
        assert!(tally(&[1, 2, 3]).is_whole(3));
        for numbers in [&[1, 3][..], &[1, 2], &[1, 3, 2], &[1, 2, 2, 3], &[1, 1, 3]] {
            assert!(!tally(numbers).is_whole(3), "{numbers:?}");
        }
    }

    #[test]
    fn the_message_of_the_user_does_not_count() {
        let event = |role: &str| format!(r#"data: {{"message":{{"role":"{role}","parts":[{{"text":"burst 17"}}]}}}}"#);
        assert_eq!(number_of(&event("assistant")), Some(17));
        assert_eq!(number_of(&event("user")), None);
    }
}
