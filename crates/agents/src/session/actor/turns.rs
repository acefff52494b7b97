//! Turns: the agent works on one prompt after the other.

use tokio::time::Instant;

use super::Actor;
use crate::{
    agent::{AgentError, Raw},
    schema::{EventData, Message, ParsedMessage, Part, TurnEnded, TurnOutcome, TurnStarted, Usage},
    session::{
        FAREWELL,
        turn::{Queued, Turn},
    },
};

impl Actor {
    /// Gives the next prompt to the agent.
    pub(super) async fn next_turn(&mut self) {
        let Some(queued) = self.queue.pop_front() else { return };
        self.queue_changed = true;
        let prompt = queued.prompt.clone();
        self.begin_turn(Some(queued));
        if !self.changed() {
            // A prompt whose beginning is not written down would run again after a restart.
            let full = AgentError::Unsupported("the disk does not take what has to be kept of this session".into());
            return self.fail_turn("storage", &full);
        }
        let Some(conversation) = self.talk.open() else { return };
        if let Err(error) = conversation.prompt(&prompt).await {
            // Whoever does not take a prompt takes none: the next one starts the agent again.
            self.hang_up(FAREWELL).await;
            self.fail_turn("prompt", &error);
        }
    }

    /// A turn begins, with a prompt or of the agent's own accord.
    pub(super) fn begin_turn(&mut self, queued: Option<Queued>) {
        let before = self.write();
        self.record.turns += 1;
        let id = turn_id(self.record.turns);
        let message_id = queued.as_ref().filter(|queued| queued.named).map(|queued| queued.prompt.id.clone());
        let started = TurnStarted { turn_id: id.clone(), message_id: message_id.clone() };
        self.scribe.note(EventData::TurnStarted(started), None);
        let state = queued.map(|queued| {
            let message = ParsedMessage {
                role: "user".into(),
                id: message_id,
                parts: vec![Part::text(queued.prompt.text)],
                ..ParsedMessage::default()
            };
            self.scribe.note(EventData::Message(Message::Parsed(message)), None);
            queued.state.send_modify(|state| state.begun = Some(before));
            queued.state
        });
        self.turn = Some(Turn { id, state, interrupted: None });
        self.write();
    }

    /// The turn could not be.
    pub(super) fn fail_turn(&mut self, kind: &str, error: &AgentError) {
        let message = error.to_string();
        self.scribe.note(EventData::error(kind, message.clone(), None), None);
        self.end_turn(TurnOutcome::Failed, Some(message), None, None);
        self.changed();
    }

    /// The turn is over. What is still asked then is asked by what runs in the background, or withdrawn by the agent.
    pub(super) fn end_turn(
        &mut self,
        outcome: TurnOutcome,
        message: Option<String>,
        usage: Option<Usage>,
        raw: Option<Raw>,
    ) {
        let Some(turn) = self.turn.take() else { return };
        self.scribe.note(EventData::TurnEnded(TurnEnded { turn_id: turn.id, outcome, message, usage }), raw);
        let end = self.write();
        if let Some(state) = turn.state {
            state.send_modify(|state| (state.ended, state.waiting) = (Some(end), false));
        }
        self.idle_since = Instant::now();
    }

    /// Prompts that wait will have no turn.
    pub(super) fn forget_queue(&mut self) {
        let place = self.session.log.last();
        for queued in self.queue.drain(..) {
            self.queue_changed = true;
            self.prompts.remove(&queued.prompt.id);
            queued.state.send_modify(|state| state.ended = Some(place));
        }
    }
}

/// The name of a turn.
pub(super) fn turn_id(number: u64) -> String {
    format!("turn-{number}")
}
