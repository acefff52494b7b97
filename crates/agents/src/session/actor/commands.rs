//! Handles commands.

use tokio::{sync::oneshot, time::Instant};

use super::{
    AgentSettings, SessionActor,
    requests::{PendingRequestKind, resolved},
};
use crate::{
    agent::{Prompt, UserAnswer},
    schema::{EventData, SessionEnded, TurnOutcome},
    session::{
        CLOSE_GRACE, SessionError, SessionUpdate, TurnHandle,
        command::SessionCommand,
        conversation::ConversationState,
        replay::{self, PromptDigest},
        turn::{QueuedPrompt, TurnState},
    },
};

impl SessionActor {
    pub(super) async fn handle_command(&mut self, command: SessionCommand) {
        // A command is carried out even if its sender is gone.
        match command {
            SessionCommand::Prompt { prompt, has_client_id, reply } => {
                let taken = self.take(prompt, has_client_id);
                self.reply(reply, taken);
            }
            SessionCommand::Abort { reply } => {
                let aborted = self.abort().await;
                self.reply(reply, aborted);
            }
            SessionCommand::Answer { id, answer, reply } => {
                let answered = self.answer(&id, answer).await;
                self.reply(reply, answered);
            }
            SessionCommand::Update { update, reply } => {
                let save_and_publish = self.update(update).await;
                self.reply(reply, save_and_publish);
            }
            SessionCommand::Terminate { reply } => {
                self.terminate().await;
                self.reply(reply, ());
            }
            SessionCommand::Resume { reply } => self.resume(reply).await,
            SessionCommand::Close { .. } => {}
        }
        self.idle_since = Instant::now();
    }

    /// Replies after the change is saved.
    fn reply<T>(&mut self, reply: oneshot::Sender<T>, answer: T) {
        self.save_and_publish();
        let _receiver_gone = reply.send(answer);
    }

    fn take(&mut self, prompt: Prompt, has_client_id: bool) -> Result<TurnHandle, SessionError> {
        let digest = PromptDigest::of(&prompt.text);
        if has_client_id {
            self.read_prompts();
            if let Some((same, handle)) = self.prompts.get(&prompt.id) {
                return if *same == digest { Ok(handle.clone()) } else { Err(SessionError::Conflict(prompt.id)) };
            }
        }
        let waiting: usize = self.queue.iter().map(|queued| queued.prompt.text.len()).sum();
        match &self.record.end {
            Some(end) if end.reason == "terminated" => return Err(SessionError::Terminated),
            Some(end) => return Err(SessionError::Ended(end.clone())),
            None if self.queue.len() >= self.limits.max_queued
                || waiting + prompt.text.len() > self.limits.max_queued_bytes =>
            {
                return Err(SessionError::QueueFull(self.queue.len()));
            }
            None => {}
        }
        let queued = QueuedPrompt::new(prompt, has_client_id);
        let handle = queued.state.subscribe();
        if has_client_id {
            self.prompts.insert(queued.prompt.id.clone(), (digest, handle.clone()));
        }
        self.queue.push_back(queued);
        self.queue_dirty = true;
        Ok(handle)
    }

    /// Loads the prompts of an earlier server, so that none of them runs twice.
    fn read_prompts(&mut self) {
        if !std::mem::take(&mut self.prompts_unread) {
            return;
        }
        let position = Some(self.session.log.last());
        let done = tokio::sync::watch::Sender::new(TurnState { started: position, ended: position, waiting: false });
        for (id, digest) in replay::prompts(&self.session.log) {
            self.prompts.insert(id, (digest, done.subscribe()));
        }
        for queued in &self.queue {
            let digest = PromptDigest::of(&queued.prompt.text);
            self.prompts.insert(queued.prompt.id.clone(), (digest, queued.state.subscribe()));
        }
    }

    async fn abort(&mut self) -> Result<(), SessionError> {
        self.drop_queue();
        let (Some(turn), Some(conversation)) = (&mut self.turn, self.conversation.open()) else { return Ok(()) };
        turn.interrupted.get_or_insert_with(Instant::now);
        Ok(conversation.interrupt().await?)
    }

    async fn answer(&mut self, id: &str, answer: UserAnswer) -> Result<(), SessionError> {
        let kind = match answer {
            UserAnswer::Permission(..) => PendingRequestKind::Permission,
            UserAnswer::Question(_) | UserAnswer::QuestionRejected => PendingRequestKind::Question,
        };
        let conversation = self.conversation.open().filter(|_| self.pending_requests.get(id) == Some(&kind));
        let Some(conversation) = conversation else {
            return Err(match kind {
                PendingRequestKind::Permission => SessionError::UnknownPermission(id.to_owned()),
                PendingRequestKind::Question => SessionError::UnknownQuestion(id.to_owned()),
            });
        };
        self.pending_requests.remove(id);
        let resolved = resolved(id, &answer);
        let sent = conversation.answer(id, answer).await;
        self.log_writer.push(resolved, None);
        if let Err(error) = &sent {
            self.log_writer.push(EventData::error("answer", error.to_string(), None), None);
        }
        self.flush();
        self.publish_waiting();
        Ok(sent?)
    }

    async fn update(&mut self, update: SessionUpdate) -> Result<(), SessionError> {
        let before = AgentSettings::of(&self.record);
        let agent_mode = update.agent_mode.unwrap_or(before.agent_mode);
        let permission_mode = update.permission_mode.unwrap_or(before.permission_mode);
        let model = update.model.or(before.model.clone());
        let variant = update.variant.or(before.variant.clone());
        self.record.title = update.title.or(self.record.title.take());
        // What the agent accepted is kept even if it rejects the rest.
        if (agent_mode, permission_mode) != (before.agent_mode, before.permission_mode) {
            if let Some(conversation) = self.conversation.open() {
                conversation.set_permission_mode(agent_mode, permission_mode).await?;
            }
            (self.record.agent_mode, self.record.permission_mode) = (agent_mode, permission_mode);
        }
        if (&model, &variant) != (&before.model, &before.variant) {
            if let Some(conversation) = self.conversation.open() {
                conversation.set_model(model.as_deref(), variant.as_deref()).await?;
            }
            (self.record.model, self.record.variant) = (model, variant);
        }
        Ok(())
    }

    async fn terminate(&mut self) {
        self.previous_end = None;
        if self.record.end.as_ref().is_none_or(|end| end.reason != "terminated") {
            self.close_conversation(CLOSE_GRACE).await;
            self.end(SessionEnded { reason: "terminated".into(), ..SessionEnded::default() }, TurnOutcome::Interrupted);
        }
        self.reply_to_resume(|| Err(SessionError::Terminated));
    }

    async fn resume(&mut self, reply: oneshot::Sender<Result<(), SessionError>>) {
        if self.log_writer.bytes() > self.limits.max_log_bytes {
            return self.reply(reply, Err(SessionError::LogFull));
        }
        match self.record.end.take() {
            None if matches!(self.conversation, ConversationState::Opening(_)) => self.resume_replies.push(reply),
            None => self.reply(reply, Ok(())),
            before => {
                self.previous_end = before;
                self.resume_replies.push(reply);
                self.open().await;
                self.save_and_publish();
            }
        }
    }
}
