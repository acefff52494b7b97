//! A change of a sandbox while it is put together.

use std::time::Duration;

use carrel_store::{Change, Details, EventType, Exec, ExecChange, ExecState, NewEvent, Sandbox, Timestamp};

use crate::exec_outcome;
use crate::machine::Stage;
use crate::provider::How;

/// A change of a sandbox while it is put together.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    pub(super) change: Change,
    now: Timestamp,
}

// === impl Edit ===

impl Edit {
    pub(super) fn new(sandbox: &Sandbox, now: Timestamp) -> Self {
        let change =
            Change { sandbox: sandbox.clone(), new: false, execs: Vec::new(), events: Vec::new(), synced: false };
        Self { change, now }
    }

    /// It has to survive a power cut before anyone hears of it.
    #[must_use]
    pub(super) fn synced(mut self) -> Self {
        self.change.synced = true;
        self
    }

    /// It may be idle for so long: none is what the daemon says.
    #[must_use]
    pub(super) fn idle(mut self, idle: Option<Duration>) -> Self {
        self.change.sandbox.idle_ms = idle.map(|idle| u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
        self
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn is_told(&self) -> bool {
        !self.change.events.is_empty()
    }

    pub(super) fn sandbox(&mut self) -> &mut Sandbox {
        &mut self.change.sandbox
    }

    /// Goes to another stage, and tells it.
    pub(super) fn go(&mut self, stage: Stage, kind: EventType, details: Details) {
        stage.enter(&mut self.change.sandbox, self.now);
        self.tell(kind, self.now, details);
    }

    /// The same for a reason, which is kept with it.
    pub(super) fn go_because(&mut self, stage: Stage, kind: EventType, reason: &str) {
        self.change.sandbox.reason = reason.to_owned();
        self.go(stage, kind, phase("", reason));
    }

    /// Fails, and tells it.
    pub(super) fn fail(&mut self, stage: Stage, code: &str, message: &str) {
        let details = self.error("", code, message);
        self.go(stage, EventType::SandboxFailed, details);
    }

    /// Stops for the reason that is kept with it, and because of an error if there was one.
    pub(super) fn stop(&mut self, stage: Stage, error: Option<(&str, &str)>) {
        let reason = self.change.sandbox.reason.clone();
        let details = match error {
            Some((code, message)) => self.error(&reason, code, message),
            None => phase("", &reason),
        };
        self.go(stage, EventType::SandboxStopped, details);
    }

    /// Keeps an error with the sandbox.
    fn error(&mut self, reason: &str, code: &str, message: &str) -> Details {
        code.clone_into(&mut self.change.sandbox.error_code);
        message.clone_into(&mut self.change.sandbox.error_message);
        let (error_code, error_message) = (code.to_owned(), message.to_owned());
        Details::Phase { phase: String::new(), error_code, error_message, reason: reason.to_owned() }
    }

    /// Tells something that leaves the stage as it is.
    pub(super) fn tell(&mut self, kind: EventType, at: Timestamp, details: Details) {
        self.change.events.push(NewEvent { kind, at, state: self.change.sandbox.state, details });
    }

    /// A command begins.
    pub(super) fn begin_exec(&mut self, exec: Exec) {
        self.tell(EventType::ExecStarted, self.now, about(&exec));
        self.change.execs.push(ExecChange::New(exec));
    }

    /// A command has ended.
    pub(super) fn end_exec(&mut self, exec: &Exec, how: &How, at: Timestamp) {
        let mut exec = Exec { ended_at: Some(at), ..exec.clone() };
        exec_outcome::record(&mut exec, how);
        let kind = match exec.state {
            ExecState::Finished => EventType::ExecFinished,
            ExecState::Cancelled => EventType::ExecCancelled,
            ExecState::Failed | ExecState::Running => EventType::ExecFailed,
        };
        self.tell(kind, at, about(&exec));
        self.change.execs.push(ExecChange::Known(exec));
    }

    /// A command changes, and nobody has to know.
    pub(super) fn change_exec(&mut self, exec: Exec) {
        self.change.execs.push(ExecChange::Known(exec));
    }

    /// Whether it says how a command ended.
    pub(super) fn ends(&self, exec: &Exec) -> bool {
        self.change.execs.iter().any(|change| matches!(change, ExecChange::Known(known) if known.id == exec.id))
    }
}

/// What a sandbox is at, and why.
pub(crate) fn phase(phase: &str, reason: &str) -> Details {
    Details::Phase {
        phase: phase.to_owned(),
        error_code: String::new(),
        error_message: String::new(),
        reason: reason.to_owned(),
    }
}

fn about(exec: &Exec) -> Details {
    Details::Exec {
        exec: exec.id.clone(),
        state: exec.state,
        exit_code: exec.exit_code,
        error_code: exec.error_code.clone(),
        error_message: exec.error_message.clone(),
    }
}
