//! The actor of a session: takes orders, hears the agent, and writes down both in the order in which they happened.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    Beginning, Change, Locate, Rules, Session, SessionError, Status, Ticket,
    order::Order,
    recall,
    scribe::Scribe,
    talk::{Happened, Opened, Talk},
    turn::{Queued, Turn, TurnState},
};
use crate::{
    agent::{Agent, AgentError, Answer, Fact, Gone, Opening, Prompt, Raw},
    child::Exit,
    keep::{EndRecord, Record},
    schema::{
        EventData, Message, Notice, ParsedMessage, Part, PermissionOutcome, PermissionReply, PermissionResolved,
        QuestionOutcome, QuestionResolved, SessionEnded, SessionResumed, TurnEnded, TurnOutcome, TurnStarted, Usage,
    },
};

/// What the agent waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Permission,
    Question,
}

pub(super) struct Actor {
    session: Arc<Session>,
    agent: Arc<dyn Agent>,
    locate: Locate,
    rules: Rules,
    scribe: Scribe,
    record: Record,
    talk: Talk,
    queue: VecDeque<Queued>,
    turn: Option<Turn>,
    asked: HashMap<String, Asked>,
    /// Prompts by the ids that clients gave them.
    prompts: HashMap<String, (String, Ticket)>,
    /// Whether prompts of an earlier server may be in the log that are not in `prompts` yet.
    unread: bool,
    resuming: Vec<oneshot::Sender<Result<(), SessionError>>>,
    /// Since when nothing was going on.
    idle_since: Instant,
}

