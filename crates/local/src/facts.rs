//! What a supervisor wrote down, as the control plane hears it.

use carrel_control::provider::{EndCause, Fact, How, Noted, PauseCause};
use carrel_shim_client::messages::{self, EndReason, FactKind, Outcome, OutcomeKind};
use carrel_store::{ExecId, Timestamp};

/// What the jobs are called that run what a sandbox runs by itself: this, and which start of it.
pub(crate) const PRIMARY: &str = "primary.";

/// What the jobs are called that run in a sandbox when a service beside it is well: this, which service, and which of them.
pub(crate) const HOOK: &str = "hook.";

/// What a command ends with that is not there, and one that cannot be run.
const NOT_FOUND: i32 = 127;
const NOT_RUN: i32 = 126;

/// The job that runs what a sandbox runs by itself.
pub(crate) fn primary(attempt: u32) -> String {
    format!("{PRIMARY}{attempt}")
}

/// Which start of what a sandbox runs by itself a job is.
pub(crate) fn attempt(job: &str) -> Option<u32> {
    job.strip_prefix(PRIMARY)?.parse().ok()
}

/// Whether a job is one of those that a sandbox runs by itself, for whomever.
pub(crate) fn is_internal(job: &str) -> bool {
    attempt(job).is_some() || job.starts_with(HOOK)
}

/// What a fact means.
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
            // An earlier supervisor gives no reason, and says something only of a pause that its owner did not ask for.
            let is_for_disk = fact.pause_reason.is_some() || fact.message.is_some();
            let cause = if is_for_disk { PauseCause::HostDisk } else { PauseCause::User };
            Fact::Paused { cause, message: fact.message.unwrap_or_default() }
        }
        FactKind::Resumed => Fact::Unpaused,
        FactKind::Ended => {
            let cause = end_cause(fact.reason.unwrap_or(EndReason::Unknown));
            Fact::Ended { cause, message: fact.message.unwrap_or_default() }
        }
        // It never was: nothing of it runs either.
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
        // What a newer supervisor says that this daemon does not know: the sandbox has ended all the same.
        EndReason::GuestExit | EndReason::Unknown => EndCause::GuestExited,
        EndReason::OutOfMemory => EndCause::OutOfMemory,
        EndReason::Misbehaved => EndCause::Misbehaved,
        EndReason::SupervisorLost => EndCause::SupervisorLost,
        EndReason::HostShutdown => EndCause::HostShutdown,
    }
}

/// The same facts of an incarnation that ran before the host booted: a supervisor that was lost was lost with the host.
pub(crate) fn mark_host_restarted(noted: &mut [Noted]) {
    for noted in noted {
        if let Fact::Ended { cause: cause @ EndCause::SupervisorLost, message } = &mut noted.fact {
            *cause = EndCause::HostRestarted;
            "the host restarted while it ran".clone_into(message);
        }
    }
}

fn job_ended(fact: messages::Fact) -> Fact {
    let (Some(job), Some(outcome)) = (fact.job, fact.outcome) else { return Fact::Other };
    let how = exec_outcome(outcome);
    match (attempt(&job), ExecId::qualified(job)) {
        (Some(attempt), _) => Fact::CommandEnded { attempt, how },
        (None, Ok(exec)) => Fact::ExecEnded { exec, how },
        // Somebody else's.
        (None, Err(_)) => Fact::Other,
    }
}

