//! What is promised about sandboxes, written down a second time: it knows nothing of the code that keeps the promise.
//!
//! Kinds of events and states are the numbers of the wire.

use std::collections::BTreeMap;

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// There is none.
    #[default]
    Absent,
    /// It is accepted, and nothing has begun.
    Accepted,
    /// It is being made, or made to run again.
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

/// What somebody asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Create,
    Stop,
    Resume,
    Delete,
    Exec(String),
    Cancel(String),
}

/// What has to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is accepted, and the next event says so.
    Told(u8),
    /// It is accepted, and no event says so.
    Silent,
    /// It is refused, with a code and a reason.
    Refused(&'static str, &'static str),
}

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: u8,
    pub(crate) state: u8,
    pub(crate) reason: String,
    pub(crate) error_code: String,
    /// An exec, how it is, and its exit code.
    pub(crate) exec: Option<(String, u8, i32)>,
}

/// A sandbox, as its events make it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sandbox {
    pub(crate) state: State,
    /// Why it stops or goes.
    pub(crate) reason: String,
    /// Whether it was ready at some time.
    pub(crate) was_ready: bool,
    /// Execs, and how they are.
    pub(crate) execs: BTreeMap<String, u8>,
}

const INVALID_STATE: Answer = Answer::Refused("FailedPrecondition", "SANDBOX_INVALID_STATE");
const NOT_READY: Answer = Answer::Refused("FailedPrecondition", "SANDBOX_NOT_READY");
const NOT_FOUND: Answer = Answer::Refused("NotFound", "SANDBOX_NOT_FOUND");
const TAKEN: Answer = Answer::Refused("AlreadyExists", "SANDBOX_ID_ALREADY_EXISTS");
const EXEC_NOT_FOUND: Answer = Answer::Refused("NotFound", "EXEC_NOT_FOUND");
const EXEC_ENDED: Answer = Answer::Refused("FailedPrecondition", "EXEC_ALREADY_TERMINAL");
pub(crate) const EXEC_TAKEN: Answer = Answer::Refused("AlreadyExists", "EXEC_ID_ALREADY_EXISTS");

const RUNNING: u8 = 1;

// === impl State ===

impl State {
    /// What clients see.
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

    /// Whether nothing that was accepted is still to be done.
    pub(crate) fn is_settled(self) -> bool {
        !matches!(self, Self::Accepted | Self::Pending | Self::Stopping | Self::Deleting)
    }
}

// === impl Sandbox ===

impl Sandbox {
    /// What has to be answered now. An exec whose id another sandbox has is not known here.
    pub(crate) fn answer(&self, request: &Request) -> Answer {
        use State::{Absent, Deleted, Deleting, Ready, Recoverable, Stopped, Stopping};
        match (request, self.state) {
            (Request::Create, Absent) => Answer::Told(1),
            (Request::Create, _) => TAKEN,
            (Request::Cancel(exec), _) => match self.execs.get(exec) {
                None => EXEC_NOT_FOUND,
                Some(&RUNNING) => Answer::Silent,
                Some(_) => EXEC_ENDED,
            },
            (_, Absent) => NOT_FOUND,
            (Request::Stop, Ready) => Answer::Told(5),
            (Request::Stop, Stopping) => Answer::Silent,
            (Request::Resume, Stopped | Recoverable) => Answer::Told(1),
            (Request::Stop | Request::Resume, _) => INVALID_STATE,
            (Request::Delete, Deleting | Deleted) => Answer::Silent,
            (Request::Delete, _) => Answer::Told(7),
            (Request::Exec(exec), Ready) if self.execs.contains_key(exec) => EXEC_TAKEN,
            (Request::Exec(_), Ready) => Answer::Told(9),
            (Request::Exec(_), _) => NOT_READY,
        }
    }

    /// Lets something happen, if it may.
    pub(crate) fn happen(&mut self, event: &Event) -> Result<(), String> {
        use State::{Absent, Accepted, Deleted, Deleting, Failed, Pending, Ready, Recoverable, Stopped, Stopping};
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
            return Err(format!("{event:?} does not say whether it was asked for"));
        }
        self.was_ready |= next == Ready;
        if matches!(event.kind, 5 | 7) {
            self.reason.clone_from(&event.reason);
        }
        self.state = next;
        Ok(())
    }

    /// Whether it stopped although nobody asked for that.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.reason.as_str(), "supervisor_lost" | "host_restarted")
    }

    /// Execs that have not ended.
    pub(crate) fn running(&self) -> impl Iterator<Item = &String> {
        self.execs.iter().filter(|(_, state)| **state == RUNNING).map(|(exec, _)| exec)
    }
}
