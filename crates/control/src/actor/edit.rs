//! Builds a change of a sandbox for the store.

use std::time::Duration;

use carrel_store::{Change, EventDetails, EventType, Exec, ExecChange, ExecState, NewEvent, Sandbox, Timestamp};

use crate::exec_outcome;
use crate::provider::How;
use crate::stage::SandboxStage;

/// A change of a sandbox that is being built.
#[derive(Clone, Debug)]
pub(super) struct SandboxEdit {
    pub(super) change: Change,
    now: Timestamp,
}

// === impl SandboxEdit ===

impl SandboxEdit {
    pub(super) fn new(sandbox: &Sandbox, now: Timestamp) -> Self {
        let change = Change {
            sandbox: sandbox.clone(),
            new: false,
            reuses_id: false,
            execs: Vec::new(),
            events: Vec::new(),
            synced: false,
        };
        Self { change, now }
    }

    /// The commit is fsynced before it is visible.
    #[must_use]
    pub(super) fn synced(mut self) -> Self {
        self.change.synced = true;
        self
    }

    /// Sets how long the sandbox may be idle; `None` is the default of the daemon.
    #[must_use]
    pub(super) fn idle(mut self, idle: Option<Duration>) -> Self {
        self.change.sandbox.idle_ms = idle.map(|idle| u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
        self
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn has_events(&self) -> bool {
        !self.change.events.is_empty()
    }

    pub(super) fn sandbox(&mut self) -> &mut Sandbox {
        &mut self.change.sandbox
    }

    /// Enters another stage and emits its event.
    pub(super) fn enter(&mut self, stage: SandboxStage, kind: EventType, details: EventDetails) {
        stage.enter(&mut self.change.sandbox, self.now);
        self.emit(kind, self.now, details);
    }

    /// Enters another stage for a reason, which the row keeps.
    pub(super) fn enter_because(&mut self, stage: SandboxStage, kind: EventType, reason: &str) {
        self.change.sandbox.reason = reason.to_owned();
        self.enter(stage, kind, phase_details("", reason));
    }

    /// Enters a failed stage and emits its event.
    pub(super) fn fail(&mut self, stage: SandboxStage, code: &str, message: &str) {
        let details = self.error("", code, message);
        self.enter(stage, EventType::SandboxFailed, details);
    }

    /// Enters the stopped stage for the reason in the row, with an error if there was one.
    pub(super) fn stop(&mut self, stage: SandboxStage, error: Option<(&str, &str)>) {
        let reason = self.change.sandbox.reason.clone();
        let details = match error {
            Some((code, message)) => self.error(&reason, code, message),
            None => phase_details("", &reason),
        };
        self.enter(stage, EventType::SandboxStopped, details);
    }

    /// Records an error in the row.
    fn error(&mut self, reason: &str, code: &str, message: &str) -> EventDetails {
        code.clone_into(&mut self.change.sandbox.error_code);
        message.clone_into(&mut self.change.sandbox.error_message);
        let (error_code, error_message) = (code.to_owned(), message.to_owned());
        EventDetails::Phase { phase: String::new(), error_code, error_message, reason: reason.to_owned() }
    }

    /// Emits an event that leaves the stage unchanged.
    pub(super) fn emit(&mut self, kind: EventType, at: Timestamp, details: EventDetails) {
        self.change.events.push(NewEvent { kind, at, state: self.change.sandbox.state, details });
    }

    /// Adds an exec and emits that it started.
    pub(super) fn start_exec(&mut self, exec: Exec) {
        self.emit(EventType::ExecStarted, self.now, exec_details(&exec));
        self.change.execs.push(ExecChange::New(exec));
    }

    /// Records how an exec ended and emits it.
    pub(super) fn end_exec(&mut self, exec: &Exec, how: &How, at: Timestamp) {
        let mut exec = Exec { ended_at: Some(at), ..exec.clone() };
        exec_outcome::record(&mut exec, how);
        let kind = match exec.state {
            ExecState::Finished => EventType::ExecFinished,
            ExecState::Cancelled => EventType::ExecCancelled,
            ExecState::Failed | ExecState::Running => EventType::ExecFailed,
        };
        self.emit(kind, at, exec_details(&exec));
        self.change.execs.push(ExecChange::Known(exec));
    }

    /// Changes an exec without an event.
    pub(super) fn change_exec(&mut self, exec: Exec) {
        self.change.execs.push(ExecChange::Known(exec));
    }

    /// Whether this change records the end of an exec.
    pub(super) fn records_end_of(&self, exec: &Exec) -> bool {
        self.change.execs.iter().any(|change| matches!(change, ExecChange::Known(known) if known.id == exec.id))
    }
}

/// The details of an event with a phase and a reason.
pub(crate) fn phase_details(phase: &str, reason: &str) -> EventDetails {
    EventDetails::Phase {
        phase: phase.to_owned(),
        error_code: String::new(),
        error_message: String::new(),
        reason: reason.to_owned(),
    }
}

fn exec_details(exec: &Exec) -> EventDetails {
    EventDetails::Exec {
        exec: exec.id.clone(),
        state: exec.state,
        exit_code: exec.exit_code,
        error_code: exec.error_code.clone(),
        error_message: exec.error_message.clone(),
    }
}
