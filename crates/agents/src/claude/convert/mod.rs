//! What Claude Code says, line by line, as facts. Knows nothing of processes and files.

mod ask;
mod blocks;
mod end;
mod items;
mod native;
mod stream;
mod turn;

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

pub use self::ask::Asked;
pub(super) use self::ask::AskedKind;
use self::{
    blocks::Said,
    items::Items,
    native::{Native, list, text},
    stream::Streams,
    turn::Turn,
};
use super::launch;
use crate::{
    agent::{AgentMode, Fact, PermissionMode, raw},
    schema::EventData,
    words,
};

/// What is to be known of earlier lines to understand the next one.
#[derive(Debug)]
pub struct Converter {
    /// Whether the agent has introduced itself.
    introduced: bool,
    native_id: Option<String>,
    model: Option<String>,
    turn: Turn,
    items: Items,
    streams: Streams,
    said: Said,
    asked: BTreeMap<String, Asked>,
    awaited: Option<Awaited>,
    replies: Vec<Value>,
    /// What the conversation has cost so far.
    cost: f64,
    /// The error with which the last turn failed.
    complaint: Option<String>,
    /// How it works, as far as it was told so: for the agent a plan is a mode of its permissions.
    agent_mode: AgentMode,
    /// Whether it was started to bypass permissions: otherwise it cannot, whatever it says.
    may_bypass: bool,
    read_plan: ReadPlan,
}

/// Reads a plan that the agent only names by its file.
struct ReadPlan(Box<Read>);

type Read = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A request of ours whose answer somebody waits for.
#[derive(Debug)]
struct Awaited {
    id: String,
    answer: Option<Result<Value, String>>,
}

/// Kinds of messages that say how the agent is, and nothing of what it does.
const TALK: [&str; 9] = [
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

/// How much of the agent's own words is kept with all of the facts that one line told. Where it would be more, the last of
/// them has the words for all: it tells of the whole line.
const WORDS: usize = 4 * 1024 * 1024;

// === impl ReadPlan ===

impl fmt::Debug for ReadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadPlan")
    }
}

// === impl Converter ===

impl Converter {
    /// A new one. A plan that the agent only names by its file is read by this function.
    pub fn new(read_plan: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self {
            introduced: false,
            native_id: None,
            model: None,
            turn: Turn::default(),
            items: Items::default(),
            streams: Streams::default(),
            said: Said::default(),
            asked: BTreeMap::new(),
            awaited: None,
            replies: Vec::new(),
            cost: 0.0,
            complaint: None,
            agent_mode: AgentMode::default(),
            may_bypass: false,
            read_plan: ReadPlan(Box::new(read_plan)),
        }
    }

    /// Whether the agent was started to bypass permissions.
    pub const fn bypasses(&mut self, may_bypass: bool) {
        self.may_bypass = may_bypass;
    }

    /// The agent was told to work so.
    pub const fn works(&mut self, mode: AgentMode) {
        self.agent_mode = mode;
    }

