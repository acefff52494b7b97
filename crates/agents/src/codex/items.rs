//! Items, the pieces of a turn: what each is in the universal schema.

use serde_json::{Map, Value, json};

use crate::schema::{AttachmentSource, ItemCompleted, ItemKind, ItemStarted, ItemStatus, Message, ParsedMessage, Part};

/// What is said of every item, or of how it went, and is no part of what a tool works on.
const ABOUT: &[&str] = &["id", "type", "status", "startedAtMs", "completedAtMs", "durationMs", "pluginId"];
/// What a tool gives, in the items that have no reading of their own.
const GIVEN: &[&str] = &["output", "result", "results", "error", "contentItems", "success", "agentsStates", "failure"];

/// An item, as the app-server tells of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a>(pub(super) &'a Value);

// === impl Item ===

impl<'a> Item<'a> {
    fn text_of(self, key: &str) -> Option<&'a str> {
        self.0.get(key)?.as_str()
    }

    fn value_of(self, key: &str) -> Value {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// Its id.
    pub(super) fn id(self) -> &'a str {
        self.text_of("id").unwrap_or_default()
    }

    /// Codex's word for what it is.
    pub(super) fn word(self) -> &'a str {
        self.text_of("type").unwrap_or_default()
    }

    /// What it is.
    pub(super) fn kind(self) -> ItemKind {
        match self.word() {
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

    /// What it says.
    pub(super) fn text(self) -> Option<String> {
        match self.word() {
            "agentMessage" | "plan" => self.text_of("text").map(str::to_owned),
            "userMessage" => Some(said_by_user(self.0)),
            "reasoning" => {
                let lines = |key| self.0.get(key).and_then(Value::as_array).into_iter().flatten();
                let said: Vec<&str> = lines("summary").chain(lines("content")).filter_map(Value::as_str).collect();
                Some(said.join("\n\n"))
            }
            _ => None,
        }
    }

    /// The tool's name.
    pub(super) fn name(self) -> Option<String> {
        if self.kind() != ItemKind::Tool {
            return None;
        }
        let (place, tool) = match self.word() {
            "mcpToolCall" => (self.text_of("server"), self.text_of("tool")),
            "dynamicToolCall" => (self.text_of("namespace"), self.text_of("tool")),
            "functionCallOutput" => (self.text_of("namespace"), self.text_of("name")),
            _ => (None, None),
        };
        Some(match (place, tool) {
            (Some(place), Some(tool)) => format!("{place}.{tool}"),
            (None, Some(tool)) => tool.to_owned(),
            (_, None) => self.word().to_owned(),
        })
    }

    /// What the tool works on.
    pub(super) fn input(self) -> Value {
        match self.word() {
            "commandExecution" => json!({"command": self.value_of("command"), "cwd": self.value_of("cwd")}),
            "fileChange" => json!({"changes": self.value_of("changes")}),
            "mcpToolCall" | "dynamicToolCall" => self.value_of("arguments"),
            _ => Value::Object(self.fields(|key| !ABOUT.contains(&key) && !GIVEN.contains(&key))),
        }
    }

    /// What the tool gave.
    pub(super) fn output(self) -> Value {
        match self.word() {
            "commandExecution" => Value::String(self.text_of("aggregatedOutput").unwrap_or_default().to_owned()),
            "fileChange" => json!({"status": self.value_of("status"), "paths": self.paths()}),
            "mcpToolCall" => match self.value_of("error") {
                Value::Null => self.value_of("result"),
                error => error,
            },
            "functionCallOutput" => self.value_of("output"),
            _ => Value::Object(self.fields(|key| GIVEN.contains(&key))),
        }
    }

    /// The files that it changes, and where it moves them.
    pub(super) fn paths(self) -> Vec<String> {
        let changes = self.0.get("changes").and_then(Value::as_array).into_iter().flatten();
        changes
            .flat_map(|change| [change.get("path"), change.pointer("/kind/move_path")])
            .filter_map(|path| Some(path?.as_str()?.to_owned()))
            .collect()
    }

    /// How it ended.
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

    fn fields(self, wanted: impl Fn(&str) -> bool) -> Map<String, Value> {
        let fields = self.0.as_object().into_iter().flatten();
        fields
            .filter(|(key, value)| wanted(key) && !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// What is known of it beside its parts.
    pub(super) fn metadata(self) -> Map<String, Value> {
        let mut metadata = Map::new();
        metadata.insert("itemType".to_owned(), self.word().into());
        metadata.extend(self.fields(|key| {
            matches!(key, "phase" | "delivery" | "questions" | "status" | "exitCode" | "durationMs" | "clientId")
        }));
        metadata
    }

    /// For clients that ask for everything.
    pub(super) fn started(self) -> ItemStarted {
        let input = (self.kind() == ItemKind::Tool).then(|| self.input());
        ItemStarted { item_id: self.id().to_owned(), kind: self.kind(), name: self.name(), input }
    }

    /// For clients that ask for everything.
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

    fn message(self, role: &str, parts: Vec<Part>) -> Message {
        let id = Some(self.id().to_owned()).filter(|id| !id.is_empty());
        Message::Parsed(ParsedMessage { role: role.to_owned(), id, metadata: self.metadata(), parts })
    }

    /// That a tool is used.
    pub(super) fn call(self) -> Option<Message> {
        let (name, id) = (self.name()?, Some(self.id().to_owned()));
        Some(self.message("assistant", vec![Part::ToolCall { id, name, input: self.input() }]))
    }

    /// What everybody is told when it is whole; thoughts are only for clients that ask.
    pub(super) fn whole(self) -> Option<Message> {
        match self.kind() {
            ItemKind::Reasoning => None,
            ItemKind::Message | ItemKind::Plan => {
                Some(self.message("assistant", vec![Part::text(self.text().unwrap_or_default())]))
            }
            ItemKind::Tool => {
                let result = Part::ToolResult {
                    id: Some(self.id().to_owned()),
                    name: self.name(),
                    output: self.output(),
                    is_error: Some(self.status() != ItemStatus::Completed),
                };
                Some(self.message("tool", std::iter::once(result).chain(self.picture()).collect()))
            }
            ItemKind::Other if self.word() == "userMessage" => Some(self.message("user", user_parts(self.0))),
            ItemKind::Other => Some(self.message("assistant", vec![Part::Unknown { raw: self.0.clone() }])),
        }
    }

    fn picture(self) -> Option<Part> {
        let path = (self.word() == "imageView").then(|| self.text_of("path")).flatten()?.to_owned();
        Some(Part::Image { source: AttachmentSource::Path { path }, mime_type: None, alt: None, raw: None })
    }
}

fn contents(item: &Value) -> impl Iterator<Item = &Value> {
    item.get("content").and_then(Value::as_array).into_iter().flatten()
}

fn said_by_user(item: &Value) -> String {
    let texts: Vec<&str> = contents(item).filter_map(|content| content.get("text")?.as_str()).collect();
    texts.join("\n")
}

fn user_parts(item: &Value) -> Vec<Part> {
    let part = |content: &Value| {
        let field = |key: &str| Some(content.get(key)?.as_str()?.to_owned());
        let image = |source| Part::Image { source, mime_type: None, alt: None, raw: None };
        match field("type").as_deref() {
            Some("text") => field("text").map(Part::text),
            Some("image") => field("url").map(|url| image(AttachmentSource::Url { url })),
            Some("localImage") => field("path").map(|path| image(AttachmentSource::Path { path })),
            _ => None,
        }
        .unwrap_or_else(|| Part::Unknown { raw: content.clone() })
    };
    contents(item).map(part).collect()
}
