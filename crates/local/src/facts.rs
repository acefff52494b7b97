//! Converts the journal of a shim to the facts of the control plane.

use carrel_control::provider::{EndCause, Fact, How, Noted, PauseCause};
use carrel_shim_client::messages::{self, EndReason, FactKind, JobOutcome, OutcomeKind};
use carrel_store::{ExecId, Timestamp};

/// The prefix of the jobs that run the sandbox's own command; the number of the attempt follows.
pub(crate) const PRIMARY: &str = "primary.";

/// The prefix of the jobs that run as post-start hooks of a service; the service and a number follow.
pub(crate) const HOOK: &str = "hook.";

/// Exit codes of a command that was not found, and of one that could not be executed, as in a shell.
const NOT_FOUND: i32 = 127;
const NOT_RUN: i32 = 126;

/// The job of an attempt to run the sandbox's own command.
pub(crate) fn primary(attempt: u32) -> String {
    format!("{PRIMARY}{attempt}")
}

/// The attempt that a job belongs to, if it runs the sandbox's own command.
pub(crate) fn attempt(job: &str) -> Option<u32> {
    job.strip_prefix(PRIMARY)?.parse().ok()
}

/// Whether a job was started by Carrel itself: the sandbox's own command, or a hook.
pub(crate) fn is_internal(job: &str) -> bool {
    attempt(job).is_some() || job.starts_with(HOOK)
}

