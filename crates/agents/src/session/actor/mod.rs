//! The actor of a session: takes orders, hears the agent, and writes down both in the order in which they happened.

mod asks;
mod facts;
mod orders;
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

pub(super) use self::asks::Asked;
use self::asks::withdrawn;
use super::{
    Beginning, FAREWELL, Locate, Rules, Session, SessionError, Status,
    order::Order,
    recall::{self, Digest},
    scribe::Scribe,
    talk::{Happened, Opened, Talk},
    turn::{Queued, Ticket, Turn},
};
use crate::{
    agent::{Agent, AgentError, AgentMode, Conversation, Fact, Opening, PermissionMode},
    keep::Record,
    log::Position,
    schema::{EventData, Notice, SessionEnded, SessionResumed, TurnEnded, TurnOutcome},
};

pub(super) struct Actor {
    session: Arc<Session>,
    agent: Arc<dyn Agent>,
    locate: Locate,
    rules: Rules,
    scribe: Scribe,
    /// All that is written down, but for the prompts that wait.
    record: Record,
    talk: Talk,
    /// With what the conversation was opened.
    opened_with: Manner,
    queue: VecDeque<Queued>,
    /// Whether prompts came or went since they were written down.
    queue_changed: bool,
    turn: Option<Turn>,
    asked: HashMap<String, Asked>,
    /// Prompts by the ids that clients gave them: what they say, in short, and where they are.
    prompts: HashMap<String, (Digest, Ticket)>,
    /// Whether prompts of an earlier server may be in the log that are not in `prompts` yet.
    unread: bool,
    resuming: Vec<oneshot::Sender<Result<(), SessionError>>>,
    /// How the session had ended that is being opened again.
    ended_before: Option<SessionEnded>,
    /// Since when nothing was going on.
    idle_since: Instant,
}

