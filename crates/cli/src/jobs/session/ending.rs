//! How a session with a job ended: exit codes and messages.

use carrel_shim_client::messages::{EndReason, JobOutcome, OutcomeKind, SandboxEnd};
use carrel_units::{ByteSize, TimeSpan};

use super::output::OutputError;
use crate::failure::{EXIT_CARREL_FAILED, Failure};

const SIGPIPE: i32 = 13;
const SIGKILL: i32 = 9;
/// The prefix of the shim's message for a sandbox that ran out of memory.
const OUT_OF_MEMORY: &str = "the sandbox ran out of memory";

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnding {
    /// The command exited.
    Exited { code: i32, signal: Option<i32> },
    /// The command was OOM-killed.
    OutOfMemory,
    /// A signal to this process ended the session.
    Interrupted(i32),
    /// The command exceeded its timeout and was killed.
    TimedOut,
    /// The command exceeded its timeout, and is not known to have been killed: it is paused, or its output is not read.
    Overdue,
    /// Standard output was closed.
    OutputClosed,
    /// Output could not be written; the command may have exited before.
    OutputFailed { what: OutputError, exited: Option<(i32, Option<i32>)> },
    /// The sandbox stopped before the command exited.
    SandboxEnded,
    /// The detach keys were typed.
    Detached,
}

// === impl SessionEnding ===

impl SessionEnding {
    /// The ending for the outcome of a job. A job that never ran is a failure.
    pub(crate) fn of(command: &str, outcome: &JobOutcome) -> Result<Self, Failure> {
        match outcome.kind {
            OutcomeKind::NeverRan => Err(never_ran(command, outcome)),
            OutcomeKind::TimedOut => Ok(Self::TimedOut),
            OutcomeKind::OutOfMemory => Ok(Self::OutOfMemory),
            OutcomeKind::SandboxEnded => Ok(Self::SandboxEnded),
            OutcomeKind::Exited | OutcomeKind::Signalled | OutcomeKind::Cancelled | OutcomeKind::Unknown => {
                Ok(Self::Exited { code: outcome.code.unwrap_or(-1), signal: outcome.signal })
            }
        }
    }

    /// The exit code of this process.
    pub(crate) fn exit_code(self) -> u8 {
        let by_signal = |signal: i32| u8::try_from(128 + (signal & 0x7f)).unwrap_or(EXIT_CARREL_FAILED);
        match self {
            Self::Exited { signal: Some(signal), .. } | Self::Interrupted(signal) => by_signal(signal),
            // Most commands without a code and a known signal were killed by this one.
            Self::Exited { code: -1, signal: None } | Self::OutOfMemory => by_signal(SIGKILL),
            Self::Exited { code, signal: None } => u8::try_from(code & 0xff).unwrap_or(EXIT_CARREL_FAILED),
            Self::TimedOut | Self::Overdue => 124,
            Self::OutputClosed => by_signal(SIGPIPE),
            Self::OutputFailed { .. } | Self::SandboxEnded => EXIT_CARREL_FAILED,
            Self::Detached => 0,
        }
    }

    /// The signal that terminated the command or this process.
    pub(crate) fn signal(self) -> Option<i32> {
        match self {
            Self::Exited { signal, .. } => signal,
            Self::Interrupted(signal) => Some(signal),
            Self::OutOfMemory => Some(SIGKILL),
            _ => None,
        }
    }

    /// Whether the command ended by itself or with its sandbox.
    pub(crate) fn is_of_command(self) -> bool {
        matches!(self, Self::Exited { .. } | Self::OutOfMemory | Self::SandboxEnded)
    }

    /// How the command ended, as part of another message.
    pub(crate) fn command_message(self) -> String {
        match self {
            Self::Exited { signal: Some(signal), .. } => format!("signal {signal} killed the command"),
            Self::Exited { code: -1, signal: None } => "a signal killed the command".to_owned(),
            Self::Exited { code, signal: None } => format!("the command exited with code {code}"),
            Self::OutOfMemory => "the command was OOM-killed".to_owned(),
            Self::OutputFailed { exited: Some((code, signal)), .. } => Self::Exited { code, signal }.command_message(),
            _ => "the command was killed".to_owned(),
        }
    }
}

/// The failure of a command that could not be started.
fn never_ran(command: &str, outcome: &JobOutcome) -> Failure {
    let message = outcome.message.as_deref().unwrap_or("the command could not be started");
    let failure = Failure::new("command_failed", message);
    let kind = outcome.failure.as_deref().unwrap_or_default();
    match kind {
        "not_found" => {
            Failure::new("command_not_found", format!("{command}: command not found in the sandbox")).exit(127)
        }
        "permission_denied" | "not_executable" => {
            let reason = outcome.errno_name.as_deref().unwrap_or(kind);
            let message = format!("{command}: cannot be executed ({reason})");
            Failure::new("command_not_executable", message).exit(126)
        }
        "bad_cwd" => failure.hint("--workdir must be an existing directory inside"),
        "user_setup_failed" => failure.hint("--user must be a user of the image, or a numeric id"),
        _ => failure,
    }
}

/// The failure of a command that exceeded its timeout.
pub(crate) fn timed_out(limit: Option<TimeSpan>) -> Failure {
    let limit = limit.map(|time| format!(" ({time})")).unwrap_or_default();
    let message = format!("the command exceeded its timeout{limit} and was killed");
    Failure::new("timed_out", message).hint("increase it with --timeout").exit(124)
}

