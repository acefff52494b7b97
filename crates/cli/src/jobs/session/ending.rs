//! How a session with a job ended, as an exit code and in words.

use carrel_shim_client::messages::{EndReason, Ended, Outcome, OutcomeKind};

use super::output::OutputError;
use crate::failure::{EXIT_CARREL_FAILED, Failure};
use crate::size::{Size, Time};

const SIGPIPE: i32 = 13;
const SIGKILL: i32 = 9;
/// What the supervisor says of a sandbox that ran out of memory, before what it was.
const OUT_OF_MEMORY: &str = "the sandbox ran out of memory";

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnding {
    /// The command ended.
    Exited { code: i32, signal: Option<i32> },
    /// The kernel ended it for want of memory.
    OutOfMemory,
    /// A signal to this program ended it.
    Interrupted(i32),
    /// Its time was up.
    TimedOut,
    /// Its time was up, and nobody said that it was ended: it is paused, or nobody reads what it wrote before.
    Overdue,
    /// Nobody reads its output any more.
    OutputClosed,
    /// Its output could not be written; it may have ended before that was known.
    OutputFailed { what: OutputError, exited: Option<(i32, Option<i32>)> },
    /// The sandbox ended before it did.
    SandboxEnded,
    /// The keys that leave it were typed.
    Detached,
}

// === impl SessionEnding ===

