//! Records the end of a sandbox whose shim died.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use carrel_shim_client::layout::{self, JOURNAL};
use carrel_shim_client::messages::{EndReason, Fact, FactKind, JobOutcome, OutcomeKind};
use carrel_shim_client::{Journal, JournalError};
use rustix::fs::AtFlags;
use rustix::io::Errno;

/// The maximum number of jobs whose ends are recorded individually. No shim has as many at a time.
const MAX_JOBS: usize = 16 * 1024;

/// Whether the journal of a dead sandbox has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalEndCheck {
    /// It had one, or is not a journal.
    Unchanged,
    /// It was appended now.
    Appended,
    /// It is too large to be read, and stays unchanged.
    TooLarge(u64),
}

/// Jobs that were started and have no recorded end.
#[derive(Debug, Default)]
struct UnfinishedJobs {
    /// The sequence at which each was started.
    began: HashMap<String, u64>,
    /// Whether there were more than the maximum.
    too_many: bool,
}

/// Appends an end to the journal of a dead sandbox if it has none.
pub(super) fn append(directory: &OwnedFd) -> Result<JournalEndCheck, JournalError> {
    // No other process appends to it any more.
    if let Ok(stat) = rustix::fs::statat(directory, JOURNAL, AtFlags::SYMLINK_NOFOLLOW) {
        match u64::try_from(stat.st_size) {
            Ok(bytes) if bytes > Journal::LARGEST => return Ok(JournalEndCheck::TooLarge(bytes)),
            _ => {}
        }
    }
    let (mut last, mut unfinished) = (None, UnfinishedJobs::default());
    let opened = Journal::open_with(directory, |fact| {
        last = Some(fact.kind);
        unfinished.observe(fact);
    });
    let mut journal = match opened {
        Ok(journal) => journal,
        // An invalid journal cannot be continued, nor replaced: sequences are used once.
        Err(JournalError::NoJournal | JournalError::Format { .. }) => return Ok(JournalEndCheck::Unchanged),
        Err(JournalError::Open(error)) if is_missing_or_special(&error) => return Ok(JournalEndCheck::Unchanged),
        Err(error) => return Err(error),
    };
    if last.is_some_and(|kind| matches!(kind, FactKind::Ended | FactKind::Failed)) {
        return Ok(JournalEndCheck::Unchanged);
    }
    for job in unfinished.in_order() {
        let outcome = JobOutcome::of(OutcomeKind::SandboxEnded);
        let fact = Fact::new(layout::now_ms(), FactKind::JobEnded);
        journal.append(Fact { job: Some(job), outcome: Some(outcome), ..fact })?;
    }
    let message = Some("its supervisor was lost".to_owned());
    let reason = Some(EndReason::SupervisorLost);
    journal.append(Fact { reason, message, ..Fact::new(layout::now_ms(), FactKind::Ended) })?;
    Ok(JournalEndCheck::Appended)
}

/// Whether something does not exist, or is not a file.
fn is_missing_or_special(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR))
}

// === impl UnfinishedJobs ===

impl UnfinishedJobs {
    fn observe(&mut self, fact: Fact) {
        match (fact.kind, fact.job) {
            (FactKind::JobStarted, Some(job)) if !self.too_many => {
                self.began.insert(job, fact.sequence);
            }
            (FactKind::JobEnded, Some(job)) => {
                self.began.remove(&job);
            }
            _ => {}
        }
        if self.began.len() > MAX_JOBS {
            // Implausible; the end of the sandbox covers all of them.
            *self = Self { began: HashMap::new(), too_many: true };
        }
    }

    /// The jobs in the order of their start.
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
    fn jobs_without_a_recorded_end_are_listed_in_order() {
        let mut unfinished = UnfinishedJobs::default();
        for (sequence, job) in (1..).zip(["c", "a", "b"]) {
            unfinished.observe(about(sequence, FactKind::JobStarted, job));
        }
        unfinished.observe(about(4, FactKind::JobEnded, "a"));
        unfinished.observe(about(5, FactKind::JobEnded, "unknown"));
        assert_eq!(unfinished.in_order(), ["c", "b"]);
    }

    #[test]
    fn jobs_beyond_the_maximum_are_not_remembered() {
        let mut unfinished = UnfinishedJobs::default();
        let mut start = |number: usize| {
            unfinished.observe(about(number as u64, FactKind::JobStarted, &number.to_string()));
            unfinished.began.len()
        };
        for number in 1..=MAX_JOBS {
            assert_eq!(start(number), number);
        }
        assert_eq!((start(MAX_JOBS + 1), start(MAX_JOBS + 2)), (0, 0));
        assert!(unfinished.in_order().is_empty());
    }
}
