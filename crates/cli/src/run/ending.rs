//! How a run ended, as an exit code and in words.

use std::time::Duration;

use carrel_agent_client::Error;
use carrel_agent_client::protocol::payload::ExecFailureKind;
use carrel_shim_client::messages::{EndReason, Ended};
use serde_json::json;

use super::Ran;
use super::plan::Plan;
use super::project::Outcome;
use crate::failure::{Failure, OURS};
use crate::jobs::session::output::Unwritten;
use crate::size::{Size, Time};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command ended.
    Exited { code: i32, signal: Option<i32> },
    /// A signal to this program ended it.
    Interrupted(i32),
    /// Its time was up.
    TimedOut,
    /// Nobody reads its output any more.
    Unread,
    /// Its output could not be written; it may have ended before that was known.
    Unwritten { what: Unwritten, exited: Option<(i32, Option<i32>)> },
    /// The sandbox ended before it did.
    SandboxEnded,
}

/// What is said at the end.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    ending: &'a Ending,
    ended: Option<&'a Ended>,
    memory: Size,
    timeout: Option<Time>,
    took: Duration,
    outcome: Option<&'a Outcome>,
}

// === impl Ending ===

impl Ending {
    /// What this program exits with.
    pub(crate) fn exit_code(self) -> u8 {
        const SIGPIPE: i32 = 13;
        const SIGKILL: i32 = 9;
        let by_signal = |signal: i32| u8::try_from(128 + (signal & 0x7f)).unwrap_or(OURS);
        match self {
            Self::Exited { signal: Some(signal), .. } | Self::Interrupted(signal) => by_signal(signal),
            // An agent that tells no number: most are ended by this one.
            Self::Exited { code: -1, signal: None } => by_signal(SIGKILL),
            Self::Exited { code, signal: None } => u8::try_from(code & 0xff).unwrap_or(OURS),
            Self::TimedOut => 124,
            Self::Unread => by_signal(SIGPIPE),
            Self::Unwritten { .. } | Self::SandboxEnded => OURS,
        }
    }

    /// What became of the command, where something else has to be told.
    pub(crate) fn of_command(self) -> String {
        match self {
            Self::Exited { signal: Some(signal), .. } => format!("signal {signal} ended the command"),
            Self::Exited { code: -1, signal: None } => "a signal ended the command".to_owned(),
            Self::Exited { code, signal: None } => format!("the command ended with exit code {code}"),
            Self::Unwritten { exited: Some((code, signal)), .. } => Self::Exited { code, signal }.of_command(),
            _ => "the command was ended".to_owned(),
        }
    }
}

/// Why a command never ran, or was lost.
pub(crate) fn never_ran(command: &str, error: &Error) -> Failure {
    let Error::ExecFailed(failed) = error else {
        return Failure::new("agent_failed", error);
    };
    let failure = Failure::new("command_failed", &failed.message);
    match failed.kind {
        ExecFailureKind::NotFound => {
            Failure::new("command_not_found", format!("{command}: there is no such command in the sandbox")).exit(127)
        }
        ExecFailureKind::PermissionDenied | ExecFailureKind::NotExecutable => {
            let reason = failed.errno_name.as_deref().unwrap_or(failed.kind.as_str());
            let words = format!("{command}: it cannot be executed ({reason})");
            Failure::new("command_not_executable", words).exit(126)
        }
        ExecFailureKind::BadCwd => failure.hint("--workdir names a directory that is there inside"),
        ExecFailureKind::UserSetupFailed => failure.hint("--user takes a name that the image knows, or a number"),
        _ => failure,
    }
}

// === impl Report ===

impl<'a> Report<'a> {
    pub(crate) fn new(plan: &Plan, ran: &'a Ran, outcome: Option<&'a Outcome>, took: Duration) -> Self {
        let Ran { ending, ended, .. } = ran;
        Self { ending, ended: ended.as_ref(), memory: plan.memory, timeout: plan.timeout, took, outcome }
    }

    /// Says what has to be said: a failure as such, all else as a note.
    pub(crate) fn say(&self, json: bool, quiet: bool) -> Result<(), Failure> {
        if let (Some(outcome), false, false) = (self.outcome, json, quiet) {
            note(&outcome.words());
        }
        match (self.ending, self.ended) {
            (Ending::Unwritten { what, .. }, _) => {
                let error = std::io::Error::from(what.errno);
                let words = format!("write to {}: {error}; {}", what.stream, self.ending.of_command());
                return Err(Failure::new("output_failed", words));
            }
            (Ending::SandboxEnded, Some(ended)) => return Err(self.end_of_sandbox(ended)),
            (Ending::TimedOut, _) => {
                let limit = self.timeout.map(|time| format!(" ({time})")).unwrap_or_default();
                let words = format!("the command took longer than it was given{limit}, and was ended");
                return Err(Failure::new("timed_out", words).hint("give it more time with --timeout").exit(124));
            }
            _ => {}
        }
        if json {
            note(&format!("{}\n", self.object()));
        } else if let (false, Some(words)) = (quiet, self.want_of_memory()) {
            note(&format!("note: {words}\nhint: give it more with --memory\n"));
        }
        Ok(())
    }

