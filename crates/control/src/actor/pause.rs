//! The pause of a sandbox: recorded in its log, and a reason to refuse execs.

use carrel_store::{EventDetails, EventType, Timestamp};

use super::Actor;
use super::edit::SandboxEdit;
use crate::codes::reason;
use crate::provider::PauseCause;
use crate::refusal::{Code, Refusal};

/// How many of the newest events are searched for the last pause. A paused sandbox emits few events.
const MAX_RECENT_EVENTS: u64 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PauseState {
    /// Unknown until it is read from the log, which an earlier daemon wrote.
    Recorded,
    Unpaused,
    Paused(PauseCauseRecord),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PauseCauseRecord {
    /// From [`PauseCause::as_str`].
    cause: String,
    message: String,
}

// === impl PauseCauseRecord ===

impl PauseCauseRecord {
    pub(super) fn new(cause: PauseCause, message: String) -> Self {
        Self { cause: cause.as_str().to_owned(), message }
    }

    /// The cause, for people.
    fn describe(&self) -> &str {
        match self.message.as_str() {
            "" if self.cause == PauseCause::User.as_str() => "by user",
            "" => &self.cause,
            message => message,
        }
    }
}

// === impl Actor ===

impl Actor {
    /// Records a pause or its end. It is emitted once, and only while the sandbox is ready.
    pub(super) fn pause_changed(
        &mut self,
        edit: &mut SandboxEdit,
        at: Timestamp,
        pause: Option<PauseCauseRecord>,
        is_ready: bool,
    ) {
        // Facts that precede the exit of a command may be replayed after a restart of the daemon.
        let is_logged = self.pause_logged_until.is_some_and(|until| at <= until);
        if is_ready && !is_logged {
            let (kind, pause) = match &pause {
                Some(pause) => (EventType::SandboxPaused, pause.clone()),
                None => (EventType::SandboxUnpaused, PauseCauseRecord { cause: String::new(), message: String::new() }),
            };
            let (reason, error_message) = (pause.cause, pause.message);
            let details =
                EventDetails::Phase { phase: String::new(), error_code: String::new(), error_message, reason };
            edit.emit(kind, at, details);
        }
        self.pause = pause.map_or(PauseState::Unpaused, PauseState::Paused);
    }

    /// Reads the pause from the log, once after a restart of the daemon.
    pub(super) async fn restore_pause(&mut self) {
        if self.pause != PauseState::Recorded {
            return;
        }
        self.pause = PauseState::Unpaused;
        let newest = self.sandbox.last_sequence;
        let Ok(mut events) = self.shared.store.events(&self.sandbox.id, newest.saturating_sub(MAX_RECENT_EVENTS))
        else {
            return;
        };
        while let Ok(Some(some)) = events.next().await {
            for event in &some {
                match (event.kind, &event.details) {
                    (EventType::SandboxPaused, EventDetails::Phase { reason, error_message, .. }) => {
                        let pause = PauseCauseRecord { cause: reason.clone(), message: error_message.clone() };
                        (self.pause, self.pause_logged_until) = (PauseState::Paused(pause), Some(event.at));
                    }
                    (EventType::SandboxUnpaused, _) => {
                        (self.pause, self.pause_logged_until) = (PauseState::Unpaused, Some(event.at));
                    }
                    (EventType::SandboxAccepted, _) => {
                        (self.pause, self.pause_logged_until) = (PauseState::Unpaused, None);
                    }
                    _ => {}
                }
            }
            if some.last().is_none_or(|event| event.sequence >= newest) {
                break;
            }
        }
        // Only the exit of a command makes facts be replayed.
        if self.spec.command.is_empty() {
            self.pause_logged_until = None;
        }
    }

    /// Refuses a request that would block until the sandbox is resumed.
    pub(super) async fn check_not_paused(&mut self) -> Result<(), Refusal> {
        self.restore_pause().await;
        let PauseState::Paused(pause) = &self.pause else { return Ok(()) };
        let (id, is_user) = (self.sandbox.id.local(), pause.cause == PauseCause::User.as_str());
        let space = self.shared.provider.disk_space().filter(|_| !is_user);
        let why = match &space {
            Some(space) => format!("host disk low: {}", space.pause_summary),
            None => pause.describe().to_owned(),
        };
        let hint = if is_user { "" } else { "free space on the host, or " };
        let message = format!("sandbox {id} is paused ({why}); {hint}run `carrel resume {id}`");
        let refusal = Refusal::new(Code::FailedPrecondition, reason::SANDBOX_PAUSED, message)
            .about("sandbox_id", self.sandbox.id.as_str())
            .about("paused_by", pause.cause.clone());
        Err(match space {
            Some(space) => refusal.about("free", space.free.to_string()).about("reserve", space.reserve.to_string()),
            None => refusal,
        })
    }
}
