//! What is said when a session with a job is over that outlives it.

use std::time::Duration;

use serde_json::json;

use super::session::driver::SessionResult;
use super::session::ending::{self, SessionEnding, note};
use super::session::notes::Notes;
use crate::failure::Failure;
use crate::size::Time;

const OUT_OF_MEMORY: &str = "the kernel ended the command for want of memory";

/// What has to be known to say it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionReport<'a> {
    pub(super) sandbox: &'a str,
    pub(super) job: &'a str,
    /// Its process inside, if a signal is for this program and not for the job.
    pub(super) pid: Option<u32>,
    pub(super) notes: Notes,
    /// How long the job could take.
    pub(super) limit: Option<Time>,
    pub(super) took: Duration,
}

// === impl SessionReport ===

impl SessionReport<'_> {
    /// Says it, and returns what to exit with.
    pub(super) fn say(&self, over: &SessionResult) -> Result<u8, Failure> {
        match over.ending {
            SessionEnding::TimedOut => return Err(ending::timed_out(self.limit)),
            SessionEnding::Overdue => {
                let and = format!("job {} is not known to have ended", self.job);
                return Err(
                    ending::overdue(self.limit, &and).hint(format!("`carrel ps {}` says how it is", self.sandbox))
                );
            }
            SessionEnding::SandboxEnded => return Err(ending::end_of_sandbox(over.ended.as_ref(), None)),
            SessionEnding::OutputFailed { what, exited: Some(_) } => {
                return Err(ending::unwritten(what, &over.ending.of_command()));
            }
            SessionEnding::OutputFailed { what, exited: None } => {
                return Err(ending::unwritten(what, &self.goes_on()).hint(self.way_back()));
            }
            SessionEnding::Interrupted(_) if over.said.is_some() => {
                let words = over.said.as_deref().unwrap_or_default();
                let words = format!("{words}: job {} goes on when the sandbox does", self.job);
                self.notes.say_with_hint(&words, &format!("carrel resume {}", self.sandbox));
            }
            SessionEnding::Interrupted(_) if self.pid.is_some() => {
                let stop = self.pid.map(|pid| format!("; `carrel exec {} -- kill {pid}` stops it", self.sandbox));
                let hint = format!("`{}` attaches to it again{}", self.way_back(), stop.unwrap_or_default());
                self.notes.say_with_hint(&self.goes_on(), &hint);
            }
            SessionEnding::Detached | SessionEnding::Interrupted(_) => {
                self.notes.say_with_hint(&self.goes_on(), &self.way_back());
            }
            SessionEnding::OutOfMemory | SessionEnding::Exited { .. } => {
                let killed = (over.ending == SessionEnding::OutOfMemory).then_some(OUT_OF_MEMORY);
                if let Some(words) = over.said.as_deref().or(killed) {
                    self.notes.say_with_hint(words, "the limit of a sandbox is given with `carrel run --memory`");
                }
            }
            SessionEnding::OutputClosed => {}
        }
        if self.notes.json {
            note(&crate::json::line(&self.object(over.ending)));
        }
        Ok(over.ending.exit_code())
    }

    fn goes_on(&self) -> String {
        format!("job {} goes on", self.job)
    }

    fn way_back(&self) -> String {
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

    fn said(ending: SessionEnding) -> Result<u8, Failure> {
        let (notes, took) = (Notes { quiet: true, json: false }, Duration::from_millis(12));
        let limit = Some("200ms".parse().unwrap());
        SessionReport { sandbox: "web", job: "build", pid: None, notes, limit, took }.say(&ending.into())
    }

    #[test]
    fn how_a_job_ended_is_what_we_exit_with() {
        assert_eq!(said(SessionEnding::Exited { code: 3, signal: None }), Ok(3));
        assert_eq!(said(SessionEnding::OutOfMemory), Ok(137));
        assert_eq!(said(SessionEnding::Detached), Ok(0));
        assert_eq!(said(SessionEnding::Interrupted(15)), Ok(143));
        let failure = said(SessionEnding::TimedOut).unwrap_err();
        let words = "the command took longer than it was given (200ms), and was ended";
        assert_eq!((failure.message.as_str(), failure.exit), (words, 124));
        let failure = said(SessionEnding::Overdue).unwrap_err();
        let words = "the command took longer than it was given (200ms), and job build is not known to have ended";
        assert_eq!((failure.message.as_str(), failure.exit), (words, 124));
        assert_eq!(said(SessionEnding::SandboxEnded).unwrap_err().message, "the sandbox ended before the command did");
    }

    #[test]
    fn output_that_could_not_be_written_names_the_way_back() {
        let what = OutputError { stream: "standard output", errno: Errno::NOSPC };
        let failure = said(SessionEnding::OutputFailed { what, exited: None }).unwrap_err();
        let words = "write to standard output: No space left on device (os error 28); job build goes on";
        assert_eq!((failure.message.as_str(), failure.hint.as_deref()), (words, Some("carrel attach web build")));
        let failure = said(SessionEnding::OutputFailed { what, exited: Some((3, None)) }).unwrap_err();
        assert!(failure.message.ends_with("; the command ended with exit code 3") && failure.hint.is_none());
    }
}
