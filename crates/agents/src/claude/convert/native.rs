//! A message of Claude Code, parsed and raw.

use serde_json::{Map, Value};

use crate::{
    agent::{AgentEvent, RawMessage},
    schema::{EventData, Notice},
};

#[derive(Clone, Copy, Debug)]
pub(super) struct ClaudeMessage<'a> {
    pub(super) value: &'a Value,
    raw: &'a RawMessage,
}

/// A string field.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// An array field; empty if it is missing.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A boolean field.
pub(super) fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or_default()
}

// === impl ClaudeMessage ===

impl<'a> ClaudeMessage<'a> {
    /// Fields that identify the message and are not part of its content.
    const ENVELOPE: [&'static str; 5] = ["type", "subtype", "uuid", "session_id", "timestamp"];

    pub(super) const fn new(value: &'a Value, raw: &'a RawMessage) -> Self {
        Self { value, raw }
    }

    pub(super) fn raw(self) -> Option<RawMessage> {
        Some(RawMessage::clone(self.raw))
    }

    /// An event with the raw message.
    pub(super) fn event(self, data: EventData) -> AgentEvent {
        AgentEvent::Event(data, self.raw())
    }

    /// A notice without details, which are in the raw message.
    pub(super) fn notice_without_details(self, label: impl Into<String>) -> AgentEvent {
        self.event(EventData::Notice(Notice { label: label.into(), details: None }))
    }

    /// A notice with the message's fields.
    pub(super) fn notice(self, label: impl Into<String>) -> AgentEvent {
        let details: Map<_, _> = self
            .value
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !Self::ENVELOPE.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let details = (!details.is_empty()).then_some(Value::Object(details));
        self.event(EventData::Notice(Notice { label: label.into(), details }))
    }

    pub(super) fn text(self, key: &str) -> Option<&'a str> {
        text(self.value, key)
    }

    /// The tool use that started the subagent which sent it.
    pub(super) fn parent(self) -> Option<&'a str> {
        self.text("parent_tool_use_id")
    }
}