/// How an agent works, as far as that can be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Manner {
    agent_mode: AgentMode,
    permission_mode: PermissionMode,
    model: Option<String>,
    variant: Option<String>,
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
            opened_with: Manner::of(&record),
            record,
            talk: conversation.map_or(Talk::None, Talk::Open),
            queue,
            queue_changed: true,
            turn: None,
            asked: HashMap::new(),
            prompts: HashMap::new(),
            unread: restored,
            resuming: Vec::new(),
            ended_before: None,
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
                    Some(Order::Close { remove, farewell, reply }) => {
                        self.close(remove, farewell).await;
                        let _nobody_waits = reply.send(());
                        return;
                    }
                    Some(order) => self.order(order).await,
                    // The session itself holds a sender: this does not happen while anybody could order anything.
                    None => return self.close(false, FAREWELL).await,
                },
                happened = self.talk.happens(&mut facts) => match happened {
                    Happened::Opened(opened) => self.opened(opened).await,
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
            self.recover();
        }
        self.write();
        self.changed();
        self.scribe.rest();
    }

    /// Ends the turn that an earlier server did not live to see the end of.
    fn recover(&mut self) {
        let last = recall::last_turn(&self.session.log);
        if last.number > self.record.turns {
            // It had begun, and the record still has it as one that waits: it is not run a second time.
            self.queue.pop_front();
            self.record.turns = last.number;
        }
        if last.over {
            return;
        }
        let message = "the server ended while the agent worked";
        self.scribe.note(EventData::error("server_restart", message, None), None);
        for (id, asked) in last.asked {
            self.scribe.note(withdrawn(&id, asked), None);
        }
        let ended = TurnEnded {
            turn_id: turns::turn_id(self.record.turns),
            outcome: TurnOutcome::Failed,
            message: Some(message.to_owned()),
            usage: None,
        };
        self.scribe.note(EventData::TurnEnded(ended), None);
    }

    // === the conversation ===

    /// Gives the agent the next prompt if it has none, and opens the conversation for it if need be.
    async fn advance(&mut self) {
        while self.turn.is_none() && !self.queue.is_empty() && self.record.end.is_none() {
            match &mut self.talk {
                Talk::Opening(_) => return,
                Talk::None => self.open().await,
                Talk::Open(_) => self.next_turn().await,
            }
        }
    }

    async fn open(&mut self) {
        let place = match (self.locate)(self.record.agent, &self.record.directory) {
            Ok(place) => place,
            Err(error) => return self.opened(Err(error)).await,
        };
        self.opened_with = Manner::of(&self.record);
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

    async fn opened(&mut self, opened: Opened) {
        self.idle_since = Instant::now();
        let ready = match opened {
            Ok(conversation) => self.caught_up(conversation).await,
            Err(error) => Err(error),
        };
        match ready {
            Ok(conversation) => {
                self.record.native_id = conversation.native_id().or(self.record.native_id.take());
                self.talk = Talk::Open(conversation);
                if self.ended_before.take().is_some() {
                    self.scribe.note(EventData::SessionResumed(SessionResumed {}), None);
                    self.write();
                }
                self.answer_resuming(|| Ok(()));
            }
            Err(error) => {
                self.talk = Talk::None;
                // As it was before somebody tried.
                self.record.end = self.ended_before.take().or(self.record.end.take());
                // The prompt that it was opened for has had its chance.
                if let Some(queued) = self.queue.pop_front() {
                    self.queue_changed = true;
                    self.begin_turn(Some(queued));
                    self.fail_turn("agent_start", &error);
                }
                let message = error.to_string();
                let mut error = Some(error);
                self.answer_resuming(|| {
                    Err(error.take().unwrap_or_else(|| AgentError::Unsupported(message.clone())).into())
                });
            }
        }
        self.changed();
    }

    /// Tells a conversation what was changed while it was being opened, before it hears of any prompt.
    async fn caught_up(&mut self, mut conversation: Box<dyn Conversation>) -> Opened {
        let (before, now) = (&self.opened_with, Manner::of(&self.record));
        let modes = (before.agent_mode, before.permission_mode) != (now.agent_mode, now.permission_mode);
        let models = (&before.model, &before.variant) != (&now.model, &now.variant);
        let told = async {
            if modes {
                conversation.set_permission_mode(now.agent_mode, now.permission_mode).await?;
            }
            if models {
                conversation.set_model(now.model.as_deref(), now.variant.as_deref()).await?;
            }
            Ok(())
        };
        if let Err(error) = told.await {
            conversation.close(FAREWELL, &mut Vec::new()).await;
            return Err(error);
        }
        Ok(conversation)
    }

    fn answer_resuming(&mut self, mut result: impl FnMut() -> Result<(), SessionError>) {
        for reply in self.resuming.drain(..) {
            let _nobody_waits = reply.send(result());
        }
    }

    /// Ends the conversation and everything that the agent started. What it asked is asked no more.
    async fn hang_up(&mut self, patience: Duration) {
        let mut last = Vec::new();
        if let Talk::Open(conversation) = std::mem::take(&mut self.talk) {
            conversation.close(patience, &mut last).await;
        }
        self.hung_up(last);
    }

    /// Nobody is there any more: whatever was still to be told is, and nothing is asked.
    fn hung_up(&mut self, last: Vec<Fact>) {
        for fact in last {
            // That it is gone is no news, and the turn's end is told by who hung up.
            if let Fact::Event(data, raw) = fact {
                self.scribe.note(data, raw);
            }
        }
        self.withdraw_all();
        self.write();
        self.scribe.rest();
    }

    /// When to look again although nothing happens.
    fn alarm(&self) -> Option<Instant> {
        match &self.turn {
            Some(turn) => turn.interrupted?.checked_add(self.rules.interrupt),
            None if matches!(self.talk, Talk::Open(_)) && self.asked.is_empty() => {
                self.idle_since.checked_add(self.rules.idle?)
            }
            None => None,
        }
    }

    async fn wake(&mut self) {
        self.hang_up(FAREWELL).await;
        if self.turn.is_some() {
            // It was told to stop and did not: its process is gone, and the next prompt starts it again.
            self.end_turn(TurnOutcome::Interrupted, Some("the agent did not stop and was ended".into()), None, None);
        } else {
            let notice = Notice { label: "agent.idle".into(), details: None };
            self.scribe.note(EventData::Notice(notice), None);
            self.write();
        }
        self.changed();
    }

    // === ends ===

    /// The session takes no more prompts.
    fn end(&mut self, end: SessionEnded, outcome: TurnOutcome) {
        self.end_turn(outcome, end.message.clone(), None, None);
        self.forget_queue();
        self.scribe.note(EventData::SessionEnded(end.clone()), None);
        self.record.end = Some(end);
        self.write();
        self.scribe.rest();
    }

    async fn close(&mut self, remove: bool, farewell: Duration) {
        // First what readers and the next server have to know; then the agent, which may take its time.
        self.withdraw_all();
        self.end_turn(TurnOutcome::Interrupted, Some("the server ended the session".into()), None, None);
        self.changed();
        self.answer_resuming(|| Err(SessionError::Gone));
        self.hang_up(farewell).await;
        self.queue.clear();
        self.scribe.close(remove);
    }

    // === small things ===

    fn write(&mut self) -> Position {
        self.scribe.write(self.record.native_id.as_deref())
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

    /// Writes down and shows how the session is now. Says whether the disk has it, if there is one.
    fn changed(&mut self) -> bool {
        self.record.running = self.turn.is_some();
        let (status, queued) = (self.status(), self.queue.len());
        let (same_record, same) = self.session.shows(&self.record, status, queued);
        let mut written = true;
        if !same_record || self.queue_changed {
            if !same_record {
                self.record.updated_at = super::scribe::milliseconds();
            }
            let waiting = self.queue.iter().map(Queued::record).collect();
            written = self.scribe.record(&Record { queue: waiting, ..self.record.clone() });
            self.queue_changed = !written;
        }
        if !same {
            self.session.publish(&self.record, status, queued);
        }
        written
    }
}

// === impl Manner ===

impl Manner {
    fn of(record: &Record) -> Self {
        Self {
            agent_mode: record.agent_mode,
            permission_mode: record.permission_mode,
            model: record.model.clone(),
            variant: record.variant.clone(),
        }
    }
}

async fn sleep_until(alarm: Option<Instant>) {
    match alarm {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
