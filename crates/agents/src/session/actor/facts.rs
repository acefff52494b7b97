//! What the agent says.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Actor, asks::Asked};
use crate::{
    agent::{Fact, Gone},
    child::ChildExit,
    schema::{EventData, Message, SessionEnded, TurnOutcome},
    session::{FAREWELL, talk::Talk},
};

impl Actor {
    pub(super) async fn facts(&mut self, facts: &mut Vec<Fact>) {
        // Whoever says something is not idle, even if it is in no turn.
        self.idle_since = Instant::now();
        let mut gone = None;
        for fact in facts.drain(..) {
            match fact {
                Fact::Event(data, raw) => {
                    self.record.begun |= self.turn.is_some() && knows_the_conversation(&data);
                    self.scribe.note(data, raw);
                }
                Fact::Modes(agent, permission) => {
                    (self.record.agent_mode, self.record.permission_mode) = (agent, permission);
                }
                Fact::NativeId(id) => self.native_id(id),
                Fact::TurnStarted if self.turn.is_none() => self.begin_turn(None),
                Fact::TurnStarted => {}
                Fact::TurnEnded { outcome, message, usage, raw } => self.end_turn(outcome, message, usage, raw),
                Fact::PermissionAsked(mut request, raw) => {
                    request.session_id.clone_from(&self.session.id);
                    self.asked.insert(request.id.clone(), Asked::Permission);
                    self.scribe.note(EventData::PermissionAsked(request), raw);
                }
                Fact::QuestionAsked(mut request, raw) => {
                    request.session_id.clone_from(&self.session.id);
                    self.asked.insert(request.id.clone(), Asked::Question);
                    self.scribe.note(EventData::QuestionAsked(request), raw);
                }
                Fact::Withdrawn(id) => self.withdraw(&id),
                Fact::Gone(how) => gone = Some(how),
            }
        }
        self.write();
        self.tell_waiting();
        if let Some(how) = gone {
            self.gone(how).await;
        }
        if self.scribe.bytes() > self.rules.log_bytes && self.record.end.is_none() {
            self.hang_up(FAREWELL).await;
            let message = format!("the session's log is full: more than {} bytes", self.rules.log_bytes);
            self.scribe.note(EventData::error("log_full", message.clone(), None), None);
            let end = SessionEnded { reason: "failed".into(), message: Some(message), ..SessionEnded::default() };
            self.end(end, TurnOutcome::Failed);
        }
        self.changed();
    }

    fn native_id(&mut self, id: String) {
        if self.record.native_id.as_ref() != Some(&id) {
            self.write();
            self.record.native_id = Some(id);
        }
    }

    async fn gone(&mut self, how: Gone) {
        // Whoever is gone has said all there was to say; what it left running ends all the same.
        if let Talk::Open(conversation) = std::mem::take(&mut self.talk) {
            conversation.close(FAREWELL, &mut Vec::new()).await;
        }
        self.hung_up(Vec::new());
        match how {
            Gone::ServerExited(exit) => {
                let message = format!("the agent's server {exit}");
                self.scribe.note(EventData::error("server_exit", message.clone(), Some(details(&exit))), None);
                self.end_turn(TurnOutcome::Failed, Some(message), None, None);
            }
            Gone::Finished => {
                let end = SessionEnded { reason: "exited".into(), exit_code: Some(0), ..SessionEnded::default() };
                self.end(end, TurnOutcome::Completed);
            }
            Gone::Exited(exit) if exit.code == Some(0) => {
                if self.turn.is_some() {
                    let message = "the agent exited with code 0 before its turn was over";
                    self.scribe.note(EventData::error("process_exit", message, Some(details(&exit))), None);
                    self.end_turn(TurnOutcome::Failed, Some(message.into()), None, None);
                }
            }
            Gone::Exited(exit) => {
                let message = format!("the agent {exit}");
                self.scribe.note(EventData::error("process_exit", message.clone(), Some(details(&exit))), None);
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
        self.write();
    }
}

/// Whether an agent that says this has the conversation among those that it can take up again. Errors do not show that.
fn knows_the_conversation(data: &EventData) -> bool {
    match data {
        EventData::Started(_) => true,
        EventData::Message(Message::Parsed(message)) => message.role != "user",
        _ => false,
    }
}

fn details(exit: &ChildExit) -> Value {
    json!({"exitCode": exit.code, "signal": exit.signal, "stderr": exit.stderr})
}