impl Actor {
    pub(super) fn new(session: Arc<Session>, beginning: Beginning) -> Self {
        let Beginning { agent, locate, mut record, conversation, shelf, rules } = beginning;
        let restored = session.log.last().full > 0;
        let queue = record.queue.drain(..).map(Queued::from).collect();
        Self {
            scribe: Scribe::new(Arc::clone(&session), shelf),
            session,
            agent,
            locate,
            rules,
            record,
            talk: conversation.map_or(Talk::None, Talk::Open),
            queue,
            turn: None,
            asked: HashMap::new(),
            prompts: HashMap::new(),
            unread: restored,
            resuming: Vec::new(),
            idle_since: Instant::now(),
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        let mut facts = Vec::new();
        loop {
            self.advance().await;
            let alarm = self.alarm();
            tokio::select! {
                order = inbox.recv() => match order {
                    Some(Order::Close { remove, reply }) => {
                        self.close(remove).await;
                        let _nobody_waits = reply.send(());
                        return;
                    }
                    Some(order) => self.order(order).await,
                    // The session itself holds a sender: this does not happen while anybody could order anything.
                    None => return self.close(false).await,
                },
                happened = self.talk.happens(&mut facts) => match happened {
                    Happened::Opened(opened) => self.opened(opened),
                    Happened::Facts => self.facts(&mut facts).await,
                },
                () = sleep_until(alarm) => self.wake().await,
            }
        }
    }

    /// The first event of a new session; or what the end of an earlier server left open.
    pub(super) fn begin(&mut self) {
        if !self.unread {
            let native = self.talk.open().and_then(|conversation| conversation.native_id());
            self.record.native_id = native.or(self.record.native_id.take());
            self.scribe.note(EventData::started("session.created", None), None);
        } else if std::mem::take(&mut self.record.running) {
            let message = "the server ended while the agent worked";
            self.scribe.note(EventData::error("server_restart", message, None), None);
            for (id, asked) in recall::asked(&self.session.log) {
                self.scribe.note(withdrawn(&id, asked), None);
            }
            let ended = TurnEnded {
                turn_id: turn_id(self.record.turns),
                outcome: TurnOutcome::Failed,
                message: Some(message.to_owned()),
                usage: None,
            };
            self.scribe.note(EventData::TurnEnded(ended), None);
        }
        self.write();
        self.changed();
    }

    // === what is next ===

    /// Gives the agent the next prompt if it has none, and opens the conversation for it if need be.
    async fn advance(&mut self) {
        if self.turn.is_some() || self.queue.is_empty() || self.record.end.is_some() {
            return;
        }
        match &mut self.talk {
            Talk::Opening(_) => return,
            Talk::None => return self.open(),
            Talk::Open(_) => {}
        }
        let Some(queued) = self.queue.pop_front() else { return };
        let prompt = queued.prompt.clone();
        self.begin_turn(Some(queued));
        self.changed();
        let Some(conversation) = self.talk.open() else { return };
        if let Err(error) = conversation.prompt(&prompt).await {
            self.fail_turn("prompt", &error);
        }
    }

    fn open(&mut self) {
        let place = match (self.locate)(self.record.agent, &self.record.directory) {
            Ok(place) => place,
            Err(error) => return self.opened(Err(error)),
        };
        let opening = Opening {
            session_id: self.session.id.clone(),
            place,
            agent_mode: self.record.agent_mode,
            permission_mode: self.record.permission_mode,
            model: self.record.model.clone(),
            variant: self.record.variant.clone(),
            native_id: self.record.native_id.clone(),
            begun: self.record.begun,
        };
        let agent = Arc::clone(&self.agent);
        self.talk = Talk::Opening(Box::pin(async move { agent.open(opening).await }));
    }

    fn opened(&mut self, opened: Opened) {
        self.idle_since = Instant::now();
        match opened {
            Ok(conversation) => {
                self.record.native_id = conversation.native_id().or(self.record.native_id.take());
                self.talk = Talk::Open(conversation);
                self.answer_resuming(|| Ok(()));
            }
            Err(error) => {
                self.talk = Talk::None;
                let message = error.to_string();
                self.answer_resuming(|| Err(AgentError::Unsupported(message.clone()).into()));
                // The prompt that it was opened for has had its chance.
                if let Some(queued) = self.queue.pop_front() {
                    self.begin_turn(Some(queued));
                    self.fail_turn("agent_start", &error);
                }
            }
        }
        self.changed();
    }

    fn answer_resuming(&mut self, result: impl Fn() -> Result<(), SessionError>) {
        for reply in self.resuming.drain(..) {
            let _nobody_waits = reply.send(result());
        }
    }

    /// When to look again although nothing happens.
    fn alarm(&self) -> Option<Instant> {
        match &self.turn {
            Some(turn) => turn.interrupted?.checked_add(self.rules.interrupt),
            // A time that no clock reaches is never.
            None if matches!(self.talk, Talk::Open(_)) => self.idle_since.checked_add(self.rules.idle?),
            None => None,
        }
    }

    async fn wake(&mut self) {
        if self.turn.is_some() {
            // It was told to stop and did not: its process goes, and the next prompt starts it again.
            self.hang_up().await;
            self.end_turn(TurnOutcome::Interrupted, Some("the agent did not stop and was ended".into()), None, None);
        } else {
            self.hang_up().await;
            let notice = Notice { label: "agent.idle".into(), details: None };
            self.scribe.note(EventData::Notice(notice), None);
            self.write();
        }
        self.changed();
    }

    // === orders ===

    async fn order(&mut self, order: Order) {
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
            Order::Resume { reply } => self.resume(reply),
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
        if named {
            self.read_prompts();
            if let Some((text, ticket)) = self.prompts.get(&prompt.id) {
                let same = *text == prompt.text;
                return if same { Ok(ticket.clone()) } else { Err(SessionError::Conflict(prompt.id)) };
            }
        }
        match &self.record.end {
            Some(end) if end.reason == "terminated" => return Err(SessionError::Terminated),
            Some(end) => return Err(SessionError::Ended(end.clone())),
            None if self.queue.len() >= self.rules.queue => return Err(SessionError::QueueFull(self.queue.len())),
            None => {}
        }
        let queued = Queued::new(prompt, named);
        let ticket = queued.state.subscribe();
        if named {
            self.prompts.insert(queued.prompt.id.clone(), (queued.prompt.text.clone(), ticket.clone()));
        }
        self.queue.push_back(queued);
        Ok(ticket)
    }

    /// Learns the prompts that an earlier server took, so that none of them runs twice.
    fn read_prompts(&mut self) {
        if !std::mem::take(&mut self.unread) {
            return;
        }
        let place = Some(self.session.log.last());
        let done = tokio::sync::watch::Sender::new(TurnState { begun: place, ended: place, waiting: false });
        for (id, text) in recall::prompts(&self.session.log) {
            self.prompts.insert(id, (text, done.subscribe()));
        }
        for queued in &self.queue {
            let prompt = queued.prompt.clone();
            self.prompts.insert(prompt.id, (prompt.text, queued.state.subscribe()));
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
        if self.asked.get(id) != Some(&wanted) {
            return Err(match wanted {
                Asked::Permission => SessionError::UnknownPermission(id.to_owned()),
                Asked::Question => SessionError::UnknownQuestion(id.to_owned()),
            });
        }
        self.asked.remove(id);
        let resolved = resolved(id, &answer);
        let sent = match self.talk.open() {
            Some(conversation) => conversation.answer(id, answer).await,
            None => Ok(()),
        };
        self.scribe.note(resolved, None);
        if let Err(error) = &sent {
            self.scribe.note(EventData::error("answer", error.to_string(), None), None);
        }
        self.write();
        self.tell_waiting();
        Ok(sent?)
    }

    async fn change(&mut self, change: Change) -> Result<(), SessionError> {
        let agent_mode = change.agent_mode.unwrap_or(self.record.agent_mode);
        let permission_mode = change.permission_mode.unwrap_or(self.record.permission_mode);
        let modes = change.agent_mode.is_some() || change.permission_mode.is_some();
        let model = change.model.clone().or(self.record.model.clone());
        let variant = change.variant.clone().or(self.record.variant.clone());
        let models = change.model.is_some() || change.variant.is_some();
        if let Some(conversation) = self.talk.open() {
            if modes {
                conversation.set_permission_mode(agent_mode, permission_mode).await?;
            }
            if models {
                conversation.set_model(model.as_deref(), variant.as_deref()).await?;
            }
        }
        self.record.agent_mode = agent_mode;
        self.record.permission_mode = permission_mode;
        self.record.model = model;
        self.record.variant = variant;
        self.record.title = change.title.or(self.record.title.take());
        Ok(())
    }

    async fn terminate(&mut self) {
        if self.record.end.as_ref().is_some_and(|end| end.reason == "terminated") {
            return;
        }
        self.hang_up().await;
        // The conversation that they wait for is not opened any more.
        self.answer_resuming(|| Err(SessionError::Terminated));
        self.end(EndRecord { reason: "terminated".into(), ..EndRecord::default() }, TurnOutcome::Interrupted);
    }

    fn resume(&mut self, reply: oneshot::Sender<Result<(), SessionError>>) {
        if self.record.end.take().is_none() {
            return self.reply(reply, Ok(()));
        }
        self.scribe.note(EventData::SessionResumed(SessionResumed {}), None);
        self.write();
        self.resuming.push(reply);
        self.open();
        self.changed();
    }

    async fn close(&mut self, remove: bool) {
        self.hang_up().await;
        self.end_turn(TurnOutcome::Interrupted, Some("the server ended the session".into()), None, None);
        self.changed();
        self.queue.clear();
        self.answer_resuming(|| Err(SessionError::Gone));
        self.scribe.close(remove);
    }

    // === what the agent says ===

    async fn facts(&mut self, facts: &mut Vec<Fact>) {
        let mut gone = None;
        for fact in facts.drain(..) {
            match fact {
                Fact::Event(data, raw) => {
                    // From the first word about a prompt on the agent knows the conversation and can take it up again.
                    self.record.begun |= self.turn.is_some() && !data.is_detail();
                    self.scribe.note(data, raw);
                }
                Fact::Modes(agent, permission) => {
                    (self.record.agent_mode, self.record.permission_mode) = (agent, permission);
                }
                Fact::NativeId(id) => self.native_id(id),
                Fact::TurnStarted if self.turn.is_none() => self.begin_turn(None),
                Fact::TurnStarted => {}
                Fact::TurnEnded { outcome, message, usage, raw } => {
                    self.end_turn(outcome, message, usage, raw);
                }
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
            self.hang_up().await;
            let message = format!("the session's log is full: more than {} bytes", self.rules.log_bytes);
            self.scribe.note(EventData::error("log_full", message.clone(), None), None);
            let end = EndRecord { reason: "failed".into(), message: Some(message), ..EndRecord::default() };
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

    fn withdraw(&mut self, id: &str) {
        if let Some(asked) = self.asked.remove(id) {
            self.scribe.note(withdrawn(id, asked), None);
        }
    }

    async fn gone(&mut self, how: Gone) {
        self.hang_up().await;
        match how {
            Gone::ServerExited(exit) => {
                let message = format!("the agent's server {exit}");
                self.scribe.note(EventData::error("server_exit", message.clone(), Some(details(&exit))), None);
                self.end_turn(TurnOutcome::Failed, Some(message), None, None);
            }
            Gone::Finished => {
                let end = EndRecord { reason: "exited".into(), exit_code: Some(0), ..EndRecord::default() };
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
                let end = EndRecord {
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

    // === turns ===

    fn begin_turn(&mut self, queued: Option<Queued>) {
        let before = self.write();
        self.record.turns += 1;
        let id = turn_id(self.record.turns);
        let message_id = queued.as_ref().filter(|queued| queued.named).map(|queued| queued.prompt.id.clone());
        self.scribe
            .note(EventData::TurnStarted(TurnStarted { turn_id: id.clone(), message_id: message_id.clone() }), None);
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

    fn fail_turn(&mut self, kind: &str, error: &AgentError) {
        let message = error.to_string();
        self.scribe.note(EventData::error(kind, message.clone(), None), None);
        self.end_turn(TurnOutcome::Failed, Some(message), None, None);
        self.changed();
    }

    fn end_turn(&mut self, outcome: TurnOutcome, message: Option<String>, usage: Option<Usage>, raw: Option<Raw>) {
        let Some(turn) = self.turn.take() else { return };
        // What nobody answered is not asked any more; only what runs in the background of a whole turn still asks.
        if outcome != TurnOutcome::Completed || matches!(self.talk, Talk::None) {
            let asked: Vec<_> = self.asked.drain().collect();
            for (id, asked) in asked {
                self.scribe.note(withdrawn(&id, asked), None);
            }
        }
        self.scribe.note(EventData::TurnEnded(TurnEnded { turn_id: turn.id, outcome, message, usage }), raw);
        let end = self.write();
        if let Some(state) = turn.state {
            state.send_modify(|state| (state.ended, state.waiting) = (Some(end), false));
        }
        self.idle_since = Instant::now();
    }

    fn forget_queue(&mut self) {
        let place = self.session.log.last();
        for queued in self.queue.drain(..) {
            self.prompts.remove(&queued.prompt.id);
            queued.state.send_modify(|state| state.ended = Some(place));
        }
    }

    fn end(&mut self, end: EndRecord, outcome: TurnOutcome) {
        self.end_turn(outcome, end.message.clone(), None, None);
        self.forget_queue();
        let ended = SessionEnded {
            reason: end.reason.clone(),
            message: end.message.clone(),
            exit_code: end.exit_code,
            signal: end.signal,
            stderr: end.stderr.clone(),
        };
        self.scribe.note(EventData::SessionEnded(ended), None);
        self.record.end = Some(end);
        self.write();
    }

    // === small things ===

    /// Ends the conversation and everything that the agent started.
    async fn hang_up(&mut self) {
        if let Talk::Open(conversation) = std::mem::take(&mut self.talk) {
            conversation.close(std::time::Duration::from_millis(500), &mut Vec::new()).await;
        }
    }

    fn write(&mut self) -> crate::log::Position {
        self.scribe.write(self.record.native_id.as_deref())
    }

    fn tell_waiting(&mut self) {
        let waiting = !self.asked.is_empty();
        if let Some(state) = self.turn.as_ref().and_then(|turn| turn.state.as_ref()) {
            state.send_if_modified(|state| std::mem::replace(&mut state.waiting, waiting) != waiting);
        }
    }

    fn status(&self) -> Status {
        if self.record.end.is_some() {
            Status::Ended
        } else if !self.asked.is_empty() {
            Status::Waiting
        } else if self.turn.is_some() || !self.queue.is_empty() {
            Status::Running
        } else {
            Status::Idle
        }
    }

    /// Writes down and shows how the session is now.
    fn changed(&mut self) {
        self.record.running = self.turn.is_some();
        self.record.queue = self.queue.iter().map(Queued::record).collect();
        let status = self.status();
        let (same_record, same) = self.session.shows(&self.record, status);
        if same {
            return;
        }
        if !same_record {
            self.record.updated_at = super::scribe::milliseconds();
            self.scribe.record(&self.record);
        }
        self.session.publish(&self.record, status);
    }
}

async fn sleep_until(alarm: Option<Instant>) {
    match alarm {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn turn_id(number: u64) -> String {
    format!("turn-{number}")
}

fn resolved(id: &str, answer: &Answer) -> EventData {
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
        Answer::Question(answers) => EventData::QuestionResolved(QuestionResolved {
            id,
            outcome: QuestionOutcome::Answered,
            answers: Some(answers.clone()),
        }),
        Answer::QuestionRejected => {
            EventData::QuestionResolved(QuestionResolved { id, outcome: QuestionOutcome::Rejected, answers: None })
        }
    }
}

fn withdrawn(id: &str, asked: Asked) -> EventData {
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

fn details(exit: &Exit) -> Value {
    json!({"exitCode": exit.code, "signal": exit.signal, "stderr": exit.stderr})
}