/// The failure of a command that exceeded its timeout and is not known to have been killed.
pub(crate) fn overdue(limit: Option<TimeSpan>, and: &str) -> Failure {
    let limit = limit.map(|time| format!(" ({time})")).unwrap_or_default();
    let message = format!("the command exceeded its timeout{limit}, and {and}");
    Failure::new("timed_out", message).exit(124)
}

/// The failure to write output.
pub(crate) fn output_failed(what: OutputError, and: &str) -> Failure {
    let error = std::io::Error::from(what.errno);
    Failure::new("output_failed", format!("write to {}: {error}; {and}", what.stream))
}

/// The failure of a sandbox that stopped before the command exited.
pub(crate) fn sandbox_ended(ended: Option<&SandboxEnd>, memory: Option<ByteSize>) -> Failure {
    let why = |words: &str| match ended.map_or("", |ended| ended.message.as_str()) {
        "" => words.to_owned(),
        message => format!("{words}: {message}"),
    };
    match ended.map(|ended| ended.reason) {
        Some(EndReason::OutOfMemory) => {
            let limit = memory.map(|limit| format!(" (limit {limit})")).unwrap_or_default();
            let message = ended.and_then(|ended| ended.message.strip_prefix(OUT_OF_MEMORY)).unwrap_or_default();
            Failure::new("out_of_memory", format!("{OUT_OF_MEMORY}{limit}{message}"))
                .hint("increase the limit with --memory")
                .exit(137)
        }
        Some(EndReason::Misbehaved) => {
            Failure::new("misbehaved", why("the sandbox violated the protocol and was killed"))
        }
        _ => Failure::new("sandbox_ended", why("the sandbox stopped before the command exited")),
    }
}

/// Prints text to standard error.
pub(crate) fn note(words: &str) {
    // Nothing can be reported if standard error is closed.
    let _written = std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: OutputError = OutputError { stream: "standard output", errno: rustix::io::Errno::NOSPC };

    fn outcome(kind: OutcomeKind) -> JobOutcome {
        JobOutcome { kind, code: None, signal: None, failure: None, errno_name: None, message: None }
    }

    fn failed(failure: &str) -> Failure {
        let message = Some("setup failed".to_owned());
        let outcome = JobOutcome { failure: Some(failure.to_owned()), message, ..outcome(OutcomeKind::NeverRan) };
        SessionEnding::of("tool", &outcome).unwrap_err()
    }

    //= carrel.command.exit-code-passed-128
    //= promises.command.exit-codes
    #[test]
    fn an_ending_has_the_exit_code_of_shells() {
        for (ending, code) in [
            (SessionEnding::Exited { code: 0, signal: None }, 0),
            (SessionEnding::Exited { code: 42, signal: None }, 42),
            (SessionEnding::Exited { code: -1, signal: Some(15) }, 143),
            (SessionEnding::Exited { code: -1, signal: None }, 137),
            (SessionEnding::OutOfMemory, 137),
            (SessionEnding::Interrupted(2), 130),
            (SessionEnding::TimedOut, 124),
            (SessionEnding::Overdue, 124),
            (SessionEnding::OutputClosed, 141),
            (SessionEnding::OutputFailed { what: FULL, exited: Some((0, None)) }, 125),
            (SessionEnding::SandboxEnded, 125),
            (SessionEnding::Detached, 0),
        ] {
            assert_eq!(ending.exit_code(), code, "{ending:?}");
        }
    }

    #[test]
    fn the_outcome_of_a_job_becomes_the_ending_of_the_session() {
        let of = |outcome| SessionEnding::of("tool", &outcome).unwrap();
        let exited = JobOutcome { code: Some(3), ..outcome(OutcomeKind::Exited) };
        assert_eq!(of(exited), SessionEnding::Exited { code: 3, signal: None });
        for kind in [OutcomeKind::Signalled, OutcomeKind::Cancelled] {
            let ended = of(JobOutcome { signal: Some(15), ..outcome(kind) });
            assert_eq!((ended, ended.exit_code()), (SessionEnding::Exited { code: -1, signal: Some(15) }, 143));
        }
        // A command that handles the signal has its own exit code.
        assert_eq!(of(JobOutcome { code: Some(7), ..outcome(OutcomeKind::Cancelled) }).exit_code(), 7);
        assert_eq!(of(JobOutcome { signal: Some(9), ..outcome(OutcomeKind::OutOfMemory) }), SessionEnding::OutOfMemory);
        assert_eq!(of(JobOutcome { signal: Some(15), ..outcome(OutcomeKind::TimedOut) }), SessionEnding::TimedOut);
        assert_eq!(of(outcome(OutcomeKind::SandboxEnded)), SessionEnding::SandboxEnded);
        assert_eq!(of(outcome(OutcomeKind::Unknown)).exit_code(), 137);
    }

    #[test]
    fn a_command_that_could_not_be_started_has_a_reason() {
        let reported = |failure| {
            let Failure { code, message, exit, .. } = failed(failure);
            (code, message, exit)
        };
        let missing = "tool: command not found in the sandbox".to_owned();
        assert_eq!(reported("not_found"), ("command_not_found", missing, 127));
        let refused = "tool: cannot be executed (not_executable)".to_owned();
        assert_eq!(reported("not_executable"), ("command_not_executable", refused, 126));
        assert_eq!(reported("other"), ("command_failed", "setup failed".to_owned(), 125));
        assert!(failed("bad_cwd").hint.unwrap().starts_with("--workdir"));
        assert!(failed("user_setup_failed").hint.unwrap().starts_with("--user"));
        let silent = SessionEnding::of("tool", &outcome(OutcomeKind::NeverRan)).unwrap_err();
        assert_eq!(silent.message, "the command could not be started");
    }
}
