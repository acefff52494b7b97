//! Converts Claude Code's output, line by line, to events. Does no I/O.

mod attachments;
mod blocks;
mod items;
mod native;
mod requests;
mod result;
mod stream;
mod turn;

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

pub use self::requests::ClaudeRequest;
pub(super) use self::requests::ClaudeRequestKind;
use self::{
    blocks::LastMessage,
    items::OpenItems,
    native::{ClaudeMessage, list, text},
    stream::PartialMessages,
    turn::ClaudeTurn,
};
use super::launch;
use crate::{
    agent::{AgentEvent, AgentMode, PermissionMode, raw},
    json_line,
    schema::EventData,
};

/// The state that is needed to convert the next line.
#[derive(Debug)]
pub struct ClaudeConverter {
    /// Whether the agent has sent its first `init` message.
    initialized: bool,
    native_id: Option<String>,
    model: Option<String>,
    turn: ClaudeTurn,
    items: OpenItems,
    streams: PartialMessages,
    last_message: LastMessage,
    requests: BTreeMap<String, ClaudeRequest>,
    pending_response: Option<PendingResponse>,
    replies: Vec<Value>,
    /// Cost of the conversation so far.
    cost: f64,
    /// Error of the last failed turn.
    failure: Option<String>,
    /// The agent mode that was requested: for Claude Code, plan mode is a permission mode.
    agent_mode: AgentMode,
    /// Whether it was started with permission to bypass; otherwise a report of that mode is ignored.
    may_bypass: bool,
    read_plan: PlanReader,
}

/// Reads a plan that the agent refers to by its path.
struct PlanReader(Box<PlanReaderFn>);

type PlanReaderFn = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A request of ours that waits for its response.
#[derive(Debug)]
struct PendingResponse {
    id: String,
    result: Option<Result<Value, String>>,
}

/// Message types that are logged as notices.
const NOTICE_TYPES: [&str; 9] = [
    "auth_status",
    "command_lifecycle",
    "control_request_progress",
    "keep_alive",
    "prompt_suggestion",
    "rate_limit_event",
    "streamlined_text",
    "tool_progress",
    "tool_use_summary",
];

/// How many bytes of raw messages the events of one line may hold together. Above it, only the last event keeps the raw
/// message.
const MAX_RAW_TOTAL: usize = 4 * 1024 * 1024;

// === impl PlanReader ===

impl fmt::Debug for PlanReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadPlan")
    }
}

// === impl ClaudeConverter ===

impl ClaudeConverter {
    /// `read_plan` reads a plan that the agent refers to by its path.
    pub fn new(read_plan: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self {
            initialized: false,
            native_id: None,
            model: None,
            turn: ClaudeTurn::default(),
            items: OpenItems::default(),
            streams: PartialMessages::default(),
            last_message: LastMessage::default(),
            requests: BTreeMap::new(),
            pending_response: None,
            replies: Vec::new(),
            cost: 0.0,
            failure: None,
            agent_mode: AgentMode::default(),
            may_bypass: false,
            read_plan: PlanReader(Box::new(read_plan)),
        }
    }

    /// Sets whether the agent was started with permission to bypass.
    pub const fn set_may_bypass(&mut self, may_bypass: bool) {
        self.may_bypass = may_bypass;
    }

    /// Sets the requested agent mode.
    pub const fn set_agent_mode(&mut self, mode: AgentMode) {
        self.agent_mode = mode;
    }

