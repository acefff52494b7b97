//! From what the app-server says of a thread to what happens in the session: pure, and whatever it is told, something of it
//! is kept.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::{
    asks::{self, Ask, Asked},
    items::Item,
    rpc::{Refusal, Said},
};
use crate::{
    agent::{self, Fact, Prompt},
    schema::{EventData, ItemDelta, ItemKind, Notice, TurnOutcome, Usage},
};

/// How many items that were closed with their turn are remembered: a command may end after the turn that began it.
const CLOSED: usize = 64;

type Raw = Option<agent::Raw>;

/// What is known of a thread, so that the next thing said of it makes sense.
#[derive(Debug, Default)]
pub(super) struct Thread {
    id: String,
    /// Tells the app-server's requests from those of the one before it, since all of them count from 0.
    server: String,
    turn: Turn,
    ended: Option<String>,
    prompt: Option<(String, String)>,
    open: Vec<Open>,
    closed: VecDeque<String>,
    interrupted: Vec<String>,
    used: Option<Usage>,
    asks: HashMap<String, Ask>,
}

/// The turn that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// None does.
    #[default]
    None,
    /// One was asked for; its id is not known yet.
    Asked,
    /// This one.
    Running(String),
}

/// An item that is not whole.
#[derive(Debug)]
struct Open {
    item: Value,
    text: String,
}

// === impl Thread ===