    /// The whole result, for programs.
    fn object(&self) -> serde_json::Value {
        let signal = match self.ending {
            Ending::Exited { signal, .. } => *signal,
            Ending::Interrupted(signal) => Some(*signal),
            _ => None,
        };
        let mut object = json!({
            "exit_code": self.ending.exit_code(),
            "signal": signal,
            "duration_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
            "out_of_memory_kills": self.ended.map_or(0, |ended| ended.out_of_memory_kills),
        });
        if let (Some(outcome), Some(object)) = (self.outcome, object.as_object_mut()) {
            object.insert("changes".to_owned(), outcome.object());
        }
        object
    }

    fn want_of_memory(&self) -> Option<String> {
        let kills = self.ended.map_or(0, |ended| ended.out_of_memory_kills);
        let processes = if kills == 1 { "process" } else { "processes" };
        (kills > 0).then(|| {
            format!("the kernel ended {kills} {processes} of the sandbox for want of memory (limit {})", self.memory)
        })
    }

    fn end_of_sandbox(&self, ended: &Ended) -> Failure {
        let why = |words: &str| match ended.message.as_str() {
            "" => words.to_owned(),
            message => format!("{words}: {message}"),
        };
        match ended.reason {
            EndReason::OutOfMemory => {
                Failure::new("out_of_memory", format!("the sandbox ran out of memory (limit {})", self.memory))
                    .hint("give it more with --memory")
                    .exit(137)
            }
            EndReason::Misbehaved => Failure::new("misbehaved", why("the sandbox misbehaved and was ended")),
            _ => Failure::new("sandbox_ended", why("the sandbox ended before the command did")),
        }
    }
}

fn note(words: &str) {
    // Nobody is left to tell when standard error is gone.
    let _said = std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(reason: EndReason) -> Ended {
        Ended {
            reason,
            message: "pid 1 is gone".to_owned(),
            code: None,
            signal: None,
            out_of_memory_kills: 2,
            stray_frames: 0,
        }
    }

    fn report<'a>(ending: &'a Ending, ended: &'a Ended) -> Report<'a> {
        let took = Duration::from_millis(12);
        Report { ending, ended: Some(ended), memory: Size(64 << 20), timeout: None, took, outcome: None }
    }

    const FULL: Unwritten = Unwritten { stream: "standard output", errno: rustix::io::Errno::NOSPC };

    #[test]
    fn output_that_could_not_be_written_is_a_failure_that_says_how_the_command_ended() {
        for (exited, command) in [
            (None, "the command was ended"),
            (Some((3, None)), "the command ended with exit code 3"),
            (Some((-1, Some(9))), "signal 9 ended the command"),
        ] {
            let ending = Ending::Unwritten { what: FULL, exited };
            let failure = report(&ending, &ended(EndReason::Stopped)).say(false, true).unwrap_err();
            let expected = format!("write to standard output: No space left on device (os error 28); {command}");
            assert_eq!((failure.message, failure.exit), (expected, 125));
        }
    }

    #[test]
    fn an_ending_has_the_exit_code_that_shells_give_it() {
        for (ending, code) in [
            (Ending::Exited { code: 0, signal: None }, 0),
            (Ending::Exited { code: 42, signal: None }, 42),
            (Ending::Exited { code: -1, signal: Some(15) }, 143),
            (Ending::Exited { code: -1, signal: None }, 137),
            (Ending::Interrupted(2), 130),
            (Ending::TimedOut, 124),
            (Ending::Unread, 141),
            (Ending::Unwritten { what: FULL, exited: Some((0, None)) }, 125),
            (Ending::SandboxEnded, 125),
        ] {
            assert_eq!(ending.exit_code(), code, "{ending:?}");
        }
    }

    #[test]
    fn the_end_of_a_sandbox_is_told_with_its_reason() {
        let told = |reason| {
            let failure = report(&Ending::SandboxEnded, &ended(reason)).say(false, false).unwrap_err();
            (failure.message, failure.hint, failure.exit)
        };
        assert_eq!(
            told(EndReason::OutOfMemory),
            (
                "the sandbox ran out of memory (limit 64 MiB)".to_owned(),
                Some("give it more with --memory".to_owned()),
                137
            )
        );
        assert_eq!(
            told(EndReason::Misbehaved),
            ("the sandbox misbehaved and was ended: pid 1 is gone".to_owned(), None, 125)
        );
        assert_eq!(
            told(EndReason::GuestExit),
            ("the sandbox ended before the command did: pid 1 is gone".to_owned(), None, 125)
        );
    }

    #[test]
    fn a_result_for_programs_has_everything_on_one_line() {
        let (ending, ended) = (Ending::Exited { code: -1, signal: Some(9) }, ended(EndReason::Stopped));
        let report = report(&ending, &ended);
        assert_eq!(
            report.object().to_string(),
            r#"{"exit_code":137,"signal":9,"duration_ms":12,"out_of_memory_kills":2}"#
        );
        assert_eq!(
            report.want_of_memory().unwrap(),
            "the kernel ended 2 processes of the sandbox for want of memory (limit 64 MiB)"
        );
    }
}
