//! Converts messages of the app-server to events of a session. Does no I/O, and drops no message.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::{
    items::CodexItem,
    requests::{self, AppServerRequest, UserRequest},
    rpc::{RpcError, RpcRequest},
};
use crate::{
    agent::{AgentEvent, Prompt, RawMessage},
    schema::{EventData, ItemDelta, ItemKind, Notice, TokenUsage, TurnOutcome},
};

/// How many closed items are remembered: a command may outlive its turn.
const MAX_CLOSED: usize = 64;

/// State of a thread that is needed to convert the next message.
#[derive(Debug, Default)]
pub(super) struct ThreadState {
    id: String,
    /// Distinguishes requests of this app-server from those of an earlier one, since each counts from 0.
    server: String,
    turn: TurnPhase,
    ended: Option<String>,
    prompt: Option<(String, String)>,
    open: Vec<UnfinishedItem>,
    closed: VecDeque<String>,
    interrupted: Vec<String>,
    turn_usage: Option<TokenUsage>,
    requests: HashMap<String, AppServerRequest>,
}

/// State of the turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum TurnPhase {
    /// No turn.
    #[default]
    None,
    /// Requested; its id is not known yet.
    Requested,
    /// Running, with this id.
    Running(String),
}

/// An item that was not completed.
#[derive(Debug)]
struct UnfinishedItem {
    item: Value,
    text: String,
}

// === impl ThreadState ===

