//! Whole messages: what the agent says, and what its tools give.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{
    Converter,
    items::{Item, Outcome},
    native::{Native, flag, list, text},
    stream::kind_of,
};
use crate::{
    agent::Fact,
    schema::{EventData, ItemKind, ItemStatus, Message, Notice, ParsedMessage, Part},
};

/// How many blocks of a message are told one by one. A message of the agent has one, and one of its tools' as many as it
/// used at once.
const BLOCKS: usize = 1_024;

/// How much of what a message says is remembered.
const REMEMBERED: usize = 1024 * 1024;

/// The last words of a turn, by which its result is known again.
#[derive(Debug, Default)]
pub(super) struct Said {
    message: String,
    /// All that the message said, and the last of it.
    whole: String,
    last: String,
}

// === impl Said ===

impl Said {
    fn text(&mut self, message: &str, text: &str) {
        if self.message != message {
            *self = Self { message: message.to_owned(), ..Self::default() };
        }
        if self.whole.len().saturating_add(text.len()) <= REMEMBERED {
            self.whole.push_str(text);
        }
        text.clone_into(&mut self.last);
    }

    /// Whether this was said.
    pub(super) fn was(&self, text: &str) -> bool {
        [&self.whole, &self.last].iter().any(|said| said.trim() == text.trim())
    }
}

// === impl Converter ===

impl Converter {
    pub(super) fn assistant(&mut self, native: Native<'_>, facts: &mut Vec<Fact>) {
        let message = native.value.get("message").unwrap_or(&Value::Null);
        let id = text(message, "id").unwrap_or_default();
        let content = content(message);
        let (blocks, rest) = content.split_at(content.len().min(BLOCKS));
        let mut parts = Vec::new();
        for block in blocks {
            self.block(native, id, block, facts);
            parts.extend(match kind_of(block) {
                ItemKind::Message => Some(Part::text(text(block, "text").unwrap_or_default())),
                ItemKind::Reasoning => None,
                ItemKind::Tool => Some(Part::ToolCall {
                    id: text(block, "id").map(str::to_owned),
                    name: text(block, "name").unwrap_or_default().to_owned(),
                    input: block.get("input").cloned().unwrap_or_default(),
                }),
                ItemKind::Plan | ItemKind::Other => Some(Part::Unknown { raw: block.clone() }),
            });
        }
        facts.extend(too_many(native, rest));
        if !parts.is_empty() {
            facts.push(self.said(native, "assistant", text(message, "id"), parts));
        } else if facts.is_empty() {
            facts.push(native.notice("assistant"));
        }
    }

    /// The items of a block that is whole.
    fn block(&mut self, native: Native<'_>, message: &str, block: &Value, facts: &mut Vec<Fact>) {
        let kind = kind_of(block);
        let said = text(block, if kind == ItemKind::Reasoning { "thinking" } else { "text" });
        let id = match (kind, text(block, "id")) {
            (ItemKind::Tool, Some(id)) => id.to_owned(),
            _ => self.items.block(message, kind),
        };
        let name = (kind == ItemKind::Tool).then(|| text(block, "name").unwrap_or_default().to_owned());
        let parent = native.parent().map(str::to_owned);
        let item = Item { id: id.clone(), kind, name, message: message.to_owned(), parent, plan: None };
        let input = (kind == ItemKind::Tool).then(|| block.get("input").cloned()).flatten();
        let plan = input.as_ref().and_then(|input| text(input, "plan")).map(str::to_owned);
        facts.extend(self.items.start(item, input).map(|data| native.event(data)));
        if kind == ItemKind::Tool {
            // It is under way until it has given something.
            if let Some(item) = self.items.get_mut(&id) {
                item.plan = plan;
            }
            return;
        }
        if let (ItemKind::Message, Some(said), None) = (kind, said, native.parent()) {
            self.said.text(message, said);
        }
        let status = if flag(native.value, "aborted") { ItemStatus::Interrupted } else { ItemStatus::Completed };
        let outcome = Outcome { text: said.map(str::to_owned), output: None };
        facts.extend(self.items.finish(&id, status, outcome).map(|data| native.event(data)));
    }

