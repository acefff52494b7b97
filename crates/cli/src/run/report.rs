//! The report at the end of a run.

use std::time::Duration;

use carrel_shim_client::messages::{EndReason, SandboxEnd, UnenforcedLimit};
use carrel_units::{ByteSize, TimeSpan};
use serde_json::json;

use super::RunResult;
use super::plan::RunPlan;
use super::project::ProjectChanges;
use crate::failure::Failure;
use crate::jobs::RUN;
use crate::jobs::session::ending::{self, SessionEnding, note};
use crate::jobs::session::notes::SessionNotes;

/// The data of the report.
#[derive(Debug)]
pub(crate) struct RunReport<'a> {
    ending: &'a SessionEnding,
    ended: Option<&'a SandboxEnd>,
    unenforced: &'a [UnenforcedLimit],
    memory: ByteSize,
    /// Whether it has the kernel of gVisor.
    gvisor: bool,
    timeout: Option<TimeSpan>,
    took: Duration,
    outcome: Option<&'a ProjectChanges>,
    /// Whether changes to its project are not saved.
    discards: bool,
    /// The name of the sandbox.
    name: &'a str,
}

// === impl RunReport ===

impl<'a> RunReport<'a> {
    pub(crate) fn new(
        plan: &'a RunPlan,
        ran: &'a RunResult,
        outcome: Option<&'a ProjectChanges>,
        took: Duration,
    ) -> Self {
        let RunResult { ending, ended, unenforced, .. } = ran;
        let (ended, name) = (ended.as_ref(), plan.create.name.as_str());
        let discards = plan.project.as_ref().is_some_and(|project| !project.keeps());
        let (memory, gvisor, timeout) = (plan.memory, plan.create.gvisor.is_some(), plan.timeout);
        Self { unenforced, ending, ended, memory, gvisor, timeout, took, outcome, discards, name }
    }

    /// Prints the report: a failure as an error, all else as a note.
    pub(crate) fn print(&self, json: bool, quiet: bool) -> Result<(), Failure> {
        if let (Some(outcome), false, false) = (self.outcome, json, quiet) {
            note(&outcome.text());
        }
        match (self.ending, self.ended) {
            (SessionEnding::OutputFailed { what, .. }, _) => {
                return Err(ending::output_failed(*what, &self.ending.command_message()));
            }
            (SessionEnding::SandboxEnded, ended) => return Err(self.sandbox_ended(ended)),
            (SessionEnding::OutOfMemory, Some(ended)) if ended.reason == EndReason::OutOfMemory => {
                return Err(ending::sandbox_ended(Some(ended), Some(self.memory)));
            }
            (SessionEnding::TimedOut, _) => return Err(ending::timed_out(self.timeout)),
            _ => {}
        }
        if *self.ending == SessionEnding::Detached {
            let hint = format!("carrel attach {} {RUN}", self.name);
            let notes = SessionNotes { quiet, json };
            notes.print_with_hint(&format!("job {RUN} continues"), &hint);
            if let Some(words) = self.discard_message() {
                notes.print(words);
            }
        }
        if json {
            note(&crate::json::line(&self.object()));
        } else if let (false, Some(words)) = (quiet, self.oom_message()) {
            note(&format!("note: {words}\nhint: increase the limit with --memory\n"));
        }
        Ok(())
    }

    /// The failure of a sandbox that stopped before the command exited.
    fn sandbox_ended(&self, ended: Option<&SandboxEnd>) -> Failure {
        let failure = ending::sandbox_ended(ended, Some(self.memory));
        match ended.map(|ended| ended.reason) {
            // It does not survive a thread that it cannot start.
            Some(EndReason::GuestExit) if self.gvisor => failure
                .hint("raise --pids if the command started many processes: gVisor's own kernel needs some as well"),
            _ => failure,
        }
    }

    /// The result as JSON.
    fn object(&self) -> serde_json::Value {
        let mut object = json!({
            "exit_code": self.ending.exit_code(),
            "signal": self.ending.signal(),
            "duration_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
            "out_of_memory_kills": self.ended.map_or(0, |ended| ended.out_of_memory_kills),
        });
        if let (SessionEnding::Detached, Some(object)) = (self.ending, object.as_object_mut()) {
            object.insert("detached".to_owned(), true.into());
            object.insert("sandbox".to_owned(), self.name.into());
        }
        if let (Some(outcome), Some(object)) = (self.outcome, object.as_object_mut()) {
            object.insert("changes".to_owned(), outcome.object());
        }
        if let (false, Some(object)) = (self.unenforced.is_empty(), object.as_object_mut()) {
            object.insert("unenforced_limits".to_owned(), crate::limits::names(self.unenforced));
        }
        object
    }