impl ThreadState {
    pub(super) fn new(id: &str, server: &str) -> Self {
        Self { id: id.to_owned(), server: server.to_owned(), ..Self::default() }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn turn(&self) -> &TurnPhase {
        &self.turn
    }

    /// Records that a turn with this text was requested.
    pub(super) fn prompt_sent(&mut self, prompt: &Prompt, text: &str) {
        self.turn = TurnPhase::Requested;
        self.turn_usage = None;
        self.prompt = Some((prompt.id.clone(), text.to_owned()));
    }

    /// Handles the response to `turn/start`.
    pub(super) fn turn_start_response(&mut self, answer: Result<&Value, String>, events: &mut Vec<AgentEvent>) {
        if self.turn != TurnPhase::Requested {
            return;
        }
        match answer {
            Ok(result) => {
                if let Some(id) = result.pointer("/turn/id").and_then(Value::as_str) {
                    self.turn = TurnPhase::Running(id.to_owned());
                }
            }
            Err(message) => {
                events.push(AgentEvent::event(EventData::error("jsonrpc.error", message.clone(), None)));
                self.end(TurnOutcome::Failed, Some(message), None, events);
            }
        }
    }

    pub(super) fn handle_notification(
        &mut self,
        request: &RpcRequest,
        raw: Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) {
        let handled = match request.method.as_str() {
            // A subthread: its turns are not ours.
            _ if request.thread().is_some_and(|thread| thread != self.id) => None,
            "thread/started" => self.thread_started(request, &raw, events),
            "turn/started" => self.turn_started(request, &raw, events),
            "turn/completed" => self.turn_completed(request, &raw, events),
            "item/started" => self.item_started(request, &raw, events),
            "item/completed" => self.item_completed(request, &raw, events),
            "item/agentMessage/delta" => self.delta(ItemKind::Message, request, &raw, events),
            "item/plan/delta" => self.delta(ItemKind::Plan, request, &raw, events),
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.delta(ItemKind::Reasoning, request, &raw, events)
            }
            "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => {
                self.delta(ItemKind::Tool, request, &raw, events)
            }
            "thread/tokenUsage/updated" => self.usage(request, &raw, events),
            "error" => Self::error(request, &raw, events),
            "serverRequest/resolved" => self.resolved(request, events),
            _ => None,
        };
        if handled.is_none() {
            events.push(notice(&request.method, request.params.clone(), raw));
        }
    }

    /// Handles a request. Returns an error for the app-server if it is not supported.
    pub(super) fn handle_request(
        &mut self,
        request: &RpcRequest,
        raw: Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) -> Result<(), RpcError> {
        let number = request.id.as_ref().map(Value::to_string).unwrap_or_default();
        let id = format!("{}-{}", self.server, number.trim_matches('"'));
        let Some((request, requested)) = requests::parse(&id, request, self.item_of(request)) else {
            events.push(AgentEvent::Event(
                EventData::Raw(json!({"method": request.method, "params": request.params})),
                raw,
            ));
            return Err(RpcError::method_not_found(&request.method));
        };
        self.requests.insert(id, request);
        events.push(match requested {
            UserRequest::Permission(request) => AgentEvent::PermissionAsked(request, raw),
            UserRequest::Question(request) => AgentEvent::QuestionAsked(request, raw),
        });
        Ok(())
    }

    /// The pending request of this id.
    pub(super) fn request(&self, id: &str) -> Option<&AppServerRequest> {
        self.requests.get(id)
    }

    /// Removes the pending request of this id.
    pub(super) fn take_request(&mut self, id: &str) -> Option<AppServerRequest> {
        self.requests.remove(id)
    }

    /// Removes all pending requests.
    pub(super) fn take_requests(&mut self) -> Vec<AppServerRequest> {
        self.requests.drain().map(|(_, request)| request).collect()
    }

    /// The files that a request would change, if they are known.
    pub(super) fn paths(&self, request: &RpcRequest) -> Vec<String> {
        self.item_of(request).map(|item| CodexItem(item).paths()).unwrap_or_default()
    }

    /// Takes the commands that ran when their turn was interrupted.
    pub(super) fn take_interrupted(&mut self) -> Vec<String> {
        std::mem::take(&mut self.interrupted)
    }

    fn item_of(&self, request: &RpcRequest) -> Option<&Value> {
        let id = request.params.get("itemId")?.as_str()?;
        self.open.iter().map(|open| &open.item).find(|item| CodexItem(item).id() == id)
    }

    fn thread_started(
        &self,
        request: &RpcRequest,
        raw: &Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) -> Option<()> {
        let thread = request.params.get("thread")?;
        events.push(AgentEvent::NativeId(self.id.clone()));
        events.push(AgentEvent::Event(EventData::started(&*request.method, Some(thread.clone())), raw.clone()));
        Some(())
    }

    fn turn_started(
        &mut self,
        request: &RpcRequest,
        raw: &Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) -> Option<()> {
        let turn = request.params.get("turn")?;
        let id = turn.get("id")?.as_str()?.to_owned();
        if self.turn == TurnPhase::None {
            self.turn_usage = None;
            events.push(AgentEvent::TurnStarted);
        }
        self.turn = TurnPhase::Running(id);
        events.push(AgentEvent::Event(EventData::started(&*request.method, Some(turn.clone())), raw.clone()));
        Some(())
    }

    fn turn_completed(
        &mut self,
        request: &RpcRequest,
        raw: &Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) -> Option<()> {
        let turn = request.params.get("turn")?;
        let id = turn.get("id")?.as_str()?.to_owned();
        match &self.turn {
            TurnPhase::None => return None,
            TurnPhase::Running(running) if *running != id => return None,
            TurnPhase::Requested if self.ended.as_ref() == Some(&id) => return None,
            TurnPhase::Requested | TurnPhase::Running(_) => {}
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
        self.end(outcome, message, raw.clone(), events);
        Some(())
    }

    fn end(
        &mut self,
        outcome: TurnOutcome,
        message: Option<String>,
        raw: Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) {
        for open in std::mem::take(&mut self.open) {
            if outcome == TurnOutcome::Interrupted && CodexItem(&open.item).type_name() == "commandExecution" {
                self.interrupted.push(CodexItem(&open.item).id().to_owned());
            }
            self.close(open, events);
        }
        // The app-server withdraws requests only after the turn's end. Subthreads may still ask.
        let over = |request: &AppServerRequest| request.turn.is_none() || request.turn == self.ended;
        let mut ids: Vec<String> =
            self.requests.iter().filter(|(_, request)| over(request)).map(|(id, _)| id.clone()).collect();
        ids.sort();
        for id in ids {
            self.requests.remove(&id);
            events.push(AgentEvent::Withdrawn(id));
        }
        self.turn = TurnPhase::None;
        events.push(AgentEvent::TurnEnded { outcome, message, usage: self.turn_usage.take(), raw });
    }

    /// Interrupts all open items.
    pub(super) fn close_all(&mut self, events: &mut Vec<AgentEvent>) {
        for open in std::mem::take(&mut self.open) {
            self.close(open, events);
        }
    }

    /// Whether this item was closed with its turn.
    fn was_closed(&self, id: &str) -> bool {
        self.closed.iter().any(|closed| closed == id)
    }

    /// Interrupts an item whose turn ended before it: the app-server reports nothing more about it.
    fn close(&mut self, UnfinishedItem { mut item, text }: UnfinishedItem, events: &mut Vec<AgentEvent>) {
        if let Some(fields) = item.as_object_mut() {
            fields.insert("status".to_owned(), "interrupted".into());
            if !text.is_empty() {
                fields.insert("text".to_owned(), text.clone().into());
            }
        }
        let view = CodexItem(&item);
        let mut completed = view.completed();
        completed.text = Some(text).filter(|text| !text.is_empty());
        events.push(AgentEvent::event(EventData::ItemCompleted(completed)));
        let request = view.kind() == ItemKind::Tool || view.text().is_some_and(|text| !text.is_empty());
        if let Some(message) = view.completed_message().filter(|_| request) {
            events.push(AgentEvent::event(EventData::Message(message)));
        }
        self.closed.push_back(view.id().to_owned());
        if self.closed.len() > MAX_CLOSED {
            self.closed.pop_front();
        }
    }

    /// Whether this is our prompt, echoed.
    fn is_prompt(&self, item: CodexItem<'_>) -> bool {
        let Some((id, text)) = self.prompt.as_ref().filter(|_| item.type_name() == "userMessage") else { return false };
        match item.0.get("clientId").and_then(Value::as_str) {
            Some(client_id) => client_id == id,
            None => item.text().as_ref() == Some(text),
        }
    }

    fn item_started(
        &mut self,
        request: &RpcRequest,
        raw: &Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) -> Option<()> {
        let item = CodexItem(request.params.get("item").filter(|item| item.is_object())?);
        if self.is_prompt(item) {
            return None;
        }
        events.push(AgentEvent::Event(EventData::ItemStarted(item.started()), raw.clone()));
        if let Some(call) = item.call() {
            events.push(AgentEvent::Event(EventData::Message(call), raw.clone()));
        }
        self.open.push(UnfinishedItem { item: item.0.clone(), text: String::new() });
        Some(())
    }

    fn item_completed(
        &mut self,
        request: &RpcRequest,
        raw: &Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) -> Option<()> {
        let item = CodexItem(request.params.get("item").filter(|item| item.is_object())?);
        if self.is_prompt(item) || self.was_closed(item.id()) {
            return None;
        }
        let open = self.open.iter().position(|open| CodexItem(&open.item).id() == item.id());
        let child_threads = open.map(|at| self.open.remove(at)).is_some();
        if let Some(call) = item.call().filter(|_| !child_threads) {
            events.push(AgentEvent::Event(EventData::Message(call), raw.clone()));
        }
        events.push(AgentEvent::Event(EventData::ItemCompleted(item.completed()), raw.clone()));
        if let Some(message) = item.completed_message() {
            events.push(AgentEvent::Event(EventData::Message(message), raw.clone()));
        }
        Some(())
    }

    fn delta(
        &mut self,
        kind: ItemKind,
        request: &RpcRequest,
        raw: &Option<RawMessage>,
        events: &mut Vec<AgentEvent>,
    ) -> Option<()> {
        let item_id = request.params.get("itemId")?.as_str()?.to_owned();
        let delta = request.params.get("delta")?.as_str()?.to_owned();
        if self.was_closed(&item_id) {
            return None;
        }
        let open = self.open.iter_mut().find(|open| CodexItem(&open.item).id() == item_id);
        if let Some(open) = open.filter(|_| kind != ItemKind::Tool) {
            open.text.push_str(&delta);
        }
        events.push(AgentEvent::Event(EventData::ItemDelta(ItemDelta { item_id, kind, delta }), raw.clone()));
        Some(())
    }

    fn usage(&mut self, request: &RpcRequest, raw: &Option<RawMessage>, events: &mut Vec<AgentEvent>) -> Option<()> {
        let all = request.params.get("tokenUsage")?;
        let last = all.get("last")?;
        let count = |key: &str| last.get(key).and_then(Value::as_u64);
        let usage = TokenUsage {
            input_tokens: count("inputTokens"),
            output_tokens: count("outputTokens"),
            cached_input_tokens: count("cachedInputTokens"),
            cost_usd: None,
            context_window: all.get("modelContextWindow").and_then(Value::as_u64),
            details: Some(all.clone()),
        };
        if self.turn != TurnPhase::None {
            let before = self.turn_usage.take().unwrap_or_default();
            let sum = |before: Option<u64>, now: Option<u64>| match (before, now) {
                (None, None) => None,
                (before, now) => Some(before.unwrap_or_default().saturating_add(now.unwrap_or_default())),
            };
            self.turn_usage = Some(TokenUsage {
                input_tokens: sum(before.input_tokens, usage.input_tokens),
                output_tokens: sum(before.output_tokens, usage.output_tokens),
                cached_input_tokens: sum(before.cached_input_tokens, usage.cached_input_tokens),
                context_window: usage.context_window,
                ..TokenUsage::default()
            });
        }
        events.push(AgentEvent::Event(EventData::Usage(usage), raw.clone()));
        Some(())
    }

    fn error(request: &RpcRequest, raw: &Option<RawMessage>, events: &mut Vec<AgentEvent>) -> Option<()> {
        if request.params.get("willRetry") == Some(&Value::Bool(true)) {
            return None;
        }
        let error = request.params.get("error")?;
        let message = error.get("message")?.as_str()?;
        events.push(AgentEvent::Event(EventData::error("error", message, Some(error.clone())), raw.clone()));
        Some(())
    }

    fn resolved(&mut self, request: &RpcRequest, events: &mut Vec<AgentEvent>) -> Option<()> {
        let request = request.params.get("requestId")?;
        let id = self.requests.iter().find(|(_, pending)| pending.id == *request).map(|(id, _)| id.clone())?;
        self.requests.remove(&id);
        events.push(AgentEvent::Withdrawn(id));
        Some(())
    }
}

pub(super) fn notice(label: &str, details: Value, raw: Option<RawMessage>) -> AgentEvent {
    let details = Some(details).filter(|details| !details.is_null());
    AgentEvent::Event(EventData::Notice(Notice { label: label.to_owned(), details }), raw)
}
