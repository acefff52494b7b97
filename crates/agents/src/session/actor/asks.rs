//! What the agent asks and waits for.

use super::Actor;
use crate::{
    agent::Answer,
    schema::{EventData, PermissionOutcome, PermissionReply, PermissionResolved, QuestionOutcome, QuestionResolved},
};

/// What the agent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum Asked {
    Permission,
    Question,
}

impl Actor {
    /// The agent no longer wants to know.
    pub(super) fn withdraw(&mut self, id: &str) {
        if let Some(asked) = self.asked.remove(id) {
            self.scribe.note(withdrawn(id, asked), None);
        }
    }

    /// Nobody is there any more who wants to know anything.
    pub(super) fn withdraw_all(&mut self) {
        for (id, asked) in self.asked.drain() {
            self.scribe.note(withdrawn(&id, asked), None);
        }
    }

    /// Whoever follows the turn learns whether it waits for an answer.
    pub(super) fn tell_waiting(&mut self) {
        let waiting = !self.asked.is_empty();
        if let Some(state) = self.turn.as_ref().and_then(|turn| turn.state.as_ref()) {
            state.send_if_modified(|state| std::mem::replace(&mut state.waiting, waiting) != waiting);
        }
    }
}

/// That something was answered.
pub(super) fn resolved(id: &str, answer: &Answer) -> EventData {
    let id = id.to_owned();
    match answer {
        Answer::Permission(reply, _) => {
            let outcome = match reply {
                PermissionReply::Once => PermissionOutcome::Once,
                PermissionReply::Always => PermissionOutcome::Always,
                PermissionReply::Reject => PermissionOutcome::Reject,
            };
            EventData::PermissionResolved(PermissionResolved { id, outcome })
        }
        Answer::Question(answers) => {
            let answers = Some(answers.clone());
            EventData::QuestionResolved(QuestionResolved { id, outcome: QuestionOutcome::Answered, answers })
        }
        Answer::QuestionRejected => {
            EventData::QuestionResolved(QuestionResolved { id, outcome: QuestionOutcome::Rejected, answers: None })
        }
    }
}

/// That something is no longer asked.
pub(super) fn withdrawn(id: &str, asked: Asked) -> EventData {
    let id = id.to_owned();
    match asked {
        Asked::Permission => {
            EventData::PermissionResolved(PermissionResolved { id, outcome: PermissionOutcome::Withdrawn })
        }
        Asked::Question => {
            EventData::QuestionResolved(QuestionResolved { id, outcome: QuestionOutcome::Withdrawn, answers: None })
        }
    }
}