    /// Changes that are not saved are lost when a detached run ends, where no report follows.
    fn discard_message(&self) -> Option<&'static str> {
        let is_lost = self.discards && *self.ending == SessionEnding::Detached;
        is_lost.then_some("changes to the project will be discarded when it ends")
    }

    fn oom_message(&self) -> Option<String> {
        let kills = self.ended.map_or(0, |ended| ended.out_of_memory_kills);
        let processes = if kills == 1 { "process" } else { "processes" };
        (kills > 0).then(|| format!("{kills} {processes} of the sandbox OOM-killed (memory limit {})", self.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::session::output::OutputError;

    fn ended(reason: EndReason) -> SandboxEnd {
        SandboxEnd {
            reason,
            message: "pid 1 is gone".to_owned(),
            code: None,
            signal: None,
            out_of_memory_kills: 2,
            stray_frames: 0,
        }
    }

    fn report<'a>(ending: &'a SessionEnding, ended: &'a SandboxEnd) -> RunReport<'a> {
        let took = Duration::from_millis(12);
        RunReport {
            unenforced: &[],
            ending,
            ended: Some(ended),
            memory: ByteSize(64 << 20),
            gvisor: false,
            timeout: None,
            took,
            outcome: None,
            discards: false,
            name: "web",
        }
    }

    const FULL: OutputError = OutputError { stream: "standard output", errno: rustix::io::Errno::NOSPC };

    //= promises.command.output-cannot-written-full
    #[test]
    fn an_output_error_is_a_failure_with_the_ending_of_the_command() {
        for (exited, command) in [
            (None, "the command was killed"),
            (Some((3, None)), "the command exited with code 3"),
            (Some((-1, Some(9))), "signal 9 killed the command"),
        ] {
            let ending = SessionEnding::OutputFailed { what: FULL, exited };
            let failure = report(&ending, &ended(EndReason::Stopped)).print(false, true).unwrap_err();
            let expected = format!("write to standard output: No space left on device (os error 28); {command}");
            assert_eq!((failure.message, failure.exit), (expected, 125));
        }
    }

    //= promises.supervisor.end-reasons-distinguished
    #[test]
    fn the_end_of_a_sandbox_is_reported_with_its_reason() {
        let reported = |reason| {
            let failure = report(&SessionEnding::SandboxEnded, &ended(reason)).print(false, false).unwrap_err();
            (failure.message, failure.hint, failure.exit)
        };
        assert_eq!(
            reported(EndReason::OutOfMemory),
            (
                "the sandbox ran out of memory (limit 64 MiB)".to_owned(),
                Some("increase the limit with --memory".to_owned()),
                137
            )
        );
        assert_eq!(
            reported(EndReason::Misbehaved),
            ("the sandbox violated the protocol and was killed: pid 1 is gone".to_owned(), None, 125)
        );
        assert_eq!(
            reported(EndReason::GuestExit),
            ("the sandbox stopped before the command exited: pid 1 is gone".to_owned(), None, 125)
        );
        let hint_on_gvisor = |reason| {
            let (ending, ended) = (SessionEnding::SandboxEnded, ended(reason));
            RunReport { gvisor: true, ..report(&ending, &ended) }.print(false, false).unwrap_err().hint
        };
        assert!(hint_on_gvisor(EndReason::GuestExit).is_some_and(|hint| hint.contains("--pids")));
        assert_eq!(hint_on_gvisor(EndReason::Stopped), None);
    }

    #[test]
    fn a_run_that_continues_says_that_its_changes_will_be_lost() {
        let ended = ended(EndReason::Stopped);
        let report = |ending, discards| RunReport { discards, ..report(ending, &ended) };
        let words = Some("changes to the project will be discarded when it ends");
        assert_eq!(report(&SessionEnding::Detached, true).discard_message(), words);
        assert_eq!(report(&SessionEnding::Detached, false).discard_message(), None, "--keep-changes saves them");
        let exited = SessionEnding::Exited { code: 0, signal: None };
        assert_eq!(report(&exited, true).discard_message(), None, "the summary says so");
    }

    #[test]
    fn a_json_result_is_one_line() {
        let (ending, ended) = (SessionEnding::Exited { code: -1, signal: Some(9) }, ended(EndReason::Stopped));
        let report = report(&ending, &ended);
        assert_eq!(
            report.object().to_string(),
            r#"{"exit_code":137,"signal":9,"duration_ms":12,"out_of_memory_kills":2}"#
        );
        assert_eq!(report.oom_message().unwrap(), "2 processes of the sandbox OOM-killed (memory limit 64 MiB)");
    }
}
