//! Messages: their roles and parts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A message, or an agent's output that could not be parsed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Message)]
pub enum UniversalMessage {
    /// A parsed message.
    Parsed(ParsedMessage),
    /// Output that could not be parsed.
    Unparsed(UnparsedMessage),
}

/// A message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ParsedMessage {
    /// `user`, `assistant`, `system` or `tool`.
    pub role: String,
    /// The agent's id of the message, or the client's own id of a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Further data of the agent.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// The parts of the message.
    pub parts: Vec<MessagePart>,
}

/// Output of the agent that could not be parsed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UnparsedMessage {
    /// The raw output.
    pub raw: Value,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A part of a message. Its fields keep their underscores on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = Part)]
pub enum MessagePart {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// A call of a tool.
    ToolCall {
        /// The id of the call, by which its result refers to it.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The name of the tool.
        name: String,
        /// The input of the tool.
        input: Value,
    },
    /// The result of a tool call.
    ToolResult {
        /// The id of the call.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The name of the tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The output of the tool.
        output: Value,
        /// Whether the tool failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    },
    /// A call of a function.
    FunctionCall {
        /// The id of the call.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The name of the function.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The arguments.
        arguments: Value,
        /// The raw message of the agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// The result of a function call.
    FunctionResult {
        /// The id of the call.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The name of the function.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The result.
        result: Value,
        /// Whether the function failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
        /// The raw message of the agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// A file.
    File {
        /// The location of the file.
        source: AttachmentSource,
        /// The media type.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
        /// The file name.
        #[serde(skip_serializing_if = "Option::is_none")]
        filename: Option<String>,
        /// The raw message of the agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// An image.
    Image {
        /// The location of the image.
        source: AttachmentSource,
        /// The media type.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
        /// An alternative text.
        #[serde(skip_serializing_if = "Option::is_none")]
        alt: Option<String>,
        /// The raw message of the agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// An error within the message.
    Error {
        /// The error message.
        message: String,
    },
    /// A part of a kind that the schema does not know.
    Unknown {
        /// The raw part.
        raw: Value,
    },
}

/// The location of a file or an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AttachmentSource {
    /// A file on the agent's disk.
    Path {
        /// The path.
        path: String,
    },
    /// A URL.
    Url {
        /// The URL.
        url: String,
    },
    /// Inline data.
    Data {
        /// The data.
        data: String,
        /// The encoding of the data.
        #[serde(skip_serializing_if = "Option::is_none")]
        encoding: Option<String>,
    },
}

// === impl UniversalMessage ===

impl UniversalMessage {
    /// A message with only a role and parts.
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
