//! The end of a sandbox, told by somebody else than its supervisor.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use carrel_shim_client::layout::{self, JOURNAL};
use carrel_shim_client::messages::{EndReason, Fact, FactKind, Outcome, OutcomeKind};
use carrel_shim_client::{Journal, JournalError};
use rustix::fs::AtFlags;
use rustix::io::Errno;

/// Of how many jobs an end is told, each by itself. No supervisor has as many at a time.
const MOST_JOBS: usize = 16 * 1024;

/// Whether the journal of a dead one tells an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It told one, or is no journal.
    Before,
    /// It tells one now.
    Now,
    /// It is larger than what is read, and stays as it is.
    Large(u64),
}

/// Jobs that were started and of which no end is told.
#[derive(Debug, Default)]
struct Unfinished {
    /// The sequence with which each began.
    began: HashMap<String, u64>,
    /// Whether there were more than there can be.
    absurd: bool,
}

/// Sees to it that the journal of a dead one tells an end.
pub(super) fn tell(directory: &OwnedFd) -> Result<Told, JournalError> {
    // Nobody appends to it any more.
    if let Ok(stat) = rustix::fs::statat(directory, JOURNAL, AtFlags::SYMLINK_NOFOLLOW) {
        match u64::try_from(stat.st_size) {
            Ok(bytes) if bytes > Journal::LARGEST => return Ok(Told::Large(bytes)),
            _ => {}
        }
    }
    let (mut last, mut unfinished) = (None, Unfinished::default());
    let opened = Journal::open_with(directory, |fact| {
        last = Some(fact.kind);
        unfinished.hear(fact);
    });
    let mut journal = match opened {
        Ok(journal) => journal,
        // Nothing can be added to what is no journal, and it is not ours to begin a new one: sequences are used once.
        Err(JournalError::NoJournal | JournalError::Format { .. }) => return Ok(Told::Before),
        Err(JournalError::Open(error)) if is_strange(&error) => return Ok(Told::Before),
        Err(error) => return Err(error),
    };
    if last.is_some_and(|kind| matches!(kind, FactKind::Ended | FactKind::Failed)) {
        return Ok(Told::Before);
    }
    for job in unfinished.in_order() {
        let outcome = Outcome::of(OutcomeKind::SandboxEnded);
        let fact = Fact::new(layout::now_ms(), FactKind::JobEnded);
        journal.append(Fact { job: Some(job), outcome: Some(outcome), ..fact })?;
    }
    let message = Some("its supervisor was lost".to_owned());
    let reason = Some(EndReason::SupervisorLost);
    journal.append(Fact { reason, message, ..Fact::new(layout::now_ms(), FactKind::Ended) })?;
    Ok(Told::Now)
}

/// Whether something is not there, or is not a file.
fn is_strange(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR))
}

// === impl Unfinished ===

impl Unfinished {
    fn hear(&mut self, fact: Fact) {
        match (fact.kind, fact.job) {
            (FactKind::JobStarted, Some(job)) if !self.absurd => {
                self.began.insert(job, fact.sequence);
            }
            (FactKind::JobEnded, Some(job)) => {
                self.began.remove(&job);
            }
            _ => {}
        }
        if self.began.len() > MOST_JOBS {
            // Nobody believes that; that the sandbox has ended says it of all of them.
            *self = Self { began: HashMap::new(), absurd: true };
        }
    }

    /// The jobs, in the order in which they began.
    fn in_order(self) -> Vec<String> {
        let mut jobs: Vec<_> = self.began.into_iter().map(|(job, sequence)| (sequence, job)).collect();
        jobs.sort_unstable();
        jobs.into_iter().map(|(_, job)| job).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(sequence: u64, kind: FactKind, job: &str) -> Fact {
        Fact { sequence, job: Some(job.to_owned()), ..Fact::new(1, kind) }
    }

    #[test]
    fn jobs_of_which_no_end_is_told_are_known_in_their_order() {
        let mut unfinished = Unfinished::default();
        for (sequence, job) in (1..).zip(["c", "a", "b"]) {
            unfinished.hear(about(sequence, FactKind::JobStarted, job));
        }
        unfinished.hear(about(4, FactKind::JobEnded, "a"));
        unfinished.hear(about(5, FactKind::JobEnded, "unknown"));
        assert_eq!(unfinished.in_order(), ["c", "b"]);
    }

    #[test]
    fn more_jobs_than_there_can_be_are_not_remembered() {
        let mut unfinished = Unfinished::default();
        let mut start = |number: usize| {
            unfinished.hear(about(number as u64, FactKind::JobStarted, &number.to_string()));
            unfinished.began.len()
        };
        for number in 1..=MOST_JOBS {
            assert_eq!(start(number), number);
        }
        assert_eq!((start(MOST_JOBS + 1), start(MOST_JOBS + 2)), (0, 0));
        assert!(unfinished.in_order().is_empty());
    }
}
