//! A model of the documented behaviour of sandboxes, independent of the implementation.
//!
//! Kinds of events and states are the numbers of the wire.

use std::collections::BTreeMap;

/// The state of a sandbox in the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ModelState {
    /// It does not exist.
    #[default]
    Absent,
    /// It is accepted, and not started yet.
    Accepted,
    /// It is starting.
    Pending,
    Ready,
    /// A stop was accepted. Clients see it as ready.
    Stopping,
    Stopped,
    Failed,
    /// It failed after it had been ready, and can be resumed. Clients see it as failed.
    Recoverable,
    Deleting,
    Deleted,
}

/// A request to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelRequest {
    Create,
    Stop,
    Resume,
    Delete,
    Exec(String),
    Cancel(String),
}

/// The expected answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedAnswer {
    /// It is accepted, and the next event is of this kind.
    Event(u8),
    /// It is accepted without an event.
    Silent,
    /// It is refused, with a code and a reason.
    Refused(&'static str, &'static str),
}

/// An event of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct ModelEvent {
    pub(crate) kind: u8,
    pub(crate) state: u8,
    pub(crate) reason: String,
    pub(crate) error_code: String,
    /// The exec with its state and its exit code.
    pub(crate) exec: Option<(String, u8, i32)>,
}

/// A sandbox, as its events describe it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelSandbox {
    pub(crate) state: ModelState,
    /// Why it is stopped or deleted.
    pub(crate) reason: String,
    /// Whether it was ever ready.
    pub(crate) was_ready: bool,
    /// The states of its execs.
    pub(crate) execs: BTreeMap<String, u8>,
}

const INVALID_STATE: ExpectedAnswer = ExpectedAnswer::Refused("FailedPrecondition", "SANDBOX_INVALID_STATE");
const NOT_READY: ExpectedAnswer = ExpectedAnswer::Refused("FailedPrecondition", "SANDBOX_NOT_READY");
const NOT_FOUND: ExpectedAnswer = ExpectedAnswer::Refused("NotFound", "SANDBOX_NOT_FOUND");
const TAKEN: ExpectedAnswer = ExpectedAnswer::Refused("AlreadyExists", "SANDBOX_ID_ALREADY_EXISTS");
const EXEC_NOT_FOUND: ExpectedAnswer = ExpectedAnswer::Refused("NotFound", "EXEC_NOT_FOUND");
const EXEC_ENDED: ExpectedAnswer = ExpectedAnswer::Refused("FailedPrecondition", "EXEC_ALREADY_TERMINAL");
pub(crate) const EXEC_TAKEN: ExpectedAnswer = ExpectedAnswer::Refused("AlreadyExists", "EXEC_ID_ALREADY_EXISTS");

const RUNNING: u8 = 1;

// === impl ModelState ===

impl ModelState {
    /// The state that clients see.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Absent => 0,
            Self::Accepted | Self::Pending => 1,
            Self::Ready | Self::Stopping => 2,
            Self::Failed | Self::Recoverable => 3,
            Self::Stopped => 4,
            Self::Deleting => 5,
            Self::Deleted => 6,
        }
    }

    /// Whether no accepted request is in progress.
    pub(crate) fn is_settled(self) -> bool {
        !matches!(self, Self::Accepted | Self::Pending | Self::Stopping | Self::Deleting)
    }
}

// === impl ModelSandbox ===

impl ModelSandbox {
    /// The expected answer now. Ids of execs of other sandboxes are not known here.
    pub(crate) fn answer(&self, request: &ModelRequest) -> ExpectedAnswer {
        use ModelState::{Absent, Deleted, Deleting, Ready, Recoverable, Stopped, Stopping};
        match (request, self.state) {
            (ModelRequest::Create, Absent) => ExpectedAnswer::Event(1),
            (ModelRequest::Create, _) => TAKEN,
            (ModelRequest::Cancel(exec), _) => match self.execs.get(exec) {
                None => EXEC_NOT_FOUND,
                Some(&RUNNING) => ExpectedAnswer::Silent,
                Some(_) => EXEC_ENDED,
            },
            (_, Absent) => NOT_FOUND,
            (ModelRequest::Stop, Ready) => ExpectedAnswer::Event(5),
            (ModelRequest::Stop, Stopping) => ExpectedAnswer::Silent,
            (ModelRequest::Resume, Stopped | Recoverable) => ExpectedAnswer::Event(1),
            (ModelRequest::Stop | ModelRequest::Resume, _) => INVALID_STATE,
            (ModelRequest::Delete, Deleting | Deleted) => ExpectedAnswer::Silent,
            (ModelRequest::Delete, _) => ExpectedAnswer::Event(7),
            (ModelRequest::Exec(exec), Ready) if self.execs.contains_key(exec) => EXEC_TAKEN,
            (ModelRequest::Exec(_), Ready) => ExpectedAnswer::Event(9),
            (ModelRequest::Exec(_), _) => NOT_READY,
        }
    }

