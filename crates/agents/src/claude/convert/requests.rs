//! Requests of the agent: permissions, questions and plans.

use serde_json::{Map, Value, json};

use super::{
    ClaudeConverter,
    native::{ClaudeMessage, list, text},
};
use crate::{
    agent::AgentEvent,
    claude::grants::PermissionGrants,
    schema::{PermissionRequest, Question, QuestionOption, QuestionRequest, ToolReference},
};

/// A pending request of the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaudeRequest {
    pub(in crate::claude) kind: ClaudeRequestKind,
    /// Input of the tool.
    pub(in crate::claude) input: Value,
}

/// What the agent requests.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::claude) enum ClaudeRequestKind {
    /// Permission to use a tool, with what `always` would allow.
    Permission(PermissionGrants),
    /// Answers to questions, identified by their texts.
    Questions(Vec<String>),
    /// Approval of its plan.
    Plan,
}

/// Input fields that name what a tool works on.
const SUBJECTS: [&str; 6] = ["command", "file_path", "notebook_path", "path", "url", "query"];

impl ClaudeConverter {
    pub(super) fn control_request(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        let request = native.value.get("request").unwrap_or(&Value::Null);
        let subtype = text(request, "subtype").unwrap_or_default();
        let (Some(id), "can_use_tool") = (native.text("request_id"), subtype) else {
            self.replies.extend(native.text("request_id").and_then(|id| reply(id, subtype)));
            events.push(native.notice(format!("control_request.{subtype}")));
            return;
        };
        let tool = text(request, "tool_name").unwrap_or_default();
        let input = request.get("input").cloned().unwrap_or_default();
        let reference = self.reference(request);
        let (kind, event) = match (tool, questions(&input)) {
            ("AskUserQuestion", Some(questions)) => {
                let texts = questions.iter().map(|question| question.question.clone()).collect();
                let request_data =
                    QuestionRequest { id: id.to_owned(), questions, tool: reference, ..Default::default() };
                (ClaudeRequestKind::Questions(texts), AgentEvent::QuestionAsked(request_data, native.raw()))
            }
            ("ExitPlanMode", _) => {
                let questions = vec![self.plan(request, &input)];
                let request_data =
                    QuestionRequest { id: id.to_owned(), questions, tool: reference, ..Default::default() };
                (ClaudeRequestKind::Plan, AgentEvent::QuestionAsked(request_data, native.raw()))
            }
            _ => {
                let grants = PermissionGrants::of(request);
                let request_data = PermissionRequest {
                    id: id.to_owned(),
                    session_id: String::new(),
                    permission: tool.to_owned(),
                    patterns: SUBJECTS.iter().filter_map(|key| text(&input, key)).map(str::to_owned).collect(),
                    metadata: metadata(request),
                    always: grants.describe(),
                    tool: reference,
                };
                (ClaudeRequestKind::Permission(grants), AgentEvent::PermissionAsked(request_data, native.raw()))
            }
        };
        self.requests.insert(id.to_owned(), ClaudeRequest { kind, input });
        events.push(event);
    }

    pub(super) fn control_cancel_request(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        match native.text("request_id").filter(|id| self.requests.remove(*id).is_some()) {
            Some(id) => events.push(AgentEvent::Withdrawn(id.to_owned())),
            None => events.push(native.notice("control_cancel_request")),
        }
    }

    fn reference(&self, request: &Value) -> Option<ToolReference> {
        let call_id = text(request, "tool_use_id")?.to_owned();
        let message_id = self.items.get(&call_id).map(|item| item.message.clone()).unwrap_or_default();
        Some(ToolReference { message_id, call_id })
    }

    /// The plan is in the request, in the tool use, or in a file.
    fn plan(&self, request: &Value, input: &Value) -> Question {
        let used = text(request, "tool_use_id").and_then(|id| self.items.get(id)).and_then(|item| item.plan.clone());
        let plan = text(input, "plan")
            .map(str::to_owned)
            .or(used)
            .or_else(|| text(input, "planFilePath").and_then(|path| (self.read_plan.0)(path)))
            .filter(|plan| !plan.trim().is_empty());
        let question = "Approve plan execution?";
        let option = |label: &str, description: &str| QuestionOption {
            label: label.to_owned(),
            description: Some(description.to_owned()),
        };
        Question {
            question: plan.map_or_else(|| question.to_owned(), |plan| format!("{question}\n\n{plan}")),
            header: Some("Plan".to_owned()),
            options: vec![
                option("approve", "Carry out the plan"),
                option("reject", "Keep planning; words of your own say what to change"),
            ],
            multi_select: Some(false),
            custom: Some(true),
        }
    }
}

/// Response to a request that is not supported, so that the agent does not wait for it.
fn reply(id: &str, subtype: &str) -> Option<Value> {
    let response = match subtype {
        // The agent itself cancels a dialog that is not shown; a response would count as the user's.
        "request_user_dialog" => return None,
        "elicitation" => json!({"subtype": "success", "request_id": id, "response": {"action": "decline"}}),
        _ => json!({"subtype": "error", "request_id": id, "error": format!("unsupported request: {subtype}")}),
    };
    Some(json!({"type": "control_response", "response": response}))
}

/// The questions in the tool's input; `None` if they are malformed.
fn questions(input: &Value) -> Option<Vec<Question>> {
    let questions: Option<Vec<_>> = list(input, "questions").iter().map(question).collect();
    questions.filter(|questions| !questions.is_empty())
}

fn question(question: &Value) -> Option<Question> {
    let options = list(question, "options").iter().map(|option| {
        let description = text(option, "description").map(str::to_owned);
        Some(QuestionOption { label: text(option, "label")?.to_owned(), description })
    });
    Some(Question {
        question: text(question, "question")?.to_owned(),
        header: text(question, "header").map(str::to_owned),
        options: options.collect::<Option<_>>()?,
        multi_select: Some(question.get("multiSelect").and_then(Value::as_bool).unwrap_or_default()),
        custom: Some(true),
    })
}

fn metadata(request: &Value) -> Map<String, Value> {
    [
        ("tool_name", "toolName"),
        ("display_name", "displayName"),
        ("title", "title"),
        ("input", "input"),
        ("description", "description"),
        ("permission_suggestions", "suggestions"),
        ("blocked_path", "blockedPath"),
        ("decision_reason", "reason"),
        ("agent_id", "agentId"),
    ]
    .into_iter()
    .filter_map(|(key, name)| Some((name.to_owned(), request.get(key).filter(|value| !value.is_null())?.clone())))
    .collect()
}
