//! A message of the agent, read and as it came.

use serde_json::{Map, Value};

use crate::{
    agent::{Fact, Raw},
    schema::{EventData, Notice},
};

/// A message of the agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Native<'a> {
    pub(super) value: &'a Value,
    raw: &'a Raw,
}

/// A text of an object.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// A list of an object, empty if there is none.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A flag of an object.
pub(super) fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or_default()
}

// === impl Native ===

impl<'a> Native<'a> {
    /// Fields that say which message it is and nothing about what it says.
    const ENVELOPE: [&'static str; 5] = ["type", "subtype", "uuid", "session_id", "timestamp"];

    pub(super) const fn new(value: &'a Value, raw: &'a Raw) -> Self {
        Self { value, raw }
    }

    /// As it came.
    pub(super) fn raw(self) -> Option<Raw> {
        Some(Raw::clone(self.raw))
    }

    /// A fact that it told.
    pub(super) fn event(self, data: EventData) -> Fact {
        Fact::Event(data, self.raw())
    }

    /// Small talk, without its words: they are in what is kept as it came.
    pub(super) fn murmur(self, label: impl Into<String>) -> Fact {
        self.event(EventData::Notice(Notice { label: label.into(), details: None }))
    }

    /// Small talk.
    pub(super) fn notice(self, label: impl Into<String>) -> Fact {
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

    /// The use of a tool on whose behalf a subagent says it.
    pub(super) fn parent(self) -> Option<&'a str> {
        self.text("parent_tool_use_id")
    }
}
