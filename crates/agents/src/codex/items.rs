//! Converts items, the parts of a turn, to the universal schema.

use serde_json::{Map, Value, json};

use crate::schema::{
    AttachmentSource, ItemCompleted, ItemKind, ItemStarted, ItemStatus, MessagePart, ParsedMessage, UniversalMessage,
};

/// Fields that are not part of a tool's input.
const METADATA_FIELDS: &[&str] = &["id", "type", "status", "startedAtMs", "completedAtMs", "durationMs", "pluginId"];
/// Output fields of tools without a special case.
const OUTPUT_FIELDS: &[&str] =
    &["output", "result", "results", "error", "contentItems", "success", "agentsStates", "failure", "savedPath"];

/// An item of the app-server.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodexItem<'a>(pub(super) &'a Value);

// === impl CodexItem ===

impl<'a> CodexItem<'a> {
    fn text_of(self, key: &str) -> Option<&'a str> {
        self.0.get(key)?.as_str()
    }

    fn value_of(self, key: &str) -> Value {
        self.0.get(key).cloned().unwrap_or_default()
    }

    pub(super) fn id(self) -> &'a str {
        self.text_of("id").unwrap_or_default()
    }

    pub(super) fn type_name(self) -> &'a str {
        self.text_of("type").unwrap_or_default()
    }

    pub(super) fn kind(self) -> ItemKind {
        match self.type_name() {
            "agentMessage" => ItemKind::Message,
            "reasoning" => ItemKind::Reasoning,
            "plan" => ItemKind::Plan,
            "commandExecution"
            | "fileChange"
            | "mcpToolCall"
            | "dynamicToolCall"
            | "functionCallOutput"
            | "collabAgentToolCall"
            | "webSearch"
            | "imageView"
            | "imageGeneration"
            | "sleep" => ItemKind::Tool,
            _ => ItemKind::Other,
        }
    }

    pub(super) fn text(self) -> Option<String> {
        match self.type_name() {
            "agentMessage" | "plan" => self.text_of("text").map(str::to_owned),
            "userMessage" => Some(user_text(self.0)),
            "reasoning" => {
                let lines = |key| self.0.get(key).and_then(Value::as_array).into_iter().flatten();
                let request: Vec<&str> = lines("summary").chain(lines("content")).filter_map(Value::as_str).collect();
                Some(request.join("\n\n"))
            }
            _ => None,
        }
    }

    pub(super) fn name(self) -> Option<String> {
        if self.kind() != ItemKind::Tool {
            return None;
        }
        let (namespace, tool) = match self.type_name() {
            "mcpToolCall" => (self.text_of("server"), self.text_of("tool")),
            "dynamicToolCall" => (self.text_of("namespace"), self.text_of("tool")),
            "functionCallOutput" => (self.text_of("namespace"), self.text_of("name")),
            _ => (None, None),
        };
        Some(match (namespace, tool) {
            (Some(namespace), Some(tool)) => format!("{namespace}.{tool}"),
            (None, Some(tool)) => tool.to_owned(),
            (_, None) => self.type_name().to_owned(),
        })
    }

    /// Input of the tool.
    pub(super) fn input(self) -> Value {
        match self.type_name() {
            "commandExecution" => json!({"command": self.value_of("command"), "cwd": self.value_of("cwd")}),
            "fileChange" => json!({"changes": self.value_of("changes")}),
            "mcpToolCall" | "dynamicToolCall" => self.value_of("arguments"),
            _ => Value::Object(self.fields(|key| !METADATA_FIELDS.contains(&key) && !OUTPUT_FIELDS.contains(&key))),
        }
    }

    /// Output of the tool.
    pub(super) fn output(self) -> Value {
        match self.type_name() {
            "commandExecution" => Value::String(self.text_of("aggregatedOutput").unwrap_or_default().to_owned()),
            "fileChange" => json!({"status": self.value_of("status"), "paths": self.paths()}),
            "mcpToolCall" => match self.value_of("error") {
                Value::Null => self.value_of("result"),
                error => error,
            },
            "functionCallOutput" => self.value_of("output"),
            _ => Value::Object(self.fields(|key| OUTPUT_FIELDS.contains(&key))),
        }
    }

    /// The files that it changes or moves to.
    pub(super) fn paths(self) -> Vec<String> {
        let changes = self.0.get("changes").and_then(Value::as_array).into_iter().flatten();
        changes
            .flat_map(|change| [change.get("path"), change.pointer("/kind/move_path")])
            .filter_map(|path| Some(path?.as_str()?.to_owned()))
            .collect()
    }

    pub(super) fn status(self) -> ItemStatus {
        let exit_code = self.0.get("exitCode").and_then(Value::as_i64);
        match self.text_of("status") {
            Some("declined") => ItemStatus::Declined,
            Some("interrupted") => ItemStatus::Interrupted,
            Some("failed") => ItemStatus::Failed,
            _ if exit_code.is_some_and(|code| code != 0) => ItemStatus::Failed,
            _ if self.0.get("success") == Some(&Value::Bool(false)) => ItemStatus::Failed,
            _ => ItemStatus::Completed,
        }
    }

    fn fields(self, keep: impl Fn(&str) -> bool) -> Map<String, Value> {
        let fields = self.0.as_object().into_iter().flatten();
        fields
            .filter(|(key, value)| keep(key) && !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Metadata of its message.
    pub(super) fn metadata(self) -> Map<String, Value> {
        let mut metadata = Map::new();
        metadata.insert("itemType".to_owned(), self.type_name().into());
        metadata.extend(self.fields(|key| {
            matches!(key, "phase" | "delivery" | "questions" | "status" | "exitCode" | "durationMs" | "clientId")
        }));
        metadata
    }

    pub(super) fn started(self) -> ItemStarted {
        let input = (self.kind() == ItemKind::Tool).then(|| self.input());
        ItemStarted { item_id: self.id().to_owned(), kind: self.kind(), name: self.name(), input }
    }

    pub(super) fn completed(self) -> ItemCompleted {
        ItemCompleted {
            item_id: self.id().to_owned(),
            kind: self.kind(),
            name: self.name(),
            text: self.text(),
            output: (self.kind() == ItemKind::Tool).then(|| self.output()),
            status: self.status(),
        }
    }

    fn message(self, role: &str, parts: Vec<MessagePart>) -> UniversalMessage {
        let id = Some(self.id().to_owned()).filter(|id| !id.is_empty());
        UniversalMessage::Parsed(ParsedMessage { role: role.to_owned(), id, metadata: self.metadata(), parts })
    }

    /// The message of a tool call.
    pub(super) fn call(self) -> Option<UniversalMessage> {
        let (name, id) = (self.name()?, Some(self.id().to_owned()));
        Some(self.message("assistant", vec![MessagePart::ToolCall { id, name, input: self.input() }]))
    }

    /// The message of a completed item; reasoning has none.
    pub(super) fn completed_message(self) -> Option<UniversalMessage> {
        match self.kind() {
            ItemKind::Reasoning => None,
            ItemKind::Message | ItemKind::Plan => {
                Some(self.message("assistant", vec![MessagePart::text(self.text().unwrap_or_default())]))
            }
            ItemKind::Tool => {
                let result = MessagePart::ToolResult {
                    id: Some(self.id().to_owned()),
                    name: self.name(),
                    output: self.output(),
                    is_error: Some(self.status() != ItemStatus::Completed),
                };
                Some(self.message("tool", std::iter::once(result).chain(self.images()).collect()))
            }
            ItemKind::Other if self.type_name() == "userMessage" => Some(self.message("user", user_parts(self.0))),
            ItemKind::Other => Some(self.message("assistant", vec![MessagePart::Unknown { raw: self.0.clone() }])),
        }
    }

    /// The images that a tool returned.
    fn images(self) -> Vec<MessagePart> {
        let path = |key| Some(image(AttachmentSource::Path { path: self.text_of(key)?.to_owned() }, None));
        match self.type_name() {
            "imageView" => path("path").into_iter().collect(),
            "imageGeneration" => path("savedPath").into_iter().collect(),
            "dynamicToolCall" => list(self.0.get("contentItems")).filter_map(input_image).collect(),
            "mcpToolCall" => list(self.0.pointer("/result/content")).filter_map(mcp_image).collect(),
            _ => Vec::new(),
        }
    }
}

fn image(source: AttachmentSource, mime_type: Option<String>) -> MessagePart {
    MessagePart::Image { source, mime_type, alt: None, raw: None }
}

/// An image of a client's own tool.
fn input_image(content: &Value) -> Option<MessagePart> {
    let url = content.get("imageUrl")?.as_str()?.to_owned();
    Some(image(AttachmentSource::Url { url }, None))
}

/// An image as MCP servers return it.
fn mcp_image(content: &Value) -> Option<MessagePart> {
    let field = |key: &str| Some(content.get(key)?.as_str()?.to_owned());
    field("type").filter(|kind| kind == "image")?;
    let source = AttachmentSource::Data { data: field("data")?, encoding: Some("base64".to_owned()) };
    Some(image(source, field("mimeType")))
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn contents(item: &Value) -> impl Iterator<Item = &Value> {
    list(item.get("content"))
}

fn user_text(item: &Value) -> String {
    let texts: Vec<&str> = contents(item).filter_map(|content| content.get("text")?.as_str()).collect();
    texts.join("\n")
}

fn user_parts(item: &Value) -> Vec<MessagePart> {
    let part = |content: &Value| {
        let field = |key: &str| Some(content.get(key)?.as_str()?.to_owned());
        match field("type").as_deref() {
            Some("text") => field("text").map(MessagePart::text),
            Some("image") => field("url").map(|url| image(AttachmentSource::Url { url }, None)),
            Some("localImage") => field("path").map(|path| image(AttachmentSource::Path { path }, None)),
            _ => None,
        }
        .unwrap_or_else(|| MessagePart::Unknown { raw: content.clone() })
    };
    contents(item).map(part).collect()
}
