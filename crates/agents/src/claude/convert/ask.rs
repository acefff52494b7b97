//! What the agent asks: for permissions, for answers, and whether its plan is good.

use serde_json::{Map, Value, json};

use super::{
    Converter,
    native::{Native, list, text},
};
use crate::{
    agent::Fact,
    claude::grant::Grants,
    schema::{PermissionRequest, Question, QuestionOption, QuestionRequest, ToolReference},
};

/// Something that the agent asked and waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub(in crate::claude) kind: AskedKind,
    /// What the tool is to work on.
    pub(in crate::claude) input: Value,
}

/// What the agent asked for.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::claude) enum AskedKind {
    /// To use a tool, with what `always` would allow.
    Permission(Grants),
    /// Answers to questions, by their texts.
    Questions(Vec<String>),
    /// Whether it may do as it planned.
    Plan,
}

/// Where a tool's input says what it works on.
const SUBJECTS: [&str; 6] = ["command", "file_path", "notebook_path", "path", "url", "query"];

impl Converter {
    pub(super) fn control_request(&mut self, native: Native<'_>, facts: &mut Vec<Fact>) {
        let request = native.value.get("request").unwrap_or(&Value::Null);
        let subtype = text(request, "subtype").unwrap_or_default();
        let (Some(id), "can_use_tool") = (native.text("request_id"), subtype) else {
            self.replies.extend(native.text("request_id").and_then(|id| reply(id, subtype)));
            facts.push(native.notice(format!("control_request.{subtype}")));
            return;
        };
        let tool = text(request, "tool_name").unwrap_or_default();
        let input = request.get("input").cloned().unwrap_or_default();
        let reference = self.reference(request);
        let (kind, fact) = match (tool, questions(&input)) {
            ("AskUserQuestion", Some(questions)) => {
                let texts = questions.iter().map(|question| question.question.clone()).collect();
                let asked = QuestionRequest { id: id.to_owned(), questions, tool: reference, ..Default::default() };
                (AskedKind::Questions(texts), Fact::QuestionAsked(asked, native.raw()))
            }
            ("ExitPlanMode", _) => {
                let questions = vec![self.plan(request, &input)];
                let asked = QuestionRequest { id: id.to_owned(), questions, tool: reference, ..Default::default() };
                (AskedKind::Plan, Fact::QuestionAsked(asked, native.raw()))
            }
            _ => {
                let grants = Grants::of(request);
                let asked = PermissionRequest {
                    id: id.to_owned(),
                    session_id: String::new(),
                    permission: tool.to_owned(),
                    patterns: SUBJECTS.iter().filter_map(|key| text(&input, key)).map(str::to_owned).collect(),
                    metadata: metadata(request),
                    always: grants.words(),
                    tool: reference,
                };
                (AskedKind::Permission(grants), Fact::PermissionAsked(asked, native.raw()))
            }
        };
        self.asked.insert(id.to_owned(), Asked { kind, input });
        facts.push(fact);
    }

    pub(super) fn control_cancel_request(&mut self, native: Native<'_>, facts: &mut Vec<Fact>) {
        match native.text("request_id").filter(|id| self.asked.remove(*id).is_some()) {
            Some(id) => facts.push(Fact::Withdrawn(id.to_owned())),
            None => facts.push(native.notice("control_cancel_request")),
        }
    }

    fn reference(&self, request: &Value) -> Option<ToolReference> {
        let call_id = text(request, "tool_use_id")?.to_owned();
        let message_id = self.items.get(&call_id).map(|item| item.message.clone()).unwrap_or_default();
        Some(ToolReference { message_id, call_id })
    }

    /// The plan stands in the request, in the use of the tool, or in a file.
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

/// What is said to a request that nobody here can do something about, so that the agent does not wait for it.
fn reply(id: &str, subtype: &str) -> Option<Value> {
    let response = match subtype {
        // The agent itself gives up a dialog that nobody shows; an answer would pass for the user's.
        "request_user_dialog" => return None,
        "elicitation" => json!({"subtype": "success", "request_id": id, "response": {"action": "decline"}}),
        _ => json!({"subtype": "error", "request_id": id, "error": format!("unsupported request: {subtype}")}),
    };
    Some(json!({"type": "control_response", "response": response}))
}

/// The questions of the tool that asks them; nothing if they are not as expected.
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
