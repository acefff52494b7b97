//! The report at the end of a session with a job that may outlive it.

use std::time::Duration;

use carrel_units::TimeSpan;
use serde_json::json;

use super::session::driver::SessionResult;
use super::session::ending::{self, SessionEnding, note};
use super::session::notes::SessionNotes;
use crate::failure::Failure;

const OUT_OF_MEMORY: &str = "the command was OOM-killed";

/// The data of the report.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionReport<'a> {
    pub(super) sandbox: &'a str,
    pub(super) job: &'a str,
    /// What ends the job or its sandbox, if signals are for this program and not for the job.
    pub(super) end_hint: Option<&'a str>,
    pub(super) notes: SessionNotes,
    /// The timeout of the job.
    pub(super) limit: Option<TimeSpan>,
    pub(super) took: Duration,
}

// === impl SessionReport ===

impl SessionReport<'_> {
    /// Prints the report, and returns the exit code.
    pub(super) fn print(&self, result: &SessionResult) -> Result<u8, Failure> {
        match result.ending {
            SessionEnding::TimedOut => return Err(ending::timed_out(self.limit)),
            SessionEnding::Overdue => {
                let and = format!("job {} is not known to have exited", self.job);
                return Err(
                    ending::overdue(self.limit, &and).hint(format!("`carrel ps {}` shows its state", self.sandbox))
                );
            }
            SessionEnding::SandboxEnded => return Err(ending::sandbox_ended(result.ended.as_ref(), None)),
            SessionEnding::OutputFailed { what, exited: Some(_) } => {
                return Err(ending::output_failed(what, &result.ending.command_message()));
            }
            SessionEnding::OutputFailed { what, exited: None } => {
                return Err(ending::output_failed(what, &self.continues()).hint(self.attach_command()));
            }
            SessionEnding::Interrupted(_) if result.message.is_some() => {
                let words = result.message.as_deref().unwrap_or_default();
                let words = format!("{words}: job {} continues when the sandbox is resumed", self.job);
                self.notes.print_with_hint(&words, &format!("carrel resume {}", self.sandbox));
            }
            SessionEnding::Interrupted(_) if self.end_hint.is_some() => {
                let end = self.end_hint.map(|hint| format!("; {hint}"));
                let hint = format!("`{}` attaches to it again{}", self.attach_command(), end.unwrap_or_default());
                self.notes.print_with_hint(&self.continues(), &hint);
            }
            SessionEnding::Detached | SessionEnding::Interrupted(_) => {
                self.notes.print_with_hint(&self.continues(), &self.attach_command());
            }
            SessionEnding::OutOfMemory | SessionEnding::Exited { .. } => {
                let killed = (result.ending == SessionEnding::OutOfMemory).then_some(OUT_OF_MEMORY);
                if let Some(words) = result.message.as_deref().or(killed) {
                    self.notes.print_with_hint(words, "`carrel run --memory` sets the limit of a sandbox");
                }
            }
            SessionEnding::OutputClosed => {}
        }
        if self.notes.json {
            note(&crate::json::line(&self.object(result.ending)));
        }
        Ok(result.ending.exit_code())
    }

    fn continues(&self) -> String {
        format!("job {} continues", self.job)
    }

    fn attach_command(&self) -> String {
        format!("carrel attach {} {}", self.sandbox, self.job)
    }

    fn object(&self, ending: SessionEnding) -> serde_json::Value {
        json!({
            "job": self.job,
            "exit_code": ending.exit_code(),
            "signal": ending.signal(),
            "detached": matches!(ending, SessionEnding::Detached),
            "duration_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::super::session::output::OutputError;
    use super::*;

    fn report(ending: SessionEnding) -> Result<u8, Failure> {
        let (notes, took) = (SessionNotes { quiet: true, json: false }, Duration::from_millis(12));
        let limit = Some("200ms".parse().unwrap());
        SessionReport { sandbox: "web", job: "build", end_hint: None, notes, limit, took }.print(&ending.into())
    }

    #[test]
    fn the_exit_code_is_that_of_the_job() {
        assert_eq!(report(SessionEnding::Exited { code: 3, signal: None }), Ok(3));
        assert_eq!(report(SessionEnding::OutOfMemory), Ok(137));
        assert_eq!(report(SessionEnding::Detached), Ok(0));
        assert_eq!(report(SessionEnding::Interrupted(15)), Ok(143));
        let failure = report(SessionEnding::TimedOut).unwrap_err();
        let words = "the command exceeded its timeout (200ms) and was killed";
        assert_eq!((failure.message.as_str(), failure.exit), (words, 124));
        let failure = report(SessionEnding::Overdue).unwrap_err();
        let words = "the command exceeded its timeout (200ms), and job build is not known to have exited";
        assert_eq!((failure.message.as_str(), failure.exit), (words, 124));
        assert_eq!(
            report(SessionEnding::SandboxEnded).unwrap_err().message,
            "the sandbox stopped before the command exited"
        );
    }

    #[test]
    fn an_output_error_names_the_command_to_attach_again() {
        let what = OutputError { stream: "standard output", errno: Errno::NOSPC };
        let failure = report(SessionEnding::OutputFailed { what, exited: None }).unwrap_err();
        let words = "write to standard output: No space left on device (os error 28); job build continues";
        assert_eq!((failure.message.as_str(), failure.hint.as_deref()), (words, Some("carrel attach web build")));
        let failure = report(SessionEnding::OutputFailed { what, exited: Some((3, None)) }).unwrap_err();
        assert!(failure.message.ends_with("; the command exited with code 3") && failure.hint.is_none());
    }
}
