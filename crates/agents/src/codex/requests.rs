//! Requests of Codex for the user, and their responses.

use serde_json::{Map, Value, json};

use super::{items::CodexItem, rpc::RpcRequest};
use crate::{
    agent::UserAnswer,
    schema::{PermissionReply, PermissionRequest, Question, QuestionOption, QuestionRequest, ToolReference},
};

/// A pending request of the app-server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AppServerRequest {
    /// Its JSON-RPC id.
    pub(super) id: Value,
    /// The turn that it belongs to.
    pub(super) turn: Option<String>,
    form: ResponseForm,
}

#[derive(Clone, Debug, PartialEq)]
enum ResponseForm {
    /// `accept`, `acceptForSession`, `decline`.
    Decision,
    /// `approved`, `approved_for_session`, `denied`.
    Review,
    /// The granted subset of these permissions.
    Permissions(Value),
    /// `accept` or `decline`, for MCP servers.
    Consent,
    /// Answers to these questions.
    Answers(Vec<String>),
}

/// The request as the user sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UserRequest {
    Permission(PermissionRequest),
    Question(QuestionRequest),
}

/// Parses a request; `id` is its id for the client. `None` if the user cannot answer it. `item` is the item that the
/// request belongs to.
pub(super) fn parse(id: &str, request: &RpcRequest, item: Option<&Value>) -> Option<(AppServerRequest, UserRequest)> {
    let params = &request.params;
    let text = |key: &str| params.get(key).and_then(Value::as_str).map(str::to_owned);
    let (permission, form, patterns) = match request.method.as_str() {
        "item/commandExecution/requestApproval" => ("commandExecution", ResponseForm::Decision, command(params)),
        "item/fileChange/requestApproval" => {
            let paths = item.map(|item| CodexItem(item).paths()).unwrap_or_default();
            (
                "fileChange",
                ResponseForm::Decision,
                if paths.is_empty() { text("grantRoot").into_iter().collect() } else { paths },
            )
        }
        "execCommandApproval" => ("commandExecution", ResponseForm::Review, command(params)),
        "applyPatchApproval" => {
            let changes = params.get("fileChanges").and_then(Value::as_object);
            ("fileChange", ResponseForm::Review, changes.into_iter().flatten().map(|(path, _)| path.clone()).collect())
        }
        "item/permissions/requestApproval" => {
            let requested = params.get("permissions").cloned().unwrap_or_default();
            ("permissions", ResponseForm::Permissions(requested), text("reason").into_iter().collect())
        }
        "mcpServer/elicitation/request" if !has_form_fields(params) => {
            ("mcpToolCall", ResponseForm::Consent, text("message").into_iter().collect())
        }
        "item/tool/requestUserInput" => return question(id, request),
        _ => return None,
    };
    let mut metadata = Map::new();
    metadata.insert("codexRequestKind".to_owned(), permission.into());
    metadata.insert("codexRequestId".to_owned(), request.id.clone().unwrap_or_default());
    metadata.extend(params.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    if let Some(changes) = item.and_then(|item| item.get("changes")) {
        metadata.insert("changes".to_owned(), changes.clone());
    }
    metadata.retain(|_, value| !value.is_null());
    let permission_request = PermissionRequest {
        id: id.to_owned(),
        permission: permission.to_owned(),
        always: patterns.clone(),
        patterns,
        metadata,
        tool: tool(params),
        ..PermissionRequest::default()
    };
    Some((AppServerRequest::of(request, form), UserRequest::Permission(permission_request)))
}

/// Whether the form has fields, which are not supported.
fn has_form_fields(params: &Value) -> bool {
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
        // A permitted command requests access to a host.
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

fn question(id: &str, request: &RpcRequest) -> Option<(AppServerRequest, UserRequest)> {
    let questions_asked = request.params.get("questions")?.as_array()?;
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
    let ids = questions_asked.iter().map(|value| text(value, "id").unwrap_or_default()).collect();
    let questions = questions_asked.iter().map(one).collect();
    let question_request =
        QuestionRequest { id: id.to_owned(), questions, tool: tool(&request.params), ..QuestionRequest::default() };
    Some((AppServerRequest::of(request, ResponseForm::Answers(ids)), UserRequest::Question(question_request)))
}

// === impl AppServerRequest ===

impl AppServerRequest {
    fn of(request: &RpcRequest, form: ResponseForm) -> Self {
        let turn = request.params.get("turnId").and_then(Value::as_str).map(str::to_owned);
        Self { id: request.id.clone().unwrap_or_default(), turn, form }
    }

    /// The response for an answer; `None` if the answer does not fit.
    pub(super) fn answer(&self, answer: &UserAnswer) -> Option<Value> {
        use PermissionReply::{Always, Once, Reject};
        Some(match (&self.form, answer) {
            (ResponseForm::Decision, UserAnswer::Permission(reply, _)) => match reply {
                Once => json!({"decision": "accept"}),
                Always => json!({"decision": "acceptForSession"}),
                Reject => json!({"decision": "decline"}),
            },
            (ResponseForm::Review, UserAnswer::Permission(reply, message)) => match reply {
                Once => json!({"decision": "approved"}),
                Always => json!({"decision": "approved_for_session"}),
                Reject => {
                    json!({"decision": {"denied": {"rejection": message.as_deref().unwrap_or("declined by the user")}}})
                }
            },
            (ResponseForm::Permissions(requested), UserAnswer::Permission(reply, _)) => match reply {
                Once => json!({"permissions": requested, "scope": "turn"}),
                Always => json!({"permissions": requested, "scope": "session"}),
                Reject => json!({"permissions": {}, "scope": "turn"}),
            },
            (ResponseForm::Consent, UserAnswer::Permission(reply, _)) => match reply {
                Once => json!({"action": "accept", "content": {}}),
                // Codex could also store it in its settings.
                Always => json!({"action": "accept", "content": {}, "_meta": {"persist": "session"}}),
                Reject => json!({"action": "decline"}),
            },
            (ResponseForm::Answers(ids), UserAnswer::Question(answers)) => {
                let each = ids.iter().zip(answers).map(|(id, chosen)| (id.clone(), json!({"answers": chosen})));
                json!({"answers": each.collect::<Map<_, _>>()})
            }
            (ResponseForm::Answers(_), UserAnswer::QuestionRejected) => json!({"answers": {}}),
            (ResponseForm::Answers(_), UserAnswer::Permission(..))
            | (_, UserAnswer::Question(_) | UserAnswer::QuestionRejected) => {
                return None;
            }
        })
    }

    /// The response that rejects the request.
    pub(super) fn rejection(&self) -> Value {
        let answer = match self.form {
            ResponseForm::Answers(_) => UserAnswer::QuestionRejected,
            _ => UserAnswer::Permission(PermissionReply::Reject, None),
        };
        self.answer(&answer).unwrap_or_default()
    }

    /// Whether the response includes the user's message.
    pub(super) fn accepts_message(&self) -> bool {
        self.form == ResponseForm::Review
    }
}
