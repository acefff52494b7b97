//! The journal writer: facts that could not be written at once are retried in order.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use carrel_shim_client::messages::{Fact, JobOutcome};
use carrel_shim_client::{Journal, JournalError};

/// The retry interval.
const AGAIN: Duration = Duration::from_secs(1);

/// The journal of a sandbox.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    journal: Journal,
    /// Facts that could not be written yet: clients do not see them before.
    unwritten: VecDeque<Fact>,
    again: Option<Instant>,
}

/// The wall clock, in milliseconds since the epoch.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A fact without its unbounded parts.
fn without_unbounded_parts(fact: &Fact) -> Fact {
    let outcome = fact.outcome.clone().map(|outcome| JobOutcome { message: None, ..outcome });
    Fact { command: None, message: None, outcome, ..fact.clone() }
}

// === impl JournalWriter ===

impl JournalWriter {
    pub(crate) fn new(journal: Journal) -> Self {
        Self { journal, unwritten: VecDeque::new(), again: None }
    }

    /// Records a fact before it takes effect.
    pub(crate) fn record_before(&mut self, fact: Fact) -> Result<u64, JournalError> {
        self.catch_up()?;
        self.journal.append(fact)
    }

    /// Records a fact that has already happened.
    pub(crate) fn record(&mut self, fact: Fact) {
        self.unwritten.push_back(fact);
        if self.catch_up().is_err() {
            self.again = Some(Instant::now() + AGAIN);
        }
    }

    /// Retries when it is due; returns when.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<Instant> {
        if self.again.is_some_and(|again| again <= now) {
            self.again = self.catch_up().is_err().then(|| now + AGAIN);
        }
        self.again
    }

    fn catch_up(&mut self) -> Result<(), JournalError> {
        while let Some(fact) = self.unwritten.front() {
            match self.journal.append(fact.clone()) {
                // The fact is recorded in any case, if necessary without its details.
                Err(JournalError::TooLarge { .. }) => self.journal.append(without_unbounded_parts(fact))?,
                written => written?,
            };
            self.unwritten.pop_front();
        }
        Ok(())
    }

    /// Syncs the journal, best effort: when the host shuts down, errors cannot be reported.
    pub(crate) fn sync(&self) {
        let _synced = self.journal.sync();
    }

    /// The last sequence.
    pub(crate) fn last(&self) -> u64 {
        self.journal.last()
    }

    /// Facts from a sequence on.
    pub(crate) fn read(&self, from: u64, most: usize) -> Result<Vec<Fact>, JournalError> {
        self.journal.read(from, most)
    }
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::FactKind;

    use super::*;

    #[test]
    fn a_fact_that_is_too_long_is_recorded_without_its_details() {
        let home = tempfile::tempdir().unwrap();
        let mut log = JournalWriter::new(Journal::create(std::fs::File::open(home.path()).unwrap(), "i").unwrap());
        let long = Fact { message: Some("x".repeat(1 << 20)), ..Fact::new(1, FactKind::StopAsked) };
        assert!(log.record_before(long.clone()).is_err());
        log.record(long);
        log.record(Fact::new(2, FactKind::Ended));
        let kinds: Vec<_> = log.read(1, 10).unwrap().into_iter().map(|fact| (fact.sequence, fact.kind)).collect();
        assert_eq!(kinds, [(1, FactKind::StopAsked), (2, FactKind::Ended)]);
    }
}
