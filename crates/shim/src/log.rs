//! The journal, as the supervisor keeps it: what could not be written at once is written later, and in order.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use carrel_shim_client::messages::{Fact, Outcome};
use carrel_shim_client::{Journal, JournalError};

/// How long is waited before what could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The journal of a sandbox.
#[derive(Debug)]
pub(crate) struct Log {
    journal: Journal,
    /// What happened and could not be written: nobody is told of it before it is.
    unwritten: VecDeque<Fact>,
    again: Option<Instant>,
}

/// The time, in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A fact without what can be of any length.
fn bare(fact: &Fact) -> Fact {
    let outcome = fact.outcome.clone().map(|outcome| Outcome { message: None, ..outcome });
    Fact { command: None, message: None, outcome, ..fact.clone() }
}

// === impl Log ===

impl Log {
    pub(crate) fn new(journal: Journal) -> Self {
        Self { journal, unwritten: VecDeque::new(), again: None }
    }

    /// Records something that may not happen before it is recorded.
    pub(crate) fn require(&mut self, fact: Fact) -> Result<u64, JournalError> {
        self.catch_up()?;
        self.journal.append(fact)
    }

    /// Records something that has happened.
    pub(crate) fn note(&mut self, fact: Fact) {
        self.unwritten.push_back(fact);
        if self.catch_up().is_err() {
            self.again = Some(Instant::now() + AGAIN);
        }
    }

    /// Tries again, when it is time; returns when that is.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<Instant> {
        if self.again.is_some_and(|again| again <= now) {
            self.again = self.catch_up().is_err().then(|| now + AGAIN);
        }
        self.again
    }

    fn catch_up(&mut self) -> Result<(), JournalError> {
        while let Some(fact) = self.unwritten.front() {
            match self.journal.append(fact.clone()) {
                // That it happened is told in any case, if not all that there is to say about it.
                Err(JournalError::TooLarge { .. }) => self.journal.append(bare(fact))?,
                written => written?,
            };
            self.unwritten.pop_front();
        }
        Ok(())
    }

    /// Has what is written on the disk, as far as that goes: when the host shuts down there is nobody to tell of more.
    pub(crate) fn sync(&self) {
        let _synced = self.journal.sync();
    }

    /// The last sequence.
    pub(crate) fn last(&self) -> u64 {
        self.journal.last()
    }

    /// Some facts, from a sequence on.
    pub(crate) fn read(&self, from: u64, most: usize) -> Result<Vec<Fact>, JournalError> {
        self.journal.read(from, most)
    }
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::FactKind;

    use super::*;

    #[test]
    fn what_is_too_long_to_be_recorded_is_recorded_without_it() {
        let home = tempfile::tempdir().unwrap();
        let mut log = Log::new(Journal::create(std::fs::File::open(home.path()).unwrap(), "i").unwrap());
        let long = Fact { message: Some("x".repeat(1 << 20)), ..Fact::new(1, FactKind::StopAsked) };
        assert!(log.require(long.clone()).is_err());
        log.note(long);
        log.note(Fact::new(2, FactKind::Ended));
        let kinds: Vec<_> = log.read(1, 10).unwrap().into_iter().map(|fact| (fact.sequence, fact.kind)).collect();
        assert_eq!(kinds, [(1, FactKind::StopAsked), (2, FactKind::Ended)]);
    }
}
