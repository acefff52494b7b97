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
