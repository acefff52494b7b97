//! Whether a sandbox is paused: told in its log, and a reason to run nothing in it.

use carrel_store::{Details, EventType, Timestamp};

use super::Actor;
use super::edit::Edit;
use crate::provider::PauseCause;
use crate::refusal::{Code, Refusal};
use crate::words::reason;

/// How many events are looked through for the last pause: one that is paused has few events afterwards.
const RECALLED: u64 = 64;

/// Whether a sandbox is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PauseState {
    /// The log of the sandbox says so: an earlier daemon wrote it.
    Recorded,
    /// It is not.
    Unpaused,
    /// It is.
    Paused(Pause),
}

/// Why a sandbox is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// As [`PauseCause::as_str`] has it.
    cause: String,
    message: String,
}

// === impl Pause ===

impl Pause {
    pub(super) fn new(cause: PauseCause, message: String) -> Self {
        Self { cause: cause.as_str().to_owned(), message }
    }

    /// For people.
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
    /// It was paused or continues; that is told while it is ready, and once.
    pub(super) fn pause_changed(&mut self, edit: &mut Edit, at: Timestamp, pause: Option<Pause>, is_ready: bool) {
        // Facts from before the end of a command may be heard again after a restart of the daemon.
        let is_told = self.pause_told_until.is_some_and(|until| at <= until);
        if is_ready && !is_told {
            let (kind, pause) = match &pause {
                Some(pause) => (EventType::SandboxPaused, pause.clone()),
                None => (EventType::SandboxUnpaused, Pause { cause: String::new(), message: String::new() }),
            };
            let (reason, error_message) = (pause.cause, pause.message);
            let details = Details::Phase { phase: String::new(), error_code: String::new(), error_message, reason };
            edit.tell(kind, at, details);
        }
        self.pause = pause.map_or(PauseState::Unpaused, PauseState::Paused);
    }

    /// Reads whether it is paused from its log, once after a restart of the daemon.
    pub(super) async fn recall_pause(&mut self) {
        if self.pause != PauseState::Recorded {
            return;
        }
        self.pause = PauseState::Unpaused;
        let newest = self.sandbox.last_sequence;
        let Ok(mut events) = self.shared.store.events(&self.sandbox.id, newest.saturating_sub(RECALLED)) else {
            return;
        };
        while let Ok(Some(some)) = events.next().await {
            for event in &some {
                match (event.kind, &event.details) {
                    (EventType::SandboxPaused, Details::Phase { reason, error_message, .. }) => {
                        let pause = Pause { cause: reason.clone(), message: error_message.clone() };
                        (self.pause, self.pause_told_until) = (PauseState::Paused(pause), Some(event.at));
                    }
                    (EventType::SandboxUnpaused, _) => {
                        (self.pause, self.pause_told_until) = (PauseState::Unpaused, Some(event.at));
                    }
                    (EventType::SandboxAccepted, _) => {
                        (self.pause, self.pause_told_until) = (PauseState::Unpaused, None);
                    }
                    _ => {}
                }
            }
            if some.last().is_none_or(|event| event.sequence >= newest) {
                break;
            }
        }
        // Only the end of a command is heard again.
        if self.spec.command.is_empty() {
            self.pause_told_until = None;
        }
    }

    /// Refuses what would wait until the sandbox continues.
    pub(super) async fn check_not_paused(&mut self) -> Result<(), Refusal> {
        self.recall_pause().await;
        let PauseState::Paused(pause) = &self.pause else { return Ok(()) };
        let (id, is_user) = (self.sandbox.id.local(), pause.cause == PauseCause::User.as_str());
        let space = self.shared.provider.disk_space().filter(|_| !is_user);
        let why = match &space {
            Some(space) => format!("host disk low: {}", space.pause_summary),
            None => pause.describe().to_owned(),
        };
        let remedy = if is_user { "" } else { "free space on the host, or " };
        let words = format!("the sandbox {id} is paused ({why}): {remedy}run `carrel resume {id}`");
        let refusal = Refusal::new(Code::FailedPrecondition, reason::SANDBOX_PAUSED, words)
            .about("sandbox_id", self.sandbox.id.as_str())
            .about("paused_by", pause.cause.clone());
        Err(match space {
            Some(space) => refusal.about("free", space.free.to_string()).about("reserve", space.reserve.to_string()),
            None => refusal,
        })
    }
}