    /// Applies an event, if it is allowed.
    pub(crate) fn happen(&mut self, event: &ModelEvent) -> Result<(), String> {
        use ModelState::{Absent, Accepted, Deleted, Deleting, Failed, Pending, Ready, Recoverable, Stopped, Stopping};
        let next = match (event.kind, self.state) {
            (1, Absent) => Accepted,
            (2, Accepted) => Pending,
            // A resume is not prepared.
            (1, Stopped | Recoverable) => Pending,
            (3, Pending) => Ready,
            (4, Pending) if self.was_ready => Recoverable,
            (4, Ready | Stopping) => Recoverable,
            (4, Pending | Deleting) => Failed,
            (5, Ready) => Stopping,
            (6, Stopping) => Stopped,
            (7, Accepted | Pending | Ready | Stopping | Stopped | Failed | Recoverable) => Deleting,
            (8, Deleting) => Deleted,
            (9, Ready) => Ready,
            (10..=12, Ready | Stopping | Deleting) => self.state,
            _ => return Err(format!("{event:?} must not happen when it is {:?}", self.state)),
        };
        match (event.kind, &event.exec) {
            (9, Some((exec, RUNNING, _))) if !self.execs.contains_key(exec) => {}
            (10, Some((exec, 2, 0))) | (11, Some((exec, 3, 1..))) | (12, Some((exec, 4, _)))
                if self.execs.get(exec) == Some(&RUNNING) => {}
            (1..=8, None) => {}
            _ => return Err(format!("{event:?} does not fit {:?}", self.execs)),
        }
        if let Some((exec, state, _)) = &event.exec {
            self.execs.insert(exec.clone(), *state);
        }
        if matches!(event.kind, 4 | 6 | 8) && self.execs.values().any(|state| *state == RUNNING) {
            return Err(format!("{event:?} comes before the end of {:?}", self.execs));
        }
        if matches!(event.kind, 6 | 8) && event.reason != self.reason {
            return Err(format!("{event:?} has another reason than {:?}", self.reason));
        }
        let expected: &[&str] = match (event.kind, self.state) {
            (4, Pending) => &["SANDBOX_CREATE_FAILED", "SANDBOX_RESUME_FAILED"],
            (4, Ready) => &["CONTAINER_NOT_RUNNING", "CONTAINER_OOM"],
            (4, Stopping) => &["SANDBOX_STOP_FAILED"],
            (4, _) => &["SANDBOX_DELETE_FAILED"],
            (5, _) => &["stop_requested", "supervisor_lost", "host_restarted"],
            (7, _) => &["delete_requested"],
            _ => &[],
        };
        let word = if event.kind == 4 { &event.error_code } else { &event.reason };
        if !expected.is_empty() && !expected.contains(&word.as_str()) {
            return Err(format!("{event:?} says none of {expected:?}"));
        }
        if event.state != next.number() {
            return Err(format!("{event:?} does not announce {next:?}"));
        }
        if matches!(event.kind, 6) && (event.error_code == "CONTAINER_NOT_RUNNING") != self.is_lost() {
            return Err(format!("{event:?} does not say whether it was completed for"));
        }
        self.was_ready |= next == Ready;
        if matches!(event.kind, 5 | 7) {
            self.reason.clone_from(&event.reason);
        }
        self.state = next;
        Ok(())
    }

    /// Whether it stopped without a request.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.reason.as_str(), "supervisor_lost" | "host_restarted")
    }

    /// Execs that are running.
    pub(crate) fn running(&self) -> impl Iterator<Item = &String> {
        self.execs.iter().filter(|(_, state)| **state == RUNNING).map(|(exec, _)| exec)
    }
}