fn exec_outcome(outcome: Outcome) -> How {
    let by_itself = match (outcome.code, outcome.signal) {
        (_, Some(signal)) => How::Signalled(signal),
        (Some(code), None) => How::Exited(code),
        (None, None) => How::NeverRan(NOT_RUN, "its supervisor does not say how it ended".to_owned()),
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

    fn ended(job: &str, outcome: Outcome) -> Fact {
        let (job, outcome) = (Some(job.to_owned()), Some(outcome));
        from_journal(messages::Fact { sequence: 7, job, outcome, ..messages::Fact::new(1, FactKind::JobEnded) }).fact
    }

    fn of_sandbox(kind: FactKind, reason: Option<EndReason>) -> Fact {
        let message = Some("why".to_owned());
        from_journal(messages::Fact { reason, message, ..messages::Fact::new(1, kind) }).fact
    }

    #[test]
    fn a_job_is_an_exec_or_the_command_or_somebody_elses() {
        let how = || Outcome { code: Some(3), ..Outcome::of(OutcomeKind::Exited) };
        let exec = ExecId::new("exec-1").unwrap();
        assert_eq!(ended("exec-1", how()), Fact::ExecEnded { exec, how: How::Exited(3) });
        assert_eq!(ended("primary.4", how()), Fact::CommandEnded { attempt: 4, how: How::Exited(3) });
        for other in ["a", "primary.", "primary.x", "a.b.c.d", "hook.db.0"] {
            assert_eq!(ended(other, how()), Fact::Other, "{other}");
        }
    }

    #[test]
    fn how_a_job_ended_is_told_as_it_was() {
        let told = |outcome| match ended("exec-1", outcome) {
            Fact::ExecEnded { how, .. } => how,
            other => panic!("{other:?}"),
        };
        let never = |failure: &str| Outcome {
            failure: Some(failure.to_owned()),
            message: Some("why".to_owned()),
            ..Outcome::of(OutcomeKind::NeverRan)
        };
        assert_eq!(told(Outcome { signal: Some(9), ..Outcome::of(OutcomeKind::Signalled) }), How::Signalled(9));
        assert_eq!(told(Outcome { code: Some(0), ..Outcome::of(OutcomeKind::Cancelled) }), How::Cancelled);
        assert_eq!(told(Outcome::of(OutcomeKind::TimedOut)), How::TimedOut);
        assert_eq!(told(Outcome::of(OutcomeKind::OutOfMemory)), How::OutOfMemory);
        assert_eq!(told(Outcome::of(OutcomeKind::SandboxEnded)), How::SandboxEnded);
        assert!(matches!(told(Outcome::of(OutcomeKind::Unknown)), How::NeverRan(126, _)));
        assert_eq!(told(never("not_found")), How::NeverRan(127, "why".to_owned()));
        assert_eq!(told(never("not_executable")), How::NeverRan(126, "why".to_owned()));
        assert_eq!(told(never("bad_cwd")), How::NeverRan(126, "why".to_owned()));
    }

    #[test]
    fn the_end_of_a_sandbox_says_why() {
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
    fn a_pause_says_who_wanted_it() {
        let paused = |pause_reason, message: Option<&str>| {
            let message = message.map(str::to_owned);
            from_journal(messages::Fact { pause_reason, message, ..messages::Fact::new(1, FactKind::Paused) }).fact
        };
        let told = |cause, message: &str| Fact::Paused { cause, message: message.to_owned() };
        assert_eq!(paused(None, None), told(PauseCause::User, ""));
        assert_eq!(paused(None, Some("full")), told(PauseCause::HostDisk, "full"));
        assert_eq!(paused(Some(messages::PauseReason::HostDisk), Some("low")), told(PauseCause::HostDisk, "low"));
        assert_eq!(of_sandbox(FactKind::Resumed, None), Fact::Unpaused);
    }

    #[test]
    fn a_supervisor_that_was_lost_before_the_host_booted_was_lost_with_the_host() {
        let told = |reason| {
            let ended = messages::Fact { reason: Some(reason), ..messages::Fact::new(1, FactKind::Ended) };
            let mut noted = [from_journal(ended)];
            mark_host_restarted(&mut noted);
            match noted {
                [Noted { fact: Fact::Ended { cause, .. }, .. }] => cause,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(told(EndReason::SupervisorLost), EndCause::HostRestarted);
        assert_eq!(told(EndReason::HostShutdown), EndCause::HostShutdown);
        assert_eq!(told(EndReason::OutOfMemory), EndCause::OutOfMemory);
    }

    #[test]
    fn a_moment_is_told_in_nanoseconds() {
        assert_eq!(
            from_journal(messages::Fact::new(1_700_000_000_123, FactKind::Started)).at,
            Timestamp(1_700_000_000_123_000_000)
        );
        assert_eq!(from_journal(messages::Fact::new(u64::MAX, FactKind::Started)).at, Timestamp(i64::MAX));
    }
}
