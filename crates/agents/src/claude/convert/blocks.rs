//! Complete messages: assistant messages and tool results.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{
    ClaudeConverter, attachments,
    items::{ItemOutput, OpenItem},
    native::{ClaudeMessage, flag, list, text},
    stream::kind_of,
};
use crate::{
    agent::AgentEvent,
    schema::{EventData, ItemKind, ItemStatus, MessagePart, Notice, ParsedMessage, UniversalMessage},
};

/// How many blocks of a message are converted one by one. Assistant messages have one; tool messages have one per
/// parallel tool use.
const MAX_BLOCKS: usize = 1_024;

/// How much text of a message is remembered.
const MAX_REMEMBERED: usize = 1024 * 1024;

/// The last message of a turn, to recognize its text in the turn's result.
#[derive(Debug, Default)]
pub(super) struct LastMessage {
    message: String,
    /// The text of all blocks, and of the last one.
    whole: String,
    last: String,
}

// === impl LastMessage ===

impl LastMessage {
    fn text(&mut self, message: &str, text: &str) {
        if self.message != message {
            *self = Self { message: message.to_owned(), ..Self::default() };
        }
        if self.whole.len().saturating_add(text.len()) <= MAX_REMEMBERED {
            self.whole.push_str(text);
        }
        text.clone_into(&mut self.last);
    }

    /// Whether the message had this text.
    pub(super) fn matches(&self, text: &str) -> bool {
        [&self.whole, &self.last].iter().any(|text_of_block| text_of_block.trim() == text.trim())
    }
}

// === impl ClaudeConverter ===

impl ClaudeConverter {
    pub(super) fn assistant(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        let message = native.value.get("message").unwrap_or(&Value::Null);
        let id = text(message, "id").unwrap_or_default();
        let content = content(message);
        let (blocks, rest) = content.split_at(content.len().min(MAX_BLOCKS));
        let mut parts = Vec::new();
        for block in blocks {
            self.block(native, id, block, events);
            parts.extend(match kind_of(block) {
                ItemKind::Message => Some(MessagePart::text(text(block, "text").unwrap_or_default())),
                ItemKind::Reasoning => None,
                ItemKind::Tool => Some(MessagePart::ToolCall {
                    id: text(block, "id").map(str::to_owned),
                    name: text(block, "name").unwrap_or_default().to_owned(),
                    input: block.get("input").cloned().unwrap_or_default(),
                }),
                ItemKind::Plan | ItemKind::Other => Some(attachments::part(block)),
            });
        }
        events.extend(remaining_blocks(native, rest));
        if !parts.is_empty() {
            events.push(self.message_event(native, "assistant", text(message, "id"), parts));
        } else if events.is_empty() {
            events.push(native.notice("assistant"));
        }
    }

    /// Emits the items of a complete block.
    fn block(&mut self, native: ClaudeMessage<'_>, message: &str, block: &Value, events: &mut Vec<AgentEvent>) {
        let kind = kind_of(block);
        let text_of_block = text(block, if kind == ItemKind::Reasoning { "thinking" } else { "text" });
        let id = match (kind, text(block, "id")) {
            (ItemKind::Tool, Some(id)) => id.to_owned(),
            _ => self.items.block(message, kind),
        };
        let name = (kind == ItemKind::Tool).then(|| text(block, "name").unwrap_or_default().to_owned());
        let parent = native.parent().map(str::to_owned);
        let item = OpenItem { id: id.clone(), kind, name, message: message.to_owned(), parent, plan: None };
        let input = (kind == ItemKind::Tool).then(|| block.get("input").cloned()).flatten();
        let plan = input.as_ref().and_then(|input| text(input, "plan")).map(str::to_owned);
        events.extend(self.items.start(item, input).map(|data| native.event(data)));
        if kind == ItemKind::Tool {
            // It stays open until its result arrives.
            if let Some(item) = self.items.get_mut(&id) {
                item.plan = plan;
            }
            return;
        }
        if let (ItemKind::Message, Some(text_of_block), None) = (kind, text_of_block, native.parent()) {
            self.last_message.text(message, text_of_block);
        }
        let status = if flag(native.value, "aborted") { ItemStatus::Interrupted } else { ItemStatus::Completed };
        let outcome = ItemOutput { text: text_of_block.map(str::to_owned), output: None };
        events.extend(self.items.finish(&id, status, outcome).map(|data| native.event(data)));
    }

    pub(super) fn user(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        if flag(native.value, "isReplay") {
            // Our own prompt, which the session has logged already.
            events.push(native.notice_without_details("user.replay"));
            return;
        }
        let message = native.value.get("message").unwrap_or(&Value::Null);
        let content = content(message);
        if !content.iter().any(|block| text(block, "type") == Some("tool_result")) {
            events.push(self.user_message(native, &content));
            return;
        }
        let (blocks, rest) = content.split_at(content.len().min(MAX_BLOCKS));
        let mut parts = Vec::new();
        for block in blocks {
            if text(block, "type") == Some("tool_result") {
                parts.push(self.tool_result(native, block, events));
                parts.extend(attachments::of_result(block));
            } else {
                parts.push(attachments::part(block));
            }
        }
        events.extend(remaining_blocks(native, rest));
        events.push(self.message_event(native, "tool", None, parts));
    }

    /// A message in the user's name that the agent wrote itself: the prompt of a subagent, or a remark.
    fn user_message(&self, native: ClaudeMessage<'_>, content: &[Value]) -> AgentEvent {
        if native.parent().is_some() {
            return self.message_event(native, "user", None, content.iter().map(attachments::part).collect());
        }
        let words: Vec<_> = content.iter().filter_map(|block| text(block, "text")).collect();
        let details = Some(json!({"text": words.join("\n")}));
        native.event(EventData::Notice(Notice { label: "user".into(), details }))
    }

    fn tool_result(&mut self, native: ClaudeMessage<'_>, block: &Value, events: &mut Vec<AgentEvent>) -> MessagePart {
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
        let outcome = ItemOutput { text: None, output: Some(output.clone()) };
        events.extend(self.items.finish(id, status, outcome).map(|data| native.event(data)));
        MessagePart::ToolResult { id: Some(id.to_owned()), name, output, is_error: Some(is_error) }
    }

    /// A message event for the log.
    fn message_event(
        &self,
        native: ClaudeMessage<'_>,
        role: &str,
        id: Option<&str>,
        parts: Vec<MessagePart>,
    ) -> AgentEvent {
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
        native.event(EventData::Message(UniversalMessage::Parsed(message)))
    }
}

/// The blocks of a message. A message with plain text may have no blocks.
fn content(message: &Value) -> Cow<'_, [Value]> {
    match message.get("content") {
        Some(Value::String(words)) => Cow::Owned(vec![json!({"type": "text", "text": words})]),
        _ => Cow::Borrowed(list(message, "content")),
    }
}

/// The blocks beyond the limit, as one raw event.
fn remaining_blocks(native: ClaudeMessage<'_>, rest: &[Value]) -> Option<AgentEvent> {
    (!rest.is_empty()).then(|| native.event(EventData::Raw(rest.to_vec().into())))
}

/// Whether the tool did not run because it was declined.
fn was_declined(native: ClaudeMessage<'_>, id: &str) -> bool {
    list(native.value, "tool_result_meta").iter().filter(|meta| text(meta, "id") == Some(id)).any(|meta| {
        meta.get("non_execution_kind").is_some_and(|kind| !kind.is_null())
            || meta.get("permission_decision").and_then(|made| text(made, "decision")) == Some("reject")
    })
}