    pub(super) fn user(&mut self, native: Native<'_>, facts: &mut Vec<Fact>) {
        if flag(native.value, "isReplay") {
            // A prompt of ours, which the session has told already.
            facts.push(native.murmur("user.replay"));
            return;
        }
        let message = native.value.get("message").unwrap_or(&Value::Null);
        let content = content(message);
        if !content.iter().any(|block| text(block, "type") == Some("tool_result")) {
            facts.push(self.in_the_users_name(native, &content));
            return;
        }
        let (blocks, rest) = content.split_at(content.len().min(BLOCKS));
        let mut parts = Vec::new();
        for block in blocks {
            parts.push(match text(block, "type") {
                Some("tool_result") => self.tool_result(native, block, facts),
                _ => plain(block),
            });
        }
        facts.extend(too_many(native, rest));
        facts.push(self.said(native, "tool", None, parts));
    }

    /// Words that the agent itself puts down as the user's: what a subagent is told to do, or a remark.
    fn in_the_users_name(&self, native: Native<'_>, content: &[Value]) -> Fact {
        if native.parent().is_some() {
            return self.said(native, "user", None, content.iter().map(plain).collect());
        }
        let words: Vec<_> = content.iter().filter_map(|block| text(block, "text")).collect();
        let details = Some(json!({"text": words.join("\n")}));
        native.event(EventData::Notice(Notice { label: "user".into(), details }))
    }

    fn tool_result(&mut self, native: Native<'_>, block: &Value, facts: &mut Vec<Fact>) -> Part {
        let id = text(block, "tool_use_id").unwrap_or_default();
        let name = self.items.get(id).and_then(|item| item.name.clone());
        let output = block.get("content").cloned().unwrap_or_default();
        let is_error = flag(block, "is_error");
        let status = match (is_error, was_declined(native, id)) {
            (false, _) => ItemStatus::Completed,
            (true, true) if self.turn.is_interrupted() => ItemStatus::Interrupted,
            (true, true) => ItemStatus::Declined,
            (true, false) => ItemStatus::Failed,
        };
        let outcome = Outcome { text: None, output: Some(output.clone()) };
        facts.extend(self.items.finish(id, status, outcome).map(|data| native.event(data)));
        Part::ToolResult { id: Some(id.to_owned()), name, output, is_error: Some(is_error) }
    }

    /// A message of the log.
    fn said(&self, native: Native<'_>, role: &str, id: Option<&str>, parts: Vec<Part>) -> Fact {
        let mut metadata = Map::new();
        for (key, name) in [
            ("parent_tool_use_id", "parentToolUseId"),
            ("subagent_type", "subagentType"),
            ("error", "error"),
            ("api_error_status", "apiErrorStatus"),
            ("aborted", "aborted"),
        ] {
            if let Some(value) = native.value.get(key).filter(|value| !value.is_null()) {
                metadata.insert(name.to_owned(), value.clone());
            }
        }
        let message = ParsedMessage { role: role.to_owned(), id: id.map(str::to_owned), metadata, parts };
        native.event(EventData::Message(Message::Parsed(message)))
    }
}

/// The blocks of a message. A message of words alone may come without blocks.
fn content(message: &Value) -> Cow<'_, [Value]> {
    match message.get("content") {
        Some(Value::String(words)) => Cow::Owned(vec![json!({"type": "text", "text": words})]),
        _ => Cow::Borrowed(list(message, "content")),
    }
}

/// The blocks that are too many to be told one by one.
fn too_many(native: Native<'_>, rest: &[Value]) -> Option<Fact> {
    (!rest.is_empty()).then(|| native.event(EventData::Raw(rest.to_vec().into())))
}

/// A block that is words, or something else.
fn plain(block: &Value) -> Part {
    match (text(block, "type"), text(block, "text")) {
        (Some("text"), Some(words)) => Part::text(words),
        _ => Part::Unknown { raw: block.clone() },
    }
}

/// Whether the tool was not run because somebody said no.
fn was_declined(native: Native<'_>, id: &str) -> bool {
    list(native.value, "tool_result_meta").iter().filter(|meta| text(meta, "id") == Some(id)).any(|meta| {
        meta.get("non_execution_kind").is_some_and(|kind| !kind.is_null())
            || meta.get("permission_decision").and_then(|made| text(made, "decision")) == Some("reject")
    })
}
