//! Partial messages, as the model streams them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    ClaudeConverter,
    items::OpenItem,
    native::{ClaudeMessage, text},
};
use crate::{agent::AgentEvent, schema::ItemKind};

/// The partial message of the main agent and of each subagent.
pub(super) type PartialMessages = BTreeMap<Option<String>, PartialMessage>;

/// A message that is being streamed.
#[derive(Debug, Default)]
pub(super) struct PartialMessage {
    message: String,
    /// Item id of each block, by its index.
    blocks: BTreeMap<u64, String>,
}

impl ClaudeConverter {
    pub(super) fn stream_event(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        let event = native.value.get("event").unwrap_or(&Value::Null);
        let kind = text(event, "type").unwrap_or("event");
        let event_or_none = match kind {
            "message_start" => {
                self.message_start(native, event);
                None
            }
            "content_block_start" => self.block_start(native, event),
            "content_block_delta" => self.block_delta(native, event),
            _ => None,
        };
        events.push(event_or_none.unwrap_or_else(|| native.notice_without_details(format!("stream.{kind}"))));
    }

    fn message_start(&mut self, native: ClaudeMessage<'_>, event: &Value) {
        let message = event.get("message").and_then(|message| text(message, "id")).unwrap_or_default().to_owned();
        self.streams.insert(native.parent().map(str::to_owned), PartialMessage { message, blocks: BTreeMap::new() });
    }

    fn block_start(&mut self, native: ClaudeMessage<'_>, event: &Value) -> Option<AgentEvent> {
        let block = event.get("content_block")?;
        let number = event.get("index")?.as_u64()?;
        let kind = kind_of(block);
        let parent = native.parent().map(str::to_owned);
        let stream = self.streams.entry(parent.clone()).or_default();
        let numbered = self.items.numbered(&stream.message, number);
        let id = if kind == ItemKind::Tool { text(block, "id").map_or(numbered, str::to_owned) } else { numbered };
        stream.blocks.insert(number, id.clone());
        let name = (kind == ItemKind::Tool).then(|| text(block, "name").unwrap_or_default().to_owned());
        let item = OpenItem { id, kind, name, message: stream.message.clone(), parent, plan: None };
        self.items.start(item, None).map(|data| native.event(data))
    }

    fn block_delta(&mut self, native: ClaudeMessage<'_>, event: &Value) -> Option<AgentEvent> {
        let delta = event.get("delta")?;
        let field = match text(delta, "type")? {
            "text_delta" => "text",
            "thinking_delta" => "thinking",
            "input_json_delta" => "partial_json",
            // Signatures and citations are not part of the text.
            _ => return None,
        };
        let stream = self.streams.get(&native.parent().map(str::to_owned))?;
        let id = stream.blocks.get(&event.get("index")?.as_u64()?)?;
        self.items.append(id, text(delta, field)?).map(|data| native.event(data))
    }
}

/// The item kind of a block.
pub(super) fn kind_of(block: &Value) -> ItemKind {
    match text(block, "type") {
        Some("text") => ItemKind::Message,
        Some("thinking" | "redacted_thinking") => ItemKind::Reasoning,
        Some("tool_use") => ItemKind::Tool,
        _ => ItemKind::Other,
    }
}