impl Thread {
    pub(super) fn new(id: &str, server: &str) -> Self {
        Self { id: id.to_owned(), server: server.to_owned(), ..Self::default() }
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The turn that runs.
    pub(super) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// A turn was asked for, with this text.
    pub(super) fn prompted(&mut self, prompt: &Prompt, text: &str) {
        self.turn = Turn::Asked;
        self.used = None;
        self.prompt = Some((prompt.id.clone(), text.to_owned()));
    }

    /// The turn that was asked for has an id; or there will be none.
    pub(super) fn answered(&mut self, answer: Result<&Value, String>, facts: &mut Vec<Fact>) {
        if self.turn != Turn::Asked {
            return;
        }
        match answer {
            Ok(result) => {
                if let Some(id) = result.pointer("/turn/id").and_then(Value::as_str) {
                    self.turn = Turn::Running(id.to_owned());
                }
            }
            Err(message) => {
                facts.push(Fact::event(EventData::error("jsonrpc.error", message.clone(), None)));
                self.end(TurnOutcome::Failed, Some(message), None, facts);
            }
        }
    }

    /// The app-server said something.
    pub(super) fn heard(&mut self, said: &Said, raw: Raw, facts: &mut Vec<Fact>) {
        let told = match said.method.as_str() {
            // Another thread that this one began: it works for itself, and its turns are not ours.
            _ if said.thread().is_some_and(|thread| thread != self.id) => None,
            "thread/started" => self.thread_started(said, &raw, facts),
            "turn/started" => self.turn_started(said, &raw, facts),
            "turn/completed" => self.turn_completed(said, &raw, facts),
            "item/started" => self.item_started(said, &raw, facts),
            "item/completed" => self.item_completed(said, &raw, facts),
            "item/agentMessage/delta" => self.delta(ItemKind::Message, said, &raw, facts),
            "item/plan/delta" => self.delta(ItemKind::Plan, said, &raw, facts),
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.delta(ItemKind::Reasoning, said, &raw, facts)
            }
            "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => {
                self.delta(ItemKind::Tool, said, &raw, facts)
            }
            "thread/tokenUsage/updated" => self.usage(said, &raw, facts),
            "error" => Self::error(said, &raw, facts),
            "serverRequest/resolved" => self.resolved(said, facts),
            _ => None,
        };
        if told.is_none() {
            facts.push(notice(&said.method, said.params.clone(), raw));
        }
    }

    /// The app-server asks something. What nobody can answer is to be refused.
    pub(super) fn asked(&mut self, said: &Said, raw: Raw, facts: &mut Vec<Fact>) -> Result<(), Refusal> {
        let number = said.id.as_ref().map(Value::to_string).unwrap_or_default();
        let id = format!("{}-{}", self.server, number.trim_matches('"'));
        let Some((ask, asked)) = asks::asked(&id, said, self.item_of(said)) else {
            facts.push(Fact::Event(EventData::Raw(json!({"method": said.method, "params": said.params})), raw));
            return Err(Refusal::no_such_method(&said.method));
        };
        self.asks.insert(id, ask);
        facts.push(match asked {
            Asked::Permission(request) => Fact::PermissionAsked(request, raw),
            Asked::Question(request) => Fact::QuestionAsked(request, raw),
        });
        Ok(())
    }

    /// What waits under this id for an answer.
    pub(super) fn ask(&self, id: &str) -> Option<&Ask> {
        self.asks.get(id)
    }

    /// What waits under this id for an answer; it does so no longer.
    pub(super) fn take_ask(&mut self, id: &str) -> Option<Ask> {
        self.asks.remove(id)
    }

    /// Everything that waits for an answer; nothing does any longer.
    pub(super) fn take_asks(&mut self) -> Vec<Ask> {
        self.asks.drain().map(|(_, ask)| ask).collect()
    }

    /// The files that a request would change, as far as they are known.
    pub(super) fn paths(&self, said: &Said) -> Vec<String> {
        self.item_of(said).map(|item| Item(item).paths()).unwrap_or_default()
    }

    /// The commands that ran when their turn was interrupted, since this was asked last.
    pub(super) fn take_interrupted(&mut self) -> Vec<String> {
        std::mem::take(&mut self.interrupted)
    }

    fn item_of(&self, said: &Said) -> Option<&Value> {
        let id = said.params.get("itemId")?.as_str()?;
        self.open.iter().map(|open| &open.item).find(|item| Item(item).id() == id)
    }

    fn thread_started(&self, said: &Said, raw: &Raw, facts: &mut Vec<Fact>) -> Option<()> {
        let thread = said.params.get("thread")?;
        facts.push(Fact::NativeId(self.id.clone()));
        facts.push(Fact::Event(EventData::started(&*said.method, Some(thread.clone())), raw.clone()));
        Some(())
    }

    fn turn_started(&mut self, said: &Said, raw: &Raw, facts: &mut Vec<Fact>) -> Option<()> {
        let turn = said.params.get("turn")?;
        let id = turn.get("id")?.as_str()?.to_owned();
        if self.turn == Turn::None {
            self.used = None;
            facts.push(Fact::TurnStarted);
        }
        self.turn = Turn::Running(id);
        facts.push(Fact::Event(EventData::started(&*said.method, Some(turn.clone())), raw.clone()));
        Some(())
    }

    fn turn_completed(&mut self, said: &Said, raw: &Raw, facts: &mut Vec<Fact>) -> Option<()> {
        let turn = said.params.get("turn")?;
        let id = turn.get("id")?.as_str()?.to_owned();
        match &self.turn {
            Turn::None => return None,
            Turn::Running(running) if *running != id => return None,
            Turn::Asked if self.ended.as_ref() == Some(&id) => return None,
            Turn::Asked | Turn::Running(_) => {}
        }
        let message = turn.pointer("/error/message").and_then(Value::as_str).map(str::to_owned);
        let (outcome, message) = match turn.get("status").and_then(Value::as_str) {
            Some("completed") => (TurnOutcome::Completed, message),
            Some("interrupted") => (TurnOutcome::Interrupted, message),
            Some("failed") => (TurnOutcome::Failed, message),
            other => (
                TurnOutcome::Failed,
                message.or_else(|| Some(format!("the turn ended as {}", other.unwrap_or("nothing")))),
            ),
        };
        self.ended = Some(id);
        self.end(outcome, message, raw.clone(), facts);
        Some(())
    }

    fn end(&mut self, outcome: TurnOutcome, message: Option<String>, raw: Raw, facts: &mut Vec<Fact>) {
        for open in std::mem::take(&mut self.open) {
            if outcome == TurnOutcome::Interrupted && Item(&open.item).word() == "commandExecution" {
                self.interrupted.push(Item(&open.item).id().to_owned());
            }
            self.close(open, facts);
        }
        // The app-server takes its requests back only after the turn's end. A thread that this one began may still ask.
        let over = |ask: &Ask| ask.turn.is_none() || ask.turn == self.ended;
        let mut ids: Vec<String> = self.asks.iter().filter(|(_, ask)| over(ask)).map(|(id, _)| id.clone()).collect();
        ids.sort();
        for id in ids {
            self.asks.remove(&id);
            facts.push(Fact::Withdrawn(id));
        }
        self.turn = Turn::None;
        facts.push(Fact::TurnEnded { outcome, message, usage: self.used.take(), raw });
    }

    /// Ends every item, since nothing more will be said of any.
    pub(super) fn close_all(&mut self, facts: &mut Vec<Fact>) {
        for open in std::mem::take(&mut self.open) {
            self.close(open, facts);
        }
    }

    /// Whether this item was told to be over, with its turn.
    fn was_closed(&self, id: &str) -> bool {
        self.closed.iter().any(|closed| closed == id)
    }

    /// Ends an item whose turn ended before it: the app-server says nothing more of it.
    fn close(&mut self, Open { mut item, text }: Open, facts: &mut Vec<Fact>) {
        if let Some(fields) = item.as_object_mut() {
            fields.insert("status".to_owned(), "interrupted".into());
            if !text.is_empty() {
                fields.insert("text".to_owned(), text.clone().into());
            }
        }
        let view = Item(&item);
        let mut completed = view.completed();
        completed.text = Some(text).filter(|text| !text.is_empty());
        facts.push(Fact::event(EventData::ItemCompleted(completed)));
        let said = view.kind() == ItemKind::Tool || view.text().is_some_and(|text| !text.is_empty());
        if let Some(message) = view.whole().filter(|_| said) {
            facts.push(Fact::event(EventData::Message(message)));
        }
        self.closed.push_back(view.id().to_owned());
        if self.closed.len() > CLOSED {
            self.closed.pop_front();
        }
    }

    /// Whether this is the prompt, said back.
    fn is_prompt(&self, item: Item<'_>) -> bool {
        let Some((id, text)) = self.prompt.as_ref().filter(|_| item.word() == "userMessage") else { return false };
        match item.0.get("clientId").and_then(Value::as_str) {
            Some(client_id) => client_id == id,
            None => item.text().as_ref() == Some(text),
        }
    }

    fn item_started(&mut self, said: &Said, raw: &Raw, facts: &mut Vec<Fact>) -> Option<()> {
        let item = Item(said.params.get("item").filter(|item| item.is_object())?);
        if self.is_prompt(item) {
            return None;
        }
        facts.push(Fact::Event(EventData::ItemStarted(item.started()), raw.clone()));
        if let Some(call) = item.call() {
            facts.push(Fact::Event(EventData::Message(call), raw.clone()));
        }
        self.open.push(Open { item: item.0.clone(), text: String::new() });
        Some(())
    }

    fn item_completed(&mut self, said: &Said, raw: &Raw, facts: &mut Vec<Fact>) -> Option<()> {
        let item = Item(said.params.get("item").filter(|item| item.is_object())?);
        if self.is_prompt(item) || self.was_closed(item.id()) {
            return None;
        }
        let open = self.open.iter().position(|open| Item(&open.item).id() == item.id());
        let begun = open.map(|at| self.open.remove(at)).is_some();
        if let Some(call) = item.call().filter(|_| !begun) {
            facts.push(Fact::Event(EventData::Message(call), raw.clone()));
        }
        facts.push(Fact::Event(EventData::ItemCompleted(item.completed()), raw.clone()));
        if let Some(message) = item.whole() {
            facts.push(Fact::Event(EventData::Message(message), raw.clone()));
        }
        Some(())
    }

    fn delta(&mut self, kind: ItemKind, said: &Said, raw: &Raw, facts: &mut Vec<Fact>) -> Option<()> {
        let item_id = said.params.get("itemId")?.as_str()?.to_owned();
        let delta = said.params.get("delta")?.as_str()?.to_owned();
        if self.was_closed(&item_id) {
            return None;
        }
        let open = self.open.iter_mut().find(|open| Item(&open.item).id() == item_id);
        if let Some(open) = open.filter(|_| kind != ItemKind::Tool) {
            open.text.push_str(&delta);
        }
        facts.push(Fact::Event(EventData::ItemDelta(ItemDelta { item_id, kind, delta }), raw.clone()));
        Some(())
    }

    fn usage(&mut self, said: &Said, raw: &Raw, facts: &mut Vec<Fact>) -> Option<()> {
        let all = said.params.get("tokenUsage")?;
        let last = all.get("last")?;
        let count = |key: &str| last.get(key).and_then(Value::as_u64);
        let usage = Usage {
            input_tokens: count("inputTokens"),
            output_tokens: count("outputTokens"),
            cached_input_tokens: count("cachedInputTokens"),
            cost_usd: None,
            context_window: all.get("modelContextWindow").and_then(Value::as_u64),
            details: Some(all.clone()),
        };
        if self.turn != Turn::None {
            let before = self.used.take().unwrap_or_default();
            let sum = |before: Option<u64>, now: Option<u64>| match (before, now) {
                (None, None) => None,
                (before, now) => Some(before.unwrap_or_default().saturating_add(now.unwrap_or_default())),
            };
            self.used = Some(Usage {
                input_tokens: sum(before.input_tokens, usage.input_tokens),
                output_tokens: sum(before.output_tokens, usage.output_tokens),
                cached_input_tokens: sum(before.cached_input_tokens, usage.cached_input_tokens),
                context_window: usage.context_window,
                ..Usage::default()
            });
        }
        facts.push(Fact::Event(EventData::Usage(usage), raw.clone()));
        Some(())
    }

    fn error(said: &Said, raw: &Raw, facts: &mut Vec<Fact>) -> Option<()> {
        if said.params.get("willRetry") == Some(&Value::Bool(true)) {
            return None;
        }
        let error = said.params.get("error")?;
        let message = error.get("message")?.as_str()?;
        facts.push(Fact::Event(EventData::error("error", message, Some(error.clone())), raw.clone()));
        Some(())
    }

    fn resolved(&mut self, said: &Said, facts: &mut Vec<Fact>) -> Option<()> {
        let request = said.params.get("requestId")?;
        let id = self.asks.iter().find(|(_, ask)| ask.id == *request).map(|(id, _)| id.clone())?;
        self.asks.remove(&id);
        facts.push(Fact::Withdrawn(id));
        Some(())
    }
}

/// Small talk.
pub(super) fn notice(label: &str, details: Value, raw: Raw) -> Fact {
    let details = Some(details).filter(|details| !details.is_null());
    Fact::Event(EventData::Notice(Notice { label: label.to_owned(), details }), raw)
}
