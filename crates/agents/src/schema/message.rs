//! Messages: who said something, in which parts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Something that was said; or what could not be understood, as it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Message)]
pub enum UniversalMessage {
    /// Understood.
    Parsed(ParsedMessage),
    /// Kept as it came.
    Unparsed(UnparsedMessage),
}

/// Something that was said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ParsedMessage {
    /// `user`, `assistant`, `system` or `tool`.
    pub role: String,
    /// The agent's id of it, or the client's own for a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What else the agent said about it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// What it consists of.
    pub parts: Vec<MessagePart>,
}

/// What could not be understood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UnparsedMessage {
    /// It, as it came.
    pub raw: Value,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A part of a message. Its fields keep their underscores on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = Part)]
pub enum MessagePart {
    /// Words.
    Text {
        /// They.
        text: String,
    },
    /// A tool is used.
    ToolCall {
        /// Which use, so that its result finds it.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Which tool.
        name: String,
        /// On what.
        input: Value,
    },
    /// What a tool gave.
    ToolResult {
        /// Which use.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Which tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// What it gave.
        output: Value,
        /// Whether it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    },
    /// A function is called.
    FunctionCall {
        /// Which call.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Which function.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// With what.
        arguments: Value,
        /// As it came.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// What a function gave.
    FunctionResult {
        /// Which call.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Which function.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// What it gave.
        result: Value,
        /// Whether it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
        /// As it came.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// A file.
    File {
        /// Where it is.
        source: AttachmentSource,
        /// What it is.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
        /// How it is called.
        #[serde(skip_serializing_if = "Option::is_none")]
        filename: Option<String>,
        /// As it came.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// A picture.
    Image {
        /// Where it is.
        source: AttachmentSource,
        /// What it is.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
        /// In words.
        #[serde(skip_serializing_if = "Option::is_none")]
        alt: Option<String>,
        /// As it came.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// Something went wrong within the message.
    Error {
        /// What.
        message: String,
    },
    /// A part of a kind that the schema does not have.
    Unknown {
        /// As it came.
        raw: Value,
    },
}

/// Where a file or a picture is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AttachmentSource {
    /// On the agent's disk.
    Path {
        /// There.
        path: String,
    },
    /// Elsewhere.
    Url {
        /// There.
        url: String,
    },
    /// Here.
    Data {
        /// It.
        data: String,
        /// How it is written down.
        #[serde(skip_serializing_if = "Option::is_none")]
        encoding: Option<String>,
    },
}

// === impl UniversalMessage ===

impl UniversalMessage {
    /// A message with nothing but its role and parts.
    pub fn of(role: &str, parts: Vec<MessagePart>) -> Self {
        Self::Parsed(ParsedMessage { role: role.to_owned(), parts, ..ParsedMessage::default() })
    }
}

// === impl MessagePart ===

impl MessagePart {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    //= agents.universal-schema.parts-text-tool-call
    #[test]
    fn every_kind_of_part_has_its_documented_form() {
        let documented = [
            json!({"type": "text", "text": "a"}),
            json!({"type": "tool_call", "id": "1", "name": "n", "input": {"a": 1}}),
            json!({"type": "tool_result", "id": "1", "name": "n", "output": "o", "is_error": true}),
            json!({"type": "function_call", "id": "1", "name": "n", "arguments": {"a": 1}, "raw": {}}),
            json!({"type": "function_result", "id": "1", "name": "n", "result": "r", "is_error": false, "raw": {}}),
            json!({"type": "file", "source": {"type": "path", "path": "/p"}, "mime_type": "m", "filename": "f", "raw": {}}),
            json!({"type": "image", "source": {"type": "url", "url": "u"}, "mime_type": "m", "alt": "a", "raw": {}}),
            json!({"type": "error", "message": "m"}),
            json!({"type": "unknown", "raw": [1]}),
        ];
        for form in documented {
            let part: MessagePart = serde_json::from_value(form.clone()).unwrap();
            // A match without a wildcard, so that a further kind has to be added here.
            let kind = match &part {
                MessagePart::Text { .. } => "text",
                MessagePart::ToolCall { .. } => "tool_call",
                MessagePart::ToolResult { .. } => "tool_result",
                MessagePart::FunctionCall { .. } => "function_call",
                MessagePart::FunctionResult { .. } => "function_result",
                MessagePart::File { .. } => "file",
                MessagePart::Image { .. } => "image",
                MessagePart::Error { .. } => "error",
                MessagePart::Unknown { .. } => "unknown",
            };
            assert_eq!(form["type"], kind);
            assert_eq!(serde_json::to_value(part).unwrap(), form);
        }
        let data = AttachmentSource::Data { data: "AA==".into(), encoding: Some("base64".into()) };
        assert_eq!(serde_json::to_value(data).unwrap(), json!({"type": "data", "data": "AA==", "encoding": "base64"}));
    }

    //= agents.universal-schema.parts-text-tool-call
    #[test]
    fn absent_fields_of_a_part_are_not_sent() {
        let source = AttachmentSource::Data { data: String::new(), encoding: None };
        let part = MessagePart::File { source, mime_type: None, filename: None, raw: None };
        assert_eq!(
            serde_json::to_value(part).unwrap(),
            json!({"type": "file", "source": {"type": "data", "data": ""}})
        );
        let result = MessagePart::ToolResult { id: None, name: None, output: Value::Null, is_error: None };
        assert_eq!(serde_json::to_value(result).unwrap(), json!({"type": "tool_result", "output": null}));
    }
}
