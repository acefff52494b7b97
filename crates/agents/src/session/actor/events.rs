//! Handles events of the agent.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SessionActor, requests::PendingRequestKind};
use crate::{
    agent::{AgentEvent, AgentExit},
    child::ChildExit,
    schema::{EventData, SessionEnded, TurnOutcome, UniversalMessage},
    session::{CLOSE_GRACE, conversation::ConversationState},
};

impl SessionActor {
    pub(super) async fn handle_events(&mut self, events: &mut Vec<AgentEvent>) {
        // An agent that emits events is not idle, even without a turn.
        self.idle_since = Instant::now();
        let mut exit = None;
        for event in events.drain(..) {
            match event {
                AgentEvent::Event(data, raw) => {
                    self.record.begun |= self.turn.is_some() && shows_resumable(&data);
                    self.log_writer.push(data, raw);
                }
                AgentEvent::Modes(agent, permission) => {
                    (self.record.agent_mode, self.record.permission_mode) = (agent, permission);
                }
                AgentEvent::NativeId(id) => self.native_id(id),
                AgentEvent::TurnStarted if self.turn.is_none() => self.begin_turn(None),
                AgentEvent::TurnStarted => {}
                AgentEvent::TurnEnded { outcome, message, usage, raw } => self.end_turn(outcome, message, usage, raw),
                AgentEvent::PermissionAsked(mut request, raw) => {
                    request.session_id.clone_from(&self.session.id);
                    self.pending_requests.insert(request.id.clone(), PendingRequestKind::Permission);
                    self.log_writer.push(EventData::PermissionAsked(request), raw);
                }
                AgentEvent::QuestionAsked(mut request, raw) => {
                    request.session_id.clone_from(&self.session.id);
                    self.pending_requests.insert(request.id.clone(), PendingRequestKind::Question);
                    self.log_writer.push(EventData::QuestionAsked(request), raw);
                }
                AgentEvent::Withdrawn(id) => self.withdraw(&id),
                AgentEvent::Exited(how) => exit = Some(how),
            }
        }
        self.flush();
        self.publish_waiting();
        if let Some(how) = exit {
            self.agent_exited(how).await;
        }
        if self.log_writer.bytes() > self.limits.max_log_bytes && self.record.end.is_none() {
            self.close_conversation(CLOSE_GRACE).await;
            let message = format!("the session's log is full: more than {} bytes", self.limits.max_log_bytes);
            self.log_writer.push(EventData::error("log_full", message.clone(), None), None);
            let end = SessionEnded { reason: "failed".into(), message: Some(message), ..SessionEnded::default() };
            self.end(end, TurnOutcome::Failed);
        }
        self.save_and_publish();
    }

    fn native_id(&mut self, id: String) {
        if self.record.native_id.as_ref() != Some(&id) {
            self.flush();
            self.record.native_id = Some(id);
        }
    }

    async fn agent_exited(&mut self, how: AgentExit) {
        // There are no further events, but processes that it left running are terminated.
        if let ConversationState::Open(conversation) = std::mem::take(&mut self.conversation) {
            conversation.close(CLOSE_GRACE, &mut Vec::new()).await;
        }
        self.conversation_closed(Vec::new());
        match how {
            AgentExit::ServerExited(exit) => {
                let message = format!("the agent's server {exit}");
                self.log_writer.push(EventData::error("server_exit", message.clone(), Some(details(&exit))), None);
                self.end_turn(TurnOutcome::Failed, Some(message), None, None);
            }
            AgentExit::Finished => {
                let end = SessionEnded { reason: "exited".into(), exit_code: Some(0), ..SessionEnded::default() };
                self.end(end, TurnOutcome::Completed);
            }
            AgentExit::Exited(exit) if exit.code == Some(0) => {
                if self.turn.is_some() {
                    let message = "the agent exited with code 0 before its turn was over";
                    self.log_writer.push(EventData::error("process_exit", message, Some(details(&exit))), None);
                    self.end_turn(TurnOutcome::Failed, Some(message.into()), None, None);
                }
            }
            AgentExit::Exited(exit) => {
                let message = format!("the agent {exit}");
                self.log_writer.push(EventData::error("process_exit", message.clone(), Some(details(&exit))), None);
                let end = SessionEnded {
                    reason: "exited".into(),
                    message: Some(message),
                    exit_code: exit.code,
                    signal: exit.signal,
                    stderr: (!exit.stderr.is_empty()).then_some(exit.stderr),
                };
                self.end(end, TurnOutcome::Failed);
            }
        }
        self.flush();
    }
}

/// Whether this event shows that the agent can resume the conversation. Errors do not.
fn shows_resumable(data: &EventData) -> bool {
    match data {
        EventData::Started(_) => true,
        EventData::Message(UniversalMessage::Parsed(message)) => message.role != "user",
        _ => false,
    }
}

fn details(exit: &ChildExit) -> Value {
    json!({"exitCode": exit.code, "signal": exit.signal, "stderr": exit.stderr})
}
