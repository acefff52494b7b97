//! What Codex asks of a person, and how it is answered.

use serde_json::{Map, Value, json};

use super::{items::Item, rpc::Said};
use crate::{
    agent::Answer,
    schema::{PermissionReply, PermissionRequest, Question, QuestionOption, QuestionRequest, ToolReference},
};

/// A request of the app-server that waits for a person.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ask {
    /// Under which the app-server waits.
    pub(super) id: Value,
    /// In which turn.
    pub(super) turn: Option<String>,
    form: Form,
}

/// In which form an answer is wanted.
#[derive(Clone, Debug, PartialEq)]
enum Form {
    /// `accept`, `acceptForSession`, `decline`.
    Decision,
    /// `approved`, `approved_for_session`, `denied`.
    Review,
    /// The permissions that are given, out of these.
    Permissions(Value),
    /// `accept` or `decline`: so ask servers of tools, and Codex on their behalf.
    Consent,
    /// Words for each of these questions.
    Answers(Vec<String>),
}

/// What a person is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Asked {
    /// For a permission.
    Permission(PermissionRequest),
    /// A question.
    Question(QuestionRequest),
}

/// What the app-server asks, under this id for the client; none if a person cannot answer it. `item` is what the app-server
/// told of the item that asks.
pub(super) fn asked(id: &str, said: &Said, item: Option<&Value>) -> Option<(Ask, Asked)> {
    let params = &said.params;
    let text = |key: &str| params.get(key).and_then(Value::as_str).map(str::to_owned);
    let (permission, form, patterns) = match said.method.as_str() {
        "item/commandExecution/requestApproval" => ("commandExecution", Form::Decision, command(params)),
        "item/fileChange/requestApproval" => {
            let paths = item.map(|item| Item(item).paths()).unwrap_or_default();
            (
                "fileChange",
                Form::Decision,
                if paths.is_empty() { text("grantRoot").into_iter().collect() } else { paths },
            )
        }
        "execCommandApproval" => ("commandExecution", Form::Review, command(params)),
        "applyPatchApproval" => {
            let changes = params.get("fileChanges").and_then(Value::as_object);
            ("fileChange", Form::Review, changes.into_iter().flatten().map(|(path, _)| path.clone()).collect())
        }
        "item/permissions/requestApproval" => {
            let wanted = params.get("permissions").cloned().unwrap_or_default();
            ("permissions", Form::Permissions(wanted), text("reason").into_iter().collect())
        }
        "mcpServer/elicitation/request" if !has_fields(params) => {
            ("mcpToolCall", Form::Consent, text("message").into_iter().collect())
        }
        "item/tool/requestUserInput" => return question(id, said),
        _ => return None,
    };
    let mut metadata = Map::new();
    metadata.insert("codexRequestKind".to_owned(), permission.into());
    metadata.insert("codexRequestId".to_owned(), said.id.clone().unwrap_or_default());
    metadata.extend(params.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    if let Some(changes) = item.and_then(|item| item.get("changes")) {
        metadata.insert("changes".to_owned(), changes.clone());
    }
    metadata.retain(|_, value| !value.is_null());
    let request = PermissionRequest {
        id: id.to_owned(),
        permission: permission.to_owned(),
        always: patterns.clone(),
        patterns,
        metadata,
        tool: tool(params),
        ..PermissionRequest::default()
    };
    Some((Ask::of(said, form), Asked::Permission(request)))
}

/// Whether something is to be filled in, which nobody here can.
fn has_fields(params: &Value) -> bool {
    params.get("mode").and_then(Value::as_str) != Some("form")
        || params
            .pointer("/requestedSchema/properties")
            .and_then(Value::as_object)
            .is_none_or(|fields| !fields.is_empty())
}

fn command(params: &Value) -> Vec<String> {
    match params.get("command") {
        Some(Value::String(command)) => vec![command.clone()],
        Some(Value::Array(words)) => {
            vec![words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")]
        }
        // A command that is permitted already wants to reach a host.
        _ => params
            .pointer("/networkApprovalContext/host")
            .and_then(Value::as_str)
            .map(str::to_owned)
            .into_iter()
            .collect(),
    }
}

fn tool(params: &Value) -> Option<ToolReference> {
    let item = params.get("itemId").or_else(|| params.get("callId"))?.as_str()?.to_owned();
    Some(ToolReference { message_id: item.clone(), call_id: item })
}

fn question(id: &str, said: &Said) -> Option<(Ask, Asked)> {
    let asked = said.params.get("questions")?.as_array()?;
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let option = |value: &Value| QuestionOption {
        label: text(value, "label").unwrap_or_default(),
        description: text(value, "description"),
    };
    let one = |value: &Value| Question {
        question: text(value, "question").unwrap_or_default(),
        header: text(value, "header"),
        options: value.get("options").and_then(Value::as_array).into_iter().flatten().map(option).collect(),
        multi_select: None,
        custom: value.get("isOther").and_then(Value::as_bool),
    };
    let ids = asked.iter().map(|value| text(value, "id").unwrap_or_default()).collect();
    let questions = asked.iter().map(one).collect();
    let request =
        QuestionRequest { id: id.to_owned(), questions, tool: tool(&said.params), ..QuestionRequest::default() };
    Some((Ask::of(said, Form::Answers(ids)), Asked::Question(request)))
}

// === impl Ask ===

impl Ask {
    fn of(said: &Said, form: Form) -> Self {
        let turn = said.params.get("turnId").and_then(Value::as_str).map(str::to_owned);
        Self { id: said.id.clone().unwrap_or_default(), turn, form }
    }

    /// The answer in the form that is wanted; none if it is an answer to something else.
    pub(super) fn answer(&self, answer: &Answer) -> Option<Value> {
        use PermissionReply::{Always, Once, Reject};
        Some(match (&self.form, answer) {
            (Form::Decision, Answer::Permission(reply, _)) => match reply {
                Once => json!({"decision": "accept"}),
                Always => json!({"decision": "acceptForSession"}),
                Reject => json!({"decision": "decline"}),
            },
            (Form::Review, Answer::Permission(reply, message)) => match reply {
                Once => json!({"decision": "approved"}),
                Always => json!({"decision": "approved_for_session"}),
                Reject => {
                    json!({"decision": {"denied": {"rejection": message.as_deref().unwrap_or("declined by the user")}}})
                }
            },
            (Form::Permissions(wanted), Answer::Permission(reply, _)) => match reply {
                Once => json!({"permissions": wanted, "scope": "turn"}),
                Always => json!({"permissions": wanted, "scope": "session"}),
                Reject => json!({"permissions": {}, "scope": "turn"}),
            },
            (Form::Consent, Answer::Permission(reply, _)) => match reply {
                Once => json!({"action": "accept", "content": {}}),
                // Codex could also remember it for ever, in its own settings.
                Always => json!({"action": "accept", "content": {}, "_meta": {"persist": "session"}}),
                Reject => json!({"action": "decline"}),
            },
            (Form::Answers(ids), Answer::Question(answers)) => {
                let each = ids.iter().zip(answers).map(|(id, chosen)| (id.clone(), json!({"answers": chosen})));
                json!({"answers": each.collect::<Map<_, _>>()})
            }
            (Form::Answers(_), Answer::QuestionRejected) => json!({"answers": {}}),
            (Form::Answers(_), Answer::Permission(..)) | (_, Answer::Question(_) | Answer::QuestionRejected) => {
                return None;
            }
        })
    }

    /// The answer where there will be none.
    pub(super) fn refusal(&self) -> Value {
        let answer = match self.form {
            Form::Answers(_) => Answer::QuestionRejected,
            _ => Answer::Permission(PermissionReply::Reject, None),
        };
        self.answer(&answer).unwrap_or_default()
    }

    /// Whether words for the agent are part of the answer already.
    pub(super) fn takes_words(&self) -> bool {
        self.form == Form::Review
    }
}