    /// The events of a line: at least one, unless it is blank.
    pub fn convert_line(&mut self, line: &[u8]) -> Vec<AgentEvent> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Vec::new();
        }
        let read = json_line::parse::<Value>(line).map(|value| (value, json_line::to_raw(line)));
        match read {
            Ok((value, Some(raw))) => limit_raw(self.message(ClaudeMessage::new(&value, &raw)), line.len()),
            Ok((_, None)) => vec![unparsed(line, "it cannot be kept".to_owned())],
            Err(error) => vec![unparsed(line, error)],
        }
    }

    /// The events of a line that was truncated.
    pub fn convert_truncated(&mut self, line: &[u8], longest: usize) -> Vec<AgentEvent> {
        vec![unparsed(json_line::truncated(line), format!("a line of more than {longest} bytes"))]
    }

    /// Records that a prompt with this id was sent.
    pub fn prompt_sent(&mut self, id: impl Into<String>) {
        self.turn = ClaudeTurn::prompted(id);
    }

    /// Records that an interrupt was sent.
    pub fn interrupt_sent(&mut self) {
        self.turn.interrupt();
    }

    /// Completes all open items at the end of the output.
    pub fn close_all(&mut self) -> Vec<AgentEvent> {
        self.items.interrupt_all().into_iter().map(AgentEvent::event).collect()
    }

    /// The pending request of this id.
    pub fn request(&self, id: &str) -> Option<&ClaudeRequest> {
        self.requests.get(id)
    }

    /// Removes a request that was answered.
    pub fn remove_request(&mut self, id: &str) {
        self.requests.remove(id);
    }

    /// Takes responses to requests that are not supported.
    pub fn take_replies(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.replies)
    }

    /// Waits for the response to the request of this id, and to no other.
    pub fn expect_response(&mut self, id: impl Into<String>) {
        self.pending_response = Some(PendingResponse { id: id.into(), result: None });
    }

    /// Takes the awaited response once it has arrived.
    pub fn take_response(&mut self) -> Option<Result<Value, String>> {
        let result = self.pending_response.as_mut()?.result.take()?;
        self.pending_response = None;
        Some(result)
    }

    /// The agent's own id of the conversation.
    pub fn native_id(&self) -> Option<&str> {
        self.native_id.as_deref()
    }

    /// The error with which the agent exited before its first turn.
    pub fn startup_error(&self) -> Option<&str> {
        self.failure.as_deref().filter(|_| !self.initialized)
    }

    fn message(&mut self, native: ClaudeMessage<'_>) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        match native.text("type") {
            Some("system") => self.system(native, &mut events),
            Some("assistant") => self.assistant(native, &mut events),
            Some("user") => self.user(native, &mut events),
            Some("stream_event") => self.stream_event(native, &mut events),
            Some("result") => self.result(native, &mut events),
            Some("control_request") => self.control_request(native, &mut events),
            Some("control_cancel_request") => self.control_cancel_request(native, &mut events),
            Some("control_response") => self.control_response(native, &mut events),
            Some("command_lifecycle") => self.command_lifecycle(native, &mut events),
            Some(kind) if NOTICE_TYPES.contains(&kind) => events.push(native.notice(kind)),
            _ => events.push(native.event(EventData::Raw(native.value.clone()))),
        }
        events
    }

    fn system(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        match native.text("subtype") {
            Some("init") => self.init(native, events),
            Some(subtype) => {
                events.extend(native.text("permissionMode").and_then(|name| self.modes(name)));
                events.push(native.notice(format!("system.{subtype}")));
            }
            None => events.push(native.notice("system")),
        }
    }

    /// The modes behind Claude Code's name for them; `None` for unknown or impossible ones.
    fn modes(&mut self, name: &str) -> Option<AgentEvent> {
        let mode = match name {
            "plan" => PermissionMode::Plan,
            "default" => PermissionMode::Default,
            "acceptEdits" => PermissionMode::AcceptEdits,
            launch::BYPASS if self.may_bypass => PermissionMode::Bypass,
            _ => return None,
        };
        if mode != PermissionMode::Plan {
            self.agent_mode = AgentMode::Build;
        }
        Some(AgentEvent::Modes(self.agent_mode, mode))
    }

    /// The agent sends `init` at the start of every turn.
    fn init(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        if self.turn.started(native.value) {
            events.push(AgentEvent::TurnStarted);
        }
        let id = native.text("session_id").map(str::to_owned);
        if let Some(id) = id.filter(|id| self.native_id.as_ref() != Some(id)) {
            self.native_id = Some(id.clone());
            events.push(AgentEvent::NativeId(id));
        }
        self.model = native.text("model").map(str::to_owned);
        if self.initialized {
            events.push(native.notice_without_details("system.init"));
        } else {
            self.initialized = true;
            events.push(native.event(EventData::started("system.init", Some(native.value.clone()))));
        }
    }

    /// The response to a request of ours.
    fn control_response(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        events.push(native.notice_without_details("control_response"));
        let Some(response) = native.value.get("response") else { return };
        let result = match text(response, "subtype") {
            Some("error") => Err(text(response, "error").unwrap_or("it did not say why").to_owned()),
            _ => Ok(response.get("response").cloned().unwrap_or_default()),
        };
        // An interrupt cancelled a prompt that the agent had not started.
        let cancelled = result.as_ref().map_or(&[][..], |result| list(result, "cancelled"));
        if cancelled.iter().filter_map(Value::as_str).any(|id| self.turn.cancelled(id)) {
            self.prompt_cancelled(native, events);
        }
        if let Some(pending_response) = self
            .pending_response
            .as_mut()
            .filter(|pending_response| text(response, "request_id") == Some(&pending_response.id))
        {
            pending_response.result = Some(result);
        }
    }

    /// The state of a prompt.
    fn command_lifecycle(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        events.push(native.notice("command_lifecycle"));
        let id = native.text("command_uuid").unwrap_or_default();
        match native.text("state") {
            Some("started") => self.turn.prompt_started(id),
            Some("cancelled") if self.turn.cancelled(id) => self.prompt_cancelled(native, events),
            _ => {}
        }
    }
}

/// Drops raw messages from all events but the last one if they are too large together.
fn limit_raw(mut events: Vec<AgentEvent>, length: usize) -> Vec<AgentEvent> {
    if events.len().saturating_mul(length) > MAX_RAW_TOTAL {
        let words = events.iter_mut().rev().filter_map(|event| match event {
            AgentEvent::Event(_, raw)
            | AgentEvent::TurnEnded { raw, .. }
            | AgentEvent::PermissionAsked(_, raw)
            | AgentEvent::QuestionAsked(_, raw) => Some(raw),
            _ => None,
        });
        words.skip(1).for_each(|raw| *raw = None);
    }
    events
}

fn unparsed(line: &[u8], error: String) -> AgentEvent {
    let line = Value::String(String::from_utf8_lossy(line).into_owned());
    let raw = raw(&line);
    AgentEvent::Event(EventData::unparsed(line, error), raw)
}
