//! The actor of a session: handles commands and the agent's events, and logs them in order.

mod commands;
mod events;
mod requests;
mod turns;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

pub(super) use self::requests::PendingRequestKind;
use self::requests::withdrawn;
use super::{
    AgentSession, CLOSE_GRACE, ProgramLocator, SessionError, SessionLimits, SessionParts, SessionStatus,
    command::SessionCommand,
    conversation::{ConversationEvent, ConversationState, OpenResult},
    log_writer::SessionLogWriter,
    replay::{self, PromptDigest},
    turn::{ActiveTurn, QueuedPrompt, TurnHandle},
};
use crate::{
    agent::{AgentDriver, AgentError, AgentEvent, AgentMode, Conversation, ConversationOptions, PermissionMode},
    log::LogPosition,
    schema::{EventData, Notice, SessionEnded, SessionResumed, TurnEnded, TurnOutcome},
    session_store::SessionRecord,
};

pub(super) struct SessionActor {
    session: Arc<AgentSession>,
    agent: Arc<dyn AgentDriver>,
    locate: ProgramLocator,
    limits: SessionLimits,
    log_writer: SessionLogWriter,
    /// The stored record, without the queue.
    record: SessionRecord,
    conversation: ConversationState,
    /// The settings that the conversation was opened with.
    opened_with: AgentSettings,
    queue: VecDeque<QueuedPrompt>,
    /// Whether the queue changed since it was saved.
    queue_dirty: bool,
    turn: Option<ActiveTurn>,
    pending_requests: HashMap<String, PendingRequestKind>,
    /// Prompts by the ids that clients gave them.
    prompts: HashMap<String, (PromptDigest, TurnHandle)>,
    /// Whether the log may have prompts of an earlier server that are not in `prompts` yet.
    prompts_unread: bool,
    resume_replies: Vec<oneshot::Sender<Result<(), SessionError>>>,
    /// How the session ended before it was resumed.
    previous_end: Option<SessionEnded>,
    /// When the session became idle.
    idle_since: Instant,
}

/// Settings of the agent that can be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AgentSettings {
    agent_mode: AgentMode,
    permission_mode: PermissionMode,
    model: Option<String>,
    variant: Option<String>,
}

