//! Pending requests of the agent.

use super::SessionActor;
use crate::{
    agent::UserAnswer,
    schema::{EventData, PermissionOutcome, PermissionReply, PermissionResolved, QuestionOutcome, QuestionResolved},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum PendingRequestKind {
    Permission,
    Question,
}

impl SessionActor {
    /// Withdraws a request.
    pub(super) fn withdraw(&mut self, id: &str) {
        if let Some(kind) = self.pending_requests.remove(id) {
            self.log_writer.push(withdrawn(id, kind), None);
        }
    }

    /// Withdraws all requests.
    pub(super) fn withdraw_all(&mut self) {
        for (id, kind) in self.pending_requests.drain() {
            self.log_writer.push(withdrawn(&id, kind), None);
        }
    }

    /// Publishes whether the turn waits for an answer.
    pub(super) fn publish_waiting(&mut self) {
        let waiting = !self.pending_requests.is_empty();
        if let Some(state) = self.turn.as_ref().and_then(|turn| turn.state.as_ref()) {
            state.send_if_modified(|state| std::mem::replace(&mut state.waiting, waiting) != waiting);
        }
    }
}

/// The event of an answered request.
pub(super) fn resolved(id: &str, answer: &UserAnswer) -> EventData {
    let id = id.to_owned();
    match answer {
        UserAnswer::Permission(reply, _) => {
            let outcome = match reply {
                PermissionReply::Once => PermissionOutcome::Once,
                PermissionReply::Always => PermissionOutcome::Always,
                PermissionReply::Reject => PermissionOutcome::Reject,
            };
            EventData::PermissionResolved(PermissionResolved { id, outcome })
        }
        UserAnswer::Question(answers) => {
            let answers = Some(answers.clone());
            EventData::QuestionResolved(QuestionResolved { id, outcome: QuestionOutcome::Answered, answers })
        }
        UserAnswer::QuestionRejected => {
            EventData::QuestionResolved(QuestionResolved { id, outcome: QuestionOutcome::Rejected, answers: None })
        }
    }
}

/// The event of a withdrawn request.
pub(super) fn withdrawn(id: &str, kind: PendingRequestKind) -> EventData {
    let id = id.to_owned();
    match kind {
        PendingRequestKind::Permission => {
            EventData::PermissionResolved(PermissionResolved { id, outcome: PermissionOutcome::Withdrawn })
        }
        PendingRequestKind::Question => {
            EventData::QuestionResolved(QuestionResolved { id, outcome: QuestionOutcome::Withdrawn, answers: None })
        }
    }
}
