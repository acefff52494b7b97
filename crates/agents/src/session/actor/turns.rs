//! Turns: the agent handles one prompt after the other.

use tokio::time::Instant;

use super::SessionActor;
use crate::{
    agent::{AgentError, RawMessage},
    schema::{
        EventData, MessagePart, ParsedMessage, TokenUsage, TurnEnded, TurnOutcome, TurnStarted, UniversalMessage,
    },
    session::{
        CLOSE_GRACE,
        turn::{ActiveTurn, QueuedPrompt},
    },
};

impl SessionActor {
    /// Sends the next prompt to the agent.
    pub(super) async fn next_turn(&mut self) {
        let Some(queued) = self.queue.pop_front() else { return };
        self.queue_dirty = true;
        let prompt = queued.prompt.clone();
        self.begin_turn(Some(queued));
        if !self.save_and_publish() {
            // If the start is not saved, the prompt would run again after a restart.
            let full = AgentError::Unsupported("the disk does not take what has to be kept of this session".into());
            return self.fail_turn("storage", &full);
        }
        let Some(conversation) = self.conversation.open() else { return };
        if let Err(error) = conversation.prompt(&prompt).await {
            // The agent is restarted for the next prompt.
            self.close_conversation(CLOSE_GRACE).await;
            self.fail_turn("prompt", &error);
        }
    }

    /// Starts a turn, with a prompt or by the agent itself.
    pub(super) fn begin_turn(&mut self, queued: Option<QueuedPrompt>) {
        let before = self.flush();
        self.record.turns += 1;
        let id = turn_id(self.record.turns);
        let message_id = queued.as_ref().filter(|queued| queued.has_client_id).map(|queued| queued.prompt.id.clone());
        let started = TurnStarted { turn_id: id.clone(), message_id: message_id.clone() };
        self.log_writer.push(EventData::TurnStarted(started), None);
        let state = queued.map(|queued| {
            let message = ParsedMessage {
                role: "user".into(),
                id: message_id,
                parts: vec![MessagePart::text(queued.prompt.text)],
                ..ParsedMessage::default()
            };
            self.log_writer.push(EventData::Message(UniversalMessage::Parsed(message)), None);
            queued.state.send_modify(|state| state.started = Some(before));
            queued.state
        });
        self.turn = Some(ActiveTurn { id, state, interrupted: None });
        self.flush();
    }

    pub(super) fn fail_turn(&mut self, kind: &str, error: &AgentError) {
        let message = error.to_string();
        self.log_writer.push(EventData::error(kind, message.clone(), None), None);
        self.end_turn(TurnOutcome::Failed, Some(message), None, None);
        self.save_and_publish();
    }

    /// Ends the turn. Requests that are still pending belong to background tasks, or are withdrawn by the agent.
    pub(super) fn end_turn(
        &mut self,
        outcome: TurnOutcome,
        message: Option<String>,
        usage: Option<TokenUsage>,
        raw: Option<RawMessage>,
    ) {
        let Some(turn) = self.turn.take() else { return };
        self.log_writer.push(EventData::TurnEnded(TurnEnded { turn_id: turn.id, outcome, message, usage }), raw);
        let end = self.flush();
        if let Some(state) = turn.state {
            state.send_modify(|state| (state.ended, state.waiting) = (Some(end), false));
        }
        self.idle_since = Instant::now();
    }

    /// Drops queued prompts.
    pub(super) fn drop_queue(&mut self) {
        let position = self.session.log.last();
        for queued in self.queue.drain(..) {
            self.queue_dirty = true;
            self.prompts.remove(&queued.prompt.id);
            queued.state.send_modify(|state| state.ended = Some(position));
        }
    }
}

pub(super) fn turn_id(number: u64) -> String {
    format!("turn-{number}")
}
