//! What the actor is told to do.

use tokio::{sync::oneshot, time::Instant};

use super::{
    Actor, Manner,
    asks::{Asked, resolved},
};
use crate::{
    agent::{Answer, Prompt},
    schema::{EventData, SessionEnded, TurnOutcome},
    session::{
        Change, FAREWELL, SessionError, Ticket,
        order::Order,
        recall::{self, Digest},
        talk::Talk,
        turn::{Queued, TurnState},
    },
};

impl Actor {
    pub(super) async fn order(&mut self, order: Order) {
        // Whoever sent it may be gone; it is done all the same.
        match order {
            Order::Prompt { prompt, named, reply } => {
                let taken = self.take(prompt, named);
                self.reply(reply, taken);
            }
            Order::Abort { reply } => {
                let aborted = self.abort().await;
                self.reply(reply, aborted);
            }
            Order::Answer { id, answer, reply } => {
                let answered = self.answer(&id, answer).await;
                self.reply(reply, answered);
            }
            Order::Change { change, reply } => {
                let changed = self.change(change).await;
                self.reply(reply, changed);
            }
            Order::Terminate { reply } => {
                self.terminate().await;
                self.reply(reply, ());
            }
            Order::Resume { reply } => self.resume(reply).await,
            Order::Close { .. } => {}
        }
        self.idle_since = Instant::now();
    }

    /// Answers who ordered something, when what it changed is written down.
    fn reply<T>(&mut self, reply: oneshot::Sender<T>, answer: T) {
        self.changed();
        let _nobody_waits = reply.send(answer);
    }

    fn take(&mut self, prompt: Prompt, named: bool) -> Result<Ticket, SessionError> {
        let digest = Digest::of(&prompt.text);
        if named {
            self.read_prompts();
            if let Some((same, ticket)) = self.prompts.get(&prompt.id) {
                return if *same == digest { Ok(ticket.clone()) } else { Err(SessionError::Conflict(prompt.id)) };
            }
        }
        let waiting: usize = self.queue.iter().map(|queued| queued.prompt.text.len()).sum();
        match &self.record.end {
            Some(end) if end.reason == "terminated" => return Err(SessionError::Terminated),
            Some(end) => return Err(SessionError::Ended(end.clone())),
            None if self.queue.len() >= self.rules.queue || waiting + prompt.text.len() > self.rules.queue_bytes => {
                return Err(SessionError::QueueFull(self.queue.len()));
            }
            None => {}
        }
        let queued = Queued::new(prompt, named);
        let ticket = queued.state.subscribe();
        if named {
            self.prompts.insert(queued.prompt.id.clone(), (digest, ticket.clone()));
        }
        self.queue.push_back(queued);
        self.queue_changed = true;
        Ok(ticket)
    }

    /// Learns the prompts that an earlier server took, so that none of them runs twice.
    fn read_prompts(&mut self) {
        if !std::mem::take(&mut self.unread) {
            return;
        }
        let place = Some(self.session.log.last());
        let done = tokio::sync::watch::Sender::new(TurnState { begun: place, ended: place, waiting: false });
        for (id, digest) in recall::prompts(&self.session.log) {
            self.prompts.insert(id, (digest, done.subscribe()));
        }
        for queued in &self.queue {
            let digest = Digest::of(&queued.prompt.text);
            self.prompts.insert(queued.prompt.id.clone(), (digest, queued.state.subscribe()));
        }
    }

    async fn abort(&mut self) -> Result<(), SessionError> {
        self.forget_queue();
        let (Some(turn), Some(conversation)) = (&mut self.turn, self.talk.open()) else { return Ok(()) };
        turn.interrupted.get_or_insert_with(Instant::now);
        Ok(conversation.interrupt().await?)
    }

    async fn answer(&mut self, id: &str, answer: Answer) -> Result<(), SessionError> {
        let wanted = match answer {
            Answer::Permission(..) => Asked::Permission,
            Answer::Question(_) | Answer::QuestionRejected => Asked::Question,
        };
        let conversation = self.talk.open().filter(|_| self.asked.get(id) == Some(&wanted));
        let Some(conversation) = conversation else {
            return Err(match wanted {
                Asked::Permission => SessionError::UnknownPermission(id.to_owned()),
                Asked::Question => SessionError::UnknownQuestion(id.to_owned()),
            });
        };
        self.asked.remove(id);
        let resolved = resolved(id, &answer);
        let sent = conversation.answer(id, answer).await;
        self.scribe.note(resolved, None);
        if let Err(error) = &sent {
            self.scribe.note(EventData::error("answer", error.to_string(), None), None);
        }
        self.write();
        self.tell_waiting();
        Ok(sent?)
    }

    async fn change(&mut self, change: Change) -> Result<(), SessionError> {
        let before = Manner::of(&self.record);
        let agent_mode = change.agent_mode.unwrap_or(before.agent_mode);
        let permission_mode = change.permission_mode.unwrap_or(before.permission_mode);
        let model = change.model.or(before.model.clone());
        let variant = change.variant.or(before.variant.clone());
        self.record.title = change.title.or(self.record.title.take());
        // What the agent took stays, even if it does not take the rest.
        if (agent_mode, permission_mode) != (before.agent_mode, before.permission_mode) {
            if let Some(conversation) = self.talk.open() {
                conversation.set_permission_mode(agent_mode, permission_mode).await?;
            }
            (self.record.agent_mode, self.record.permission_mode) = (agent_mode, permission_mode);
        }
        if (&model, &variant) != (&before.model, &before.variant) {
            if let Some(conversation) = self.talk.open() {
                conversation.set_model(model.as_deref(), variant.as_deref()).await?;
            }
            (self.record.model, self.record.variant) = (model, variant);
        }
        Ok(())
    }

    async fn terminate(&mut self) {
        self.ended_before = None;
        if self.record.end.as_ref().is_none_or(|end| end.reason != "terminated") {
            self.hang_up(FAREWELL).await;
            self.end(SessionEnded { reason: "terminated".into(), ..SessionEnded::default() }, TurnOutcome::Interrupted);
        }
        self.answer_resuming(|| Err(SessionError::Terminated));
    }

    async fn resume(&mut self, reply: oneshot::Sender<Result<(), SessionError>>) {
        if self.scribe.bytes() > self.rules.log_bytes {
            return self.reply(reply, Err(SessionError::LogFull));
        }
        match self.record.end.take() {
            None if matches!(self.talk, Talk::Opening(_)) => self.resuming.push(reply),
            None => self.reply(reply, Ok(())),
            before => {
                self.ended_before = before;
                self.resuming.push(reply);
                self.open().await;
                self.changed();
            }
        }
    }
}