    /// The facts of a line. One that is not blank has at least one.
    pub fn line(&mut self, line: &[u8]) -> Vec<Fact> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Vec::new();
        }
        let read = words::read::<Value>(line).map(|value| (value, words::as_it_came(line)));
        match read {
            Ok((value, Some(raw))) => sparing(self.message(Native::new(&value, &raw)), line.len()),
            Ok((_, None)) => vec![unparsed(line, "it cannot be kept".to_owned())],
            Err(error) => vec![unparsed(line, error)],
        }
    }

    /// The facts of the beginning of a line that was too long to be read.
    pub fn cut(&mut self, line: &[u8], longest: usize) -> Vec<Fact> {
        vec![unparsed(words::beginning(line), format!("a line of more than {longest} bytes"))]
    }

    /// A prompt with this id was given.
    pub fn prompted(&mut self, id: impl Into<String>) {
        self.turn = Turn::prompted(id);
    }

    /// The agent was told to stop.
    pub fn interrupted(&mut self) {
        self.turn.interrupt();
    }

    /// Nothing follows: what is open is closed.
    pub fn ended(&mut self) -> Vec<Fact> {
        self.items.interrupt_all().into_iter().map(Fact::event).collect()
    }

    /// What the agent asked under this id and still waits for.
    pub fn asked(&self, id: &str) -> Option<&Asked> {
        self.asked.get(id)
    }

    /// What the agent asked under this id was answered.
    pub fn answered(&mut self, id: &str) {
        self.asked.remove(id);
    }

    /// What is to be said to the agent, since it asked for what nobody here can do.
    pub fn take_replies(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.replies)
    }

    /// The answer to the request of this id is wanted, and that to no other any more.
    pub fn expect(&mut self, id: impl Into<String>) {
        self.awaited = Some(Awaited { id: id.into(), answer: None });
    }

    /// The answer that is wanted, once it is there.
    pub fn take_answer(&mut self) -> Option<Result<Value, String>> {
        let answer = self.awaited.as_mut()?.answer.take()?;
        self.awaited = None;
        Some(answer)
    }

    /// The agent's id of the conversation.
    pub fn native_id(&self) -> Option<&str> {
        self.native_id.as_deref()
    }

    /// Why the agent ended before it began, if it said so.
    pub fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref().filter(|_| !self.introduced)
    }

    fn message(&mut self, native: Native<'_>) -> Vec<Fact> {
        let mut facts = Vec::new();
        match native.text("type") {
            Some("system") => self.system(native, &mut facts),
            Some("assistant") => self.assistant(native, &mut facts),
            Some("user") => self.user(native, &mut facts),
            Some("stream_event") => self.stream_event(native, &mut facts),
            Some("result") => self.result(native, &mut facts),
            Some("control_request") => self.control_request(native, &mut facts),
            Some("control_cancel_request") => self.control_cancel_request(native, &mut facts),
            Some("control_response") => self.control_response(native, &mut facts),
            Some("command_lifecycle") => self.command_lifecycle(native, &mut facts),
            Some(kind) if TALK.contains(&kind) => facts.push(native.notice(kind)),
            _ => facts.push(native.event(EventData::Raw(native.value.clone()))),
        }
        facts
    }

    fn system(&mut self, native: Native<'_>, facts: &mut Vec<Fact>) {
        match native.text("subtype") {
            Some("init") => self.init(native, facts),
            Some(subtype) => {
                facts.extend(native.text("permissionMode").and_then(|name| self.modes(name)));
                facts.push(native.notice(format!("system.{subtype}")));
            }
            None => facts.push(native.notice("system")),
        }
    }

    /// The modes that Claude Code tells under one name; of what only it knows, or cannot be, nothing is said.
    fn modes(&mut self, name: &str) -> Option<Fact> {
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
        Some(Fact::Modes(self.agent_mode, mode))
    }

    /// The agent introduces itself at every turn.
    fn init(&mut self, native: Native<'_>, facts: &mut Vec<Fact>) {
        if self.turn.introduced(native.value) {
            facts.push(Fact::TurnStarted);
        }
        let id = native.text("session_id").map(str::to_owned);
        if let Some(id) = id.filter(|id| self.native_id.as_ref() != Some(id)) {
            self.native_id = Some(id.clone());
            facts.push(Fact::NativeId(id));
        }
        self.model = native.text("model").map(str::to_owned);
        if self.introduced {
            facts.push(native.murmur("system.init"));
        } else {
            self.introduced = true;
            facts.push(native.event(EventData::started("system.init", Some(native.value.clone()))));
        }
    }

    /// The agent answers a request of ours.
    fn control_response(&mut self, native: Native<'_>, facts: &mut Vec<Fact>) {
        facts.push(native.murmur("control_response"));
        let Some(response) = native.value.get("response") else { return };
        let answer = match text(response, "subtype") {
            Some("error") => Err(text(response, "error").unwrap_or("it did not say why").to_owned()),
            _ => Ok(response.get("response").cloned().unwrap_or_default()),
        };
        // An interrupt that came before the agent began with the prompt took it back.
        let cancelled = answer.as_ref().map_or(&[][..], |answer| list(answer, "cancelled"));
        if cancelled.iter().filter_map(Value::as_str).any(|id| self.turn.cancelled(id)) {
            self.taken_back(native, facts);
        }
        if let Some(awaited) = self.awaited.as_mut().filter(|awaited| text(response, "request_id") == Some(&awaited.id))
        {
            awaited.answer = Some(answer);
        }
    }

    /// What becomes of a prompt.
    fn command_lifecycle(&mut self, native: Native<'_>, facts: &mut Vec<Fact>) {
        facts.push(native.notice("command_lifecycle"));
        let id = native.text("command_uuid").unwrap_or_default();
        match native.text("state") {
            Some("started") => self.turn.began(id),
            Some("cancelled") if self.turn.cancelled(id) => self.taken_back(native, facts),
            _ => {}
        }
    }
}

/// The facts with the agent's own words, which all of them have as long as that is not too much.
fn sparing(mut facts: Vec<Fact>, length: usize) -> Vec<Fact> {
    if facts.len().saturating_mul(length) > WORDS {
        let words = facts.iter_mut().rev().filter_map(|fact| match fact {
            Fact::Event(_, raw)
            | Fact::TurnEnded { raw, .. }
            | Fact::PermissionAsked(_, raw)
            | Fact::QuestionAsked(_, raw) => Some(raw),
            _ => None,
        });
        words.skip(1).for_each(|raw| *raw = None);
    }
    facts
}

fn unparsed(line: &[u8], error: String) -> Fact {
    let line = Value::String(String::from_utf8_lossy(line).into_owned());
    let raw = raw(&line);
    Fact::Event(EventData::unparsed(line, error), raw)
}