impl SessionEnding {
    /// How a job ended. One that never ran is a failure.
    pub(crate) fn of(command: &str, outcome: &Outcome) -> Result<Self, Failure> {
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

    /// What this program exits with.
    pub(crate) fn exit_code(self) -> u8 {
        let by_signal = |signal: i32| u8::try_from(128 + (signal & 0x7f)).unwrap_or(EXIT_CARREL_FAILED);
        match self {
            Self::Exited { signal: Some(signal), .. } | Self::Interrupted(signal) => by_signal(signal),
            // Most that end without a code and a known signal are ended by this one.
            Self::Exited { code: -1, signal: None } | Self::OutOfMemory => by_signal(SIGKILL),
            Self::Exited { code, signal: None } => u8::try_from(code & 0xff).unwrap_or(EXIT_CARREL_FAILED),
            Self::TimedOut | Self::Overdue => 124,
            Self::OutputClosed => by_signal(SIGPIPE),
            Self::OutputFailed { .. } | Self::SandboxEnded => EXIT_CARREL_FAILED,
            Self::Detached => 0,
        }
    }

    /// The signal that ended the command, or us.
    pub(crate) fn signal(self) -> Option<i32> {
        match self {
            Self::Exited { signal, .. } => signal,
            Self::Interrupted(signal) => Some(signal),
            Self::OutOfMemory => Some(SIGKILL),
            _ => None,
        }
    }

    /// Whether the command ended by itself, or with its sandbox.
    pub(crate) fn is_its_own(self) -> bool {
        matches!(self, Self::Exited { .. } | Self::OutOfMemory | Self::SandboxEnded)
    }

    /// What became of the command, where something else has to be told.
    pub(crate) fn of_command(self) -> String {
        match self {
            Self::Exited { signal: Some(signal), .. } => format!("signal {signal} ended the command"),
            Self::Exited { code: -1, signal: None } => "a signal ended the command".to_owned(),
            Self::Exited { code, signal: None } => format!("the command ended with exit code {code}"),
            Self::OutOfMemory => "the command was ended for want of memory".to_owned(),
            Self::OutputFailed { exited: Some((code, signal)), .. } => Self::Exited { code, signal }.of_command(),
            _ => "the command was ended".to_owned(),
        }
    }
}

/// Why a command never ran.
fn never_ran(command: &str, outcome: &Outcome) -> Failure {
    let said = outcome.message.as_deref().unwrap_or("the command could not be started");
    let failure = Failure::new("command_failed", said);
    let kind = outcome.failure.as_deref().unwrap_or_default();
    match kind {
        "not_found" => {
            Failure::new("command_not_found", format!("{command}: there is no such command in the sandbox")).exit(127)
        }
        "permission_denied" | "not_executable" => {
            let reason = outcome.errno_name.as_deref().unwrap_or(kind);
            let words = format!("{command}: it cannot be executed ({reason})");
            Failure::new("command_not_executable", words).exit(126)
        }
        "bad_cwd" => failure.hint("--workdir names a directory that is there inside"),
        "user_setup_failed" => failure.hint("--user takes a name that the image knows, or a number"),
        _ => failure,
    }
}

/// That a command took too long.
pub(crate) fn timed_out(limit: Option<Time>) -> Failure {
    let limit = limit.map(|time| format!(" ({time})")).unwrap_or_default();
    let words = format!("the command took longer than it was given{limit}, and was ended");
    Failure::new("timed_out", words).hint("give it more time with --timeout").exit(124)
}

/// That a command should have been ended, and that it is not known to be.
pub(crate) fn overdue(limit: Option<Time>, and: &str) -> Failure {
    let limit = limit.map(|time| format!(" ({time})")).unwrap_or_default();
    let words = format!("the command took longer than it was given{limit}, and {and}");
    Failure::new("timed_out", words).exit(124)
}

/// That its output could not be written.
pub(crate) fn unwritten(what: OutputError, and: &str) -> Failure {
    let error = std::io::Error::from(what.errno);
    Failure::new("output_failed", format!("write to {}: {error}; {and}", what.stream))
}

/// That the sandbox ended before the command did.
pub(crate) fn end_of_sandbox(ended: Option<&Ended>, memory: Option<Size>) -> Failure {
    let why = |words: &str| match ended.map_or("", |ended| ended.message.as_str()) {
        "" => words.to_owned(),
        message => format!("{words}: {message}"),
    };
    match ended.map(|ended| ended.reason) {
        Some(EndReason::OutOfMemory) => {
            let limit = memory.map(|limit| format!(" (limit {limit})")).unwrap_or_default();
            let message = ended.and_then(|ended| ended.message.strip_prefix(OUT_OF_MEMORY)).unwrap_or_default();
            Failure::new("out_of_memory", format!("{OUT_OF_MEMORY}{limit}{message}"))
                .hint("give it more with --memory")
                .exit(137)
        }
        Some(EndReason::Misbehaved) => Failure::new("misbehaved", why("the sandbox misbehaved and was ended")),
        _ => Failure::new("sandbox_ended", why("the sandbox ended before the command did")),
    }
}

/// Says something on standard error.
pub(crate) fn note(words: &str) {
    // Nobody is left to tell when standard error is gone.
    let _said = std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: OutputError = OutputError { stream: "standard output", errno: rustix::io::Errno::NOSPC };

    fn outcome(kind: OutcomeKind) -> Outcome {
        Outcome { kind, code: None, signal: None, failure: None, errno_name: None, message: None }
    }

    fn failed(failure: &str) -> Failure {
        let message = Some("it did not work".to_owned());
        let outcome = Outcome { failure: Some(failure.to_owned()), message, ..outcome(OutcomeKind::NeverRan) };
        SessionEnding::of("tool", &outcome).unwrap_err()
    }

    //= carrel.command.exit-code-passed-128
    //= promises.command.exit-codes
    #[test]
    fn an_ending_has_the_exit_code_that_shells_give_it() {
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
    fn how_a_job_ended_is_how_its_session_ended() {
        let of = |outcome| SessionEnding::of("tool", &outcome).unwrap();
        let exited = Outcome { code: Some(3), ..outcome(OutcomeKind::Exited) };
        assert_eq!(of(exited), SessionEnding::Exited { code: 3, signal: None });
        for kind in [OutcomeKind::Signalled, OutcomeKind::Cancelled] {
            let ended = of(Outcome { signal: Some(15), ..outcome(kind) });
            assert_eq!((ended, ended.exit_code()), (SessionEnding::Exited { code: -1, signal: Some(15) }, 143));
        }
        // One that listens when it is asked to end has a code of its own.
        assert_eq!(of(Outcome { code: Some(7), ..outcome(OutcomeKind::Cancelled) }).exit_code(), 7);
        assert_eq!(of(Outcome { signal: Some(9), ..outcome(OutcomeKind::OutOfMemory) }), SessionEnding::OutOfMemory);
        assert_eq!(of(Outcome { signal: Some(15), ..outcome(OutcomeKind::TimedOut) }), SessionEnding::TimedOut);
        assert_eq!(of(outcome(OutcomeKind::SandboxEnded)), SessionEnding::SandboxEnded);
        assert_eq!(of(outcome(OutcomeKind::Unknown)).exit_code(), 137);
    }

    #[test]
    fn a_command_that_never_ran_says_why() {
        let told = |failure| {
            let Failure { code, message, exit, .. } = failed(failure);
            (code, message, exit)
        };
        let missing = "tool: there is no such command in the sandbox".to_owned();
        assert_eq!(told("not_found"), ("command_not_found", missing, 127));
        let refused = "tool: it cannot be executed (not_executable)".to_owned();
        assert_eq!(told("not_executable"), ("command_not_executable", refused, 126));
        assert_eq!(told("other"), ("command_failed", "it did not work".to_owned(), 125));
        assert!(failed("bad_cwd").hint.unwrap().starts_with("--workdir"));
        assert!(failed("user_setup_failed").hint.unwrap().starts_with("--user"));
        let silent = SessionEnding::of("tool", &outcome(OutcomeKind::NeverRan)).unwrap_err();
        assert_eq!(silent.message, "the command could not be started");
    }
}