/// Converts a fact of the journal.
pub(crate) fn from_journal(fact: messages::Fact) -> Noted {
    let at = i64::try_from(fact.at_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let sequence = fact.sequence;
    Noted { sequence, at: Timestamp(at), fact: convert(fact) }
}

fn convert(fact: messages::Fact) -> Fact {
    match fact.kind {
        FactKind::JobEnded => job_ended(fact),
        FactKind::OutOfMemory => Fact::OutOfMemory,
        FactKind::Paused => {
            // An earlier shim gives no reason, and has a message only for a pause that its owner did not request.
            let is_for_disk = fact.pause_reason.is_some() || fact.message.is_some();
            let cause = if is_for_disk { PauseCause::HostDisk } else { PauseCause::User };
            Fact::Paused { cause, message: fact.message.unwrap_or_default() }
        }
        FactKind::Resumed => Fact::Unpaused,
        FactKind::Ended => {
            let cause = end_cause(fact.reason.unwrap_or(EndReason::Unknown));
            Fact::Ended { cause, message: fact.message.unwrap_or_default() }
        }
        // It failed to start: nothing of it runs.
        FactKind::Failed => Fact::Ended { cause: EndCause::GuestExited, message: fact.message.unwrap_or_default() },
        FactKind::Claimed
        | FactKind::Started
        | FactKind::JobStarted
        | FactKind::StopAsked
        | FactKind::GuestExited
        | FactKind::DiskFailed
        | FactKind::Unknown => Fact::Other,
    }
}

fn end_cause(reason: EndReason) -> EndCause {
    match reason {
        EndReason::Stopped | EndReason::Shutdown => EndCause::Stopped,
        // A reason of a newer shim that this daemon does not know: the sandbox has exited all the same.
        EndReason::GuestExit | EndReason::Unknown => EndCause::GuestExited,
        EndReason::OutOfMemory => EndCause::OutOfMemory,
        EndReason::Misbehaved => EndCause::Misbehaved,
        EndReason::SupervisorLost => EndCause::SupervisorLost,
        EndReason::HostShutdown => EndCause::HostShutdown,
    }
}

/// Rewrites facts from before the last boot: a shim that was lost then was lost with the host.
pub(crate) fn mark_host_restarted(noted: &mut [Noted]) {
    for noted in noted {
        if let Fact::Ended { cause: cause @ EndCause::SupervisorLost, message } = &mut noted.fact {
            *cause = EndCause::HostRestarted;
            "the host restarted while it was running".clone_into(message);
        }
    }
}

fn job_ended(fact: messages::Fact) -> Fact {
    let (Some(job), Some(outcome)) = (fact.job, fact.outcome) else { return Fact::Other };
    let how = exec_outcome(outcome);
    match (attempt(&job), ExecId::qualified(job)) {
        (Some(attempt), _) => Fact::CommandEnded { attempt, how },
        (None, Ok(exec)) => Fact::ExecEnded { exec, how },
        // A job of another client.
        (None, Err(_)) => Fact::Other,
    }
}

fn exec_outcome(outcome: JobOutcome) -> How {
    let by_itself = match (outcome.code, outcome.signal) {
        (_, Some(signal)) => How::Signalled(signal),
        (Some(code), None) => How::Exited(code),
        (None, None) => How::NeverRan(NOT_RUN, "the shim reported no exit status".to_owned()),
    };
    match outcome.kind {
        OutcomeKind::Exited | OutcomeKind::Signalled | OutcomeKind::Unknown => by_itself,
        OutcomeKind::TimedOut => How::TimedOut,
        OutcomeKind::Cancelled => How::Cancelled,
        OutcomeKind::OutOfMemory => How::OutOfMemory,
        OutcomeKind::SandboxEnded => How::SandboxEnded,
        OutcomeKind::NeverRan => {
            let code = if outcome.failure.as_deref() == Some("not_found") { NOT_FOUND } else { NOT_RUN };
            How::NeverRan(code, outcome.message.unwrap_or_else(|| "the command could not be started".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(job: &str, outcome: JobOutcome) -> Fact {
        let (job, outcome) = (Some(job.to_owned()), Some(outcome));
        from_journal(messages::Fact { sequence: 7, job, outcome, ..messages::Fact::new(1, FactKind::JobEnded) }).fact
    }

    fn of_sandbox(kind: FactKind, reason: Option<EndReason>) -> Fact {
        let message = Some("why".to_owned());
        from_journal(messages::Fact { reason, message, ..messages::Fact::new(1, kind) }).fact
    }

    #[test]
    fn a_job_is_an_exec_or_the_command_or_belongs_to_another_client() {
        let how = || JobOutcome { code: Some(3), ..JobOutcome::of(OutcomeKind::Exited) };
        let exec = ExecId::new("exec-1").unwrap();
        assert_eq!(ended("exec-1", how()), Fact::ExecEnded { exec, how: How::Exited(3) });
        assert_eq!(ended("primary.4", how()), Fact::CommandEnded { attempt: 4, how: How::Exited(3) });
        for other in ["a", "primary.", "primary.x", "a.b.c.d", "hook.db.0"] {
            assert_eq!(ended(other, how()), Fact::Other, "{other}");
        }
    }

    #[test]
    fn the_exit_of_a_job_is_converted_without_loss() {
        let converted = |outcome| match ended("exec-1", outcome) {
            Fact::ExecEnded { how, .. } => how,
            other => panic!("{other:?}"),
        };
        let never = |failure: &str| JobOutcome {
            failure: Some(failure.to_owned()),
            message: Some("why".to_owned()),
            ..JobOutcome::of(OutcomeKind::NeverRan)
        };
        assert_eq!(
            converted(JobOutcome { signal: Some(9), ..JobOutcome::of(OutcomeKind::Signalled) }),
            How::Signalled(9)
        );
        assert_eq!(converted(JobOutcome { code: Some(0), ..JobOutcome::of(OutcomeKind::Cancelled) }), How::Cancelled);
        assert_eq!(converted(JobOutcome::of(OutcomeKind::TimedOut)), How::TimedOut);
        assert_eq!(converted(JobOutcome::of(OutcomeKind::OutOfMemory)), How::OutOfMemory);
        assert_eq!(converted(JobOutcome::of(OutcomeKind::SandboxEnded)), How::SandboxEnded);
        assert!(matches!(converted(JobOutcome::of(OutcomeKind::Unknown)), How::NeverRan(126, _)));
        assert_eq!(converted(never("not_found")), How::NeverRan(127, "why".to_owned()));
        assert_eq!(converted(never("not_executable")), How::NeverRan(126, "why".to_owned()));
        assert_eq!(converted(never("bad_cwd")), How::NeverRan(126, "why".to_owned()));
    }

    #[test]
    fn the_end_of_a_sandbox_has_its_cause() {
        let end = |cause| Fact::Ended { cause, message: "why".to_owned() };
        for (reason, cause) in [
            (EndReason::Stopped, EndCause::Stopped),
            (EndReason::Shutdown, EndCause::Stopped),
            (EndReason::GuestExit, EndCause::GuestExited),
            (EndReason::OutOfMemory, EndCause::OutOfMemory),
            (EndReason::Misbehaved, EndCause::Misbehaved),
            (EndReason::SupervisorLost, EndCause::SupervisorLost),
            (EndReason::HostShutdown, EndCause::HostShutdown),
            (EndReason::Unknown, EndCause::GuestExited),
        ] {
            assert_eq!(of_sandbox(FactKind::Ended, Some(reason)), end(cause));
        }
        assert_eq!(of_sandbox(FactKind::Failed, None), end(EndCause::GuestExited));
        assert_eq!(of_sandbox(FactKind::GuestExited, None), Fact::Other);
    }

    #[test]
    fn a_pause_has_its_cause() {
        let paused = |pause_reason, message: Option<&str>| {
            let message = message.map(str::to_owned);
            from_journal(messages::Fact { pause_reason, message, ..messages::Fact::new(1, FactKind::Paused) }).fact
        };
        let converted = |cause, message: &str| Fact::Paused { cause, message: message.to_owned() };
        assert_eq!(paused(None, None), converted(PauseCause::User, ""));
        assert_eq!(paused(None, Some("full")), converted(PauseCause::HostDisk, "full"));
        assert_eq!(paused(Some(messages::PauseReason::HostDisk), Some("low")), converted(PauseCause::HostDisk, "low"));
        assert_eq!(of_sandbox(FactKind::Resumed, None), Fact::Unpaused);
    }

    #[test]
    fn a_shim_that_was_lost_before_the_last_boot_was_lost_with_the_host() {
        let converted = |reason| {
            let ended = messages::Fact { reason: Some(reason), ..messages::Fact::new(1, FactKind::Ended) };
            let mut noted = [from_journal(ended)];
            mark_host_restarted(&mut noted);
            match noted {
                [Noted { fact: Fact::Ended { cause, .. }, .. }] => cause,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(converted(EndReason::SupervisorLost), EndCause::HostRestarted);
        assert_eq!(converted(EndReason::HostShutdown), EndCause::HostShutdown);
        assert_eq!(converted(EndReason::OutOfMemory), EndCause::OutOfMemory);
    }

    #[test]
    fn timestamps_are_in_nanoseconds() {
        assert_eq!(
            from_journal(messages::Fact::new(1_700_000_000_123, FactKind::Started)).at,
            Timestamp(1_700_000_000_123_000_000)
        );
        assert_eq!(from_journal(messages::Fact::new(u64::MAX, FactKind::Started)).at, Timestamp(i64::MAX));
    }
}