impl SessionActor {
    pub(super) fn new(session: Arc<AgentSession>, parts: SessionParts) -> Self {
        let SessionParts { agent, locate, mut record, conversation, session_dir, limits } = parts;
        let restored = session.log.last().full > 0;
        let queue = record.queue.drain(..).map(QueuedPrompt::from).collect();
        Self {
            log_writer: SessionLogWriter::new(Arc::clone(&session), session_dir),
            session,
            agent,
            locate,
            limits,
            opened_with: AgentSettings::of(&record),
            record,
            conversation: conversation.map_or(ConversationState::Closed, ConversationState::Open),
            queue,
            queue_dirty: true,
            turn: None,
            pending_requests: HashMap::new(),
            prompts: HashMap::new(),
            prompts_unread: restored,
            resume_replies: Vec::new(),
            previous_end: None,
            idle_since: Instant::now(),
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<SessionCommand>) {
        let mut events = Vec::new();
        loop {
            self.advance().await;
            let next_wakeup = self.next_wakeup();
            tokio::select! {
                command = inbox.recv() => match command {
                    Some(SessionCommand::Close { remove, grace, reply }) => {
                        self.close(remove, grace).await;
                        let _receiver_gone = reply.send(());
                        return;
                    }
                    Some(command) => self.handle_command(command).await,
                    // The session itself holds a sender, so this happens only when no command can follow.
                    None => return self.close(false, CLOSE_GRACE).await,
                },
                conversation_event = self.conversation.next_event(&mut events) => match conversation_event {
                    ConversationEvent::Opened(opened) => self.opened(opened).await,
                    ConversationEvent::Facts => self.handle_events(&mut events).await,
                },
                () = sleep_until_wakeup(next_wakeup) => self.wake().await,
            }
        }
    }

    /// Logs the first event of a new session, or recovers one of an earlier server.
    pub(super) fn begin(&mut self) {
        if !self.prompts_unread {
            let native = self.conversation.open().and_then(|conversation| conversation.native_id());
            self.record.native_id = native.or(self.record.native_id.take());
            self.log_writer.push(EventData::started("session.created", None), None);
        } else if std::mem::take(&mut self.record.running) {
            self.recover();
        }
        self.flush();
        self.save_and_publish();
        self.log_writer.close_file();
    }

    /// Ends the turn that an earlier server left open.
    fn recover(&mut self) {
        let last = replay::last_turn(&self.session.log);
        if last.number > self.record.turns {
            // It had started, although it is still in the stored queue: it must not run twice.
            self.queue.pop_front();
            self.record.turns = last.number;
        }
        if last.ended {
            return;
        }
        let message = "the server ended while the agent worked";
        self.log_writer.push(EventData::error("server_restart", message, None), None);
        for (id, kind) in last.pending {
            self.log_writer.push(withdrawn(&id, kind), None);
        }
        let ended = TurnEnded {
            turn_id: turns::turn_id(self.record.turns),
            outcome: TurnOutcome::Failed,
            message: Some(message.to_owned()),
            usage: None,
        };
        self.log_writer.push(EventData::TurnEnded(ended), None);
    }

    // === the conversation ===

    /// Sends the next prompt if no turn is running, and opens the conversation if necessary.
    async fn advance(&mut self) {
        while self.turn.is_none() && !self.queue.is_empty() && self.record.end.is_none() {
            match &mut self.conversation {
                ConversationState::Opening(_) => return,
                ConversationState::Closed => self.open().await,
                ConversationState::Open(_) => self.next_turn().await,
            }
        }
    }

    async fn open(&mut self) {
        let program = match (self.locate)(self.record.agent, &self.record.directory) {
            Ok(program) => program,
            Err(error) => return self.opened(Err(error)).await,
        };
        self.opened_with = AgentSettings::of(&self.record);
        let options = ConversationOptions {
            session_id: self.session.id.clone(),
            program,
            agent_mode: self.record.agent_mode,
            permission_mode: self.record.permission_mode,
            model: self.record.model.clone(),
            variant: self.record.variant.clone(),
            native_id: self.record.native_id.clone(),
            resumable: self.record.begun,
        };
        let agent = Arc::clone(&self.agent);
        self.conversation = ConversationState::Opening(Box::pin(async move { agent.open(options).await }));
    }

    async fn opened(&mut self, opened: OpenResult) {
        self.idle_since = Instant::now();
        let ready = match opened {
            Ok(conversation) => self.apply_changed_settings(conversation).await,
            Err(error) => Err(error),
        };
        match ready {
            Ok(conversation) => {
                self.record.native_id = conversation.native_id().or(self.record.native_id.take());
                self.conversation = ConversationState::Open(conversation);
                if self.previous_end.take().is_some() {
                    self.log_writer.push(EventData::SessionResumed(SessionResumed {}), None);
                    self.flush();
                }
                self.reply_to_resume(|| Ok(()));
            }
            Err(error) => {
                self.conversation = ConversationState::Closed;
                // The state before the attempt to resume.
                self.record.end = self.previous_end.take().or(self.record.end.take());
                // The prompt that it was opened for fails.
                if let Some(queued) = self.queue.pop_front() {
                    self.queue_dirty = true;
                    self.begin_turn(Some(queued));
                    self.fail_turn("agent_start", &error);
                }
                let message = error.to_string();
                let mut error = Some(error);
                self.reply_to_resume(|| {
                    Err(error.take().unwrap_or_else(|| AgentError::Unsupported(message.clone())).into())
                });
            }
        }
        self.save_and_publish();
    }

    /// Applies settings that changed while the conversation was being opened, before the first prompt.
    async fn apply_changed_settings(&mut self, mut conversation: Box<dyn Conversation>) -> OpenResult {
        let (before, now) = (&self.opened_with, AgentSettings::of(&self.record));
        let modes = (before.agent_mode, before.permission_mode) != (now.agent_mode, now.permission_mode);
        let models = (&before.model, &before.variant) != (&now.model, &now.variant);
        let applied = async {
            if modes {
                conversation.set_permission_mode(now.agent_mode, now.permission_mode).await?;
            }
            if models {
                conversation.set_model(now.model.as_deref(), now.variant.as_deref()).await?;
            }
            Ok(())
        };
        if let Err(error) = applied.await {
            conversation.close(CLOSE_GRACE, &mut Vec::new()).await;
            return Err(error);
        }
        Ok(conversation)
    }

    fn reply_to_resume(&mut self, mut result: impl FnMut() -> Result<(), SessionError>) {
        for reply in self.resume_replies.drain(..) {
            let _receiver_gone = reply.send(result());
        }
    }

    /// Closes the conversation with every process of the agent, and withdraws its requests.
    async fn close_conversation(&mut self, grace: Duration) {
        let mut last = Vec::new();
        if let ConversationState::Open(conversation) = std::mem::take(&mut self.conversation) {
            conversation.close(grace, &mut last).await;
        }
        self.conversation_closed(last);
    }

    /// Logs the last events and withdraws all requests.
    fn conversation_closed(&mut self, last: Vec<AgentEvent>) {
        for event in last {
            // The exit is expected, and the caller ends the turn.
            if let AgentEvent::Event(data, raw) = event {
                self.log_writer.push(data, raw);
            }
        }
        self.withdraw_all();
        self.flush();
        self.log_writer.close_file();
    }

    /// When to wake up without an event.
    fn next_wakeup(&self) -> Option<Instant> {
        match &self.turn {
            Some(turn) => turn.interrupted?.checked_add(self.limits.interrupt_timeout),
            None if matches!(self.conversation, ConversationState::Open(_)) && self.pending_requests.is_empty() => {
                self.idle_since.checked_add(self.limits.idle_timeout?)
            }
            None => None,
        }
    }

    async fn wake(&mut self) {
        self.close_conversation(CLOSE_GRACE).await;
        if self.turn.is_some() {
            // It ignored the interrupt and was killed; the next prompt starts it again.
            self.end_turn(TurnOutcome::Interrupted, Some("the agent did not stop and was ended".into()), None, None);
        } else {
            let notice = Notice { label: "agent.idle".into(), details: None };
            self.log_writer.push(EventData::Notice(notice), None);
            self.flush();
        }
        self.save_and_publish();
    }

    // === ends ===

    /// Ends the session: it takes no more prompts.
    fn end(&mut self, end: SessionEnded, outcome: TurnOutcome) {
        self.end_turn(outcome, end.message.clone(), None, None);
        self.drop_queue();
        self.log_writer.push(EventData::SessionEnded(end.clone()), None);
        self.record.end = Some(end);
        self.flush();
        self.log_writer.close_file();
    }

    async fn close(&mut self, remove: bool, grace: Duration) {
        // First what readers and the next server need; then the agent, which may be slow.
        self.withdraw_all();
        self.end_turn(TurnOutcome::Interrupted, Some("the server ended the session".into()), None, None);
        self.save_and_publish();
        self.reply_to_resume(|| Err(SessionError::Gone));
        self.close_conversation(grace).await;
        self.queue.clear();
        self.log_writer.close(remove);
    }

    // === small things ===

    fn flush(&mut self) -> LogPosition {
        self.log_writer.flush(self.record.native_id.as_deref())
    }

    fn status(&self) -> SessionStatus {
        if self.record.end.is_some() {
            SessionStatus::Ended
        } else if !self.pending_requests.is_empty() {
            SessionStatus::Waiting
        } else if self.turn.is_some() || !self.queue.is_empty() {
            SessionStatus::Running
        } else {
            SessionStatus::Idle
        }
    }

    /// Saves and publishes the state. Returns whether it was saved.
    fn save_and_publish(&mut self) -> bool {
        self.record.running = self.turn.is_some();
        let (status, queued) = (self.status(), self.queue.len());
        let (same_record, same) = self.session.shows(&self.record, status, queued);
        let mut written = true;
        if !same_record || self.queue_dirty {
            if !same_record {
                self.record.updated_at = super::log_writer::now_ms();
            }
            let waiting = self.queue.iter().map(QueuedPrompt::record).collect();
            written = self.log_writer.write_record(&SessionRecord { queue: waiting, ..self.record.clone() });
            self.queue_dirty = !written;
        }
        if !same {
            self.session.publish(&self.record, status, queued);
        }
        written
    }
}

// === impl AgentSettings ===

impl AgentSettings {
    fn of(record: &SessionRecord) -> Self {
        Self {
            agent_mode: record.agent_mode,
            permission_mode: record.permission_mode,
            model: record.model.clone(),
            variant: record.variant.clone(),
        }
    }
}

async fn sleep_until_wakeup(next_wakeup: Option<Instant>) {
    match next_wakeup {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
