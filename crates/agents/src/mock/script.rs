//! The commands of the built-in agent: the first word of a prompt.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Map, Value, json};

use super::MockStep;
use crate::{
    agent::{AgentEvent, UserAnswer, raw},
    schema::{
        AttachmentSource, EventData, ItemCompleted, ItemDelta, ItemKind, ItemStarted, ItemStatus, MessagePart, Notice,
        ParsedMessage, PermissionReply, PermissionRequest, Question, QuestionOption, QuestionRequest, TokenUsage,
        ToolReference, TurnOutcome, UniversalMessage,
    },
};

const HELP: &str = "Commands: help, demo, markdown, tool, status, image, file, reasoning, unknown, permission, question, \
    plan, error, unparsed, usage, slow [MS], burst N, crash [CODE], end, echo TEXT. Anything else is said back.";

/// Duration of `slow` by default.
const DEFAULT_PAUSE: Duration = Duration::from_secs(3600);

/// Maximum size of a burst.
const MAX_BURST: u64 = 10_000_000;

/// The steps of a prompt.
pub(super) fn steps_for(text: &str) -> Vec<MockStep> {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let mut steps = match word.to_ascii_lowercase().as_str() {
        _ if compatible_prompt(text).is_some() => compatible_prompt(text).unwrap_or_default(),
        "help" => say(HELP),
        "demo" => demo(),
        "markdown" => markdown(),
        "tool" | "tools" | "tooling" => tool(),
        "status" => vec![notice("Indexing"), emit(EventData::assistant("Indexing is done."))],
        "image" => attachment(true),
        "file" => attachment(false),
        "reasoning" => reasoning(),
        "unknown" => unknown(),
        "permission" | "permissions" => permissions(),
        "question" | "questions" => questions(),
        "plan" => plan(),
        "error" => vec![emit(EventData::error("mock_error", "mock error", Some(json!({"asked": true}))))],
        "unparsed" => vec![emit(EventData::unparsed(json!("{not json"), "expected value at line 1 column 2"))],
        "usage" => vec![emit(EventData::Usage(usage())), emit(EventData::assistant("Little was used."))],
        "slow" => {
            vec![
                MockStep::Pause(rest.parse().map_or(DEFAULT_PAUSE, Duration::from_millis)),
                emit(EventData::assistant("slow")),
            ]
        }
        "burst" => vec![MockStep::Burst(1..rest.parse().unwrap_or(1000_u64).min(MAX_BURST) + 1)],
        "crash" => return vec![MockStep::Crash(rest.parse().unwrap_or(1))],
        "end" | "ended" | "session.end" => return vec![step(ended(TurnOutcome::Completed)), MockStep::Finish],
        "echo" | "say" => say(rest),
        _ => say(text),
    };
    steps.push(step(ended(TurnOutcome::Completed)));
    steps
}

pub(super) fn ended(outcome: TurnOutcome) -> AgentEvent {
    let usage = (outcome == TurnOutcome::Completed).then(usage);
    AgentEvent::TurnEnded { outcome, message: None, usage, raw: None }
}

/// The agent's response to an answer.
pub(super) fn describe_answer(id: &str, answer: &UserAnswer) -> String {
    match answer {
        UserAnswer::Permission(PermissionReply::Once, _) => format!("{id}: allowed once"),
        UserAnswer::Permission(PermissionReply::Always, _) => format!("{id}: always allowed"),
        UserAnswer::Permission(PermissionReply::Reject, None) => format!("{id}: rejected"),
        UserAnswer::Permission(PermissionReply::Reject, Some(message)) => format!("{id}: rejected, {message}"),
        UserAnswer::Question(answers) => {
            let answers: Vec<_> = answers.iter().map(|chosen| chosen.join(", ")).collect();
            format!("{id}: answered {}", answers.join("; "))
        }
        UserAnswer::QuestionRejected => format!("{id}: not answered"),
    }
}

/// Prompts that the tests of compatible servers use.
fn compatible_prompt(text: &str) -> Option<Vec<MockStep>> {
    let lower = text.to_ascii_lowercase();
    if let Some(word) = text.strip_prefix("Reply with exactly the single word ") {
        return Some(say(word.trim_end_matches('.')));
    }
    if lower.contains("askuserquestion") {
        return Some(await_answers(vec![question("question", "Proceed?", &["Yes", "No"], false)]));
    }
    match text {
        "List files in the current directory using available tools." => {
            Some(await_answers(vec![permission("commandExecution", "ls", &json!({"command": "ls"}))]))
        }
        "Answer briefly and include your reasoning." => Some(reasoning()),
        "Provide a short status update." => Some(vec![notice("Working"), emit(EventData::assistant("All is well."))]),
        _ if lower.contains("bash") && lower.contains("ls") && lower.contains("tool") => {
            let mut steps = await_answers(vec![permission("Bash", "ls", &json!({"command": "ls"}))]);
            steps.extend(tool());
            Some(steps)
        }
        _ => None,
    }
}

fn emit(data: EventData) -> MockStep {
    step(AgentEvent::event(data))
}

pub(super) fn step(event: AgentEvent) -> MockStep {
    MockStep::Emit(Box::new(event))
}

fn say(text: &str) -> Vec<MockStep> {
    let item_id = unique("item");
    vec![
        emit(started(&item_id, ItemKind::Message, None)),
        emit(delta(&item_id, ItemKind::Message, text)),
        emit(EventData::assistant(text)),
        emit(completed(&item_id, ItemKind::Message, None, Some(text))),
    ]
}

fn notice(label: &str) -> MockStep {
    emit(EventData::Notice(Notice { label: label.into(), details: None }))
}

fn usage() -> TokenUsage {
    TokenUsage {
        input_tokens: Some(12),
        output_tokens: Some(34),
        cached_input_tokens: Some(0),
        cost_usd: Some(0.0),
        context_window: Some(200_000),
        details: None,
    }
}

fn started(item_id: &str, kind: ItemKind, name: Option<&str>) -> EventData {
    EventData::ItemStarted(ItemStarted { item_id: item_id.into(), kind, name: name.map(Into::into), input: None })
}

fn delta(item_id: &str, kind: ItemKind, delta: &str) -> EventData {
    EventData::ItemDelta(ItemDelta { item_id: item_id.into(), kind, delta: delta.into() })
}

fn completed(item_id: &str, kind: ItemKind, name: Option<&str>, text: Option<&str>) -> EventData {
    EventData::ItemCompleted(ItemCompleted {
        item_id: item_id.into(),
        kind,
        name: name.map(Into::into),
        text: text.map(Into::into),
        output: None,
        status: ItemStatus::Completed,
    })
}

fn markdown() -> Vec<MockStep> {
    const TEXT: &str = "# Mock\n\n- one\n- two\n\n```rust\nfn main() {}\n```\n";
    let item_id = unique("item");
    let mut steps = vec![emit(started(&item_id, ItemKind::Message, None))];
    steps.extend(TEXT.split_inclusive('\n').map(|line| emit(delta(&item_id, ItemKind::Message, line))));
    steps.push(emit(EventData::assistant(TEXT)));
    steps.push(emit(completed(&item_id, ItemKind::Message, None, Some(TEXT))));
    steps
}

fn reasoning() -> Vec<MockStep> {
    const THOUGHT: &str = "The question is short, so the answer is short.";
    let item_id = unique("item");
    let mut steps = vec![
        emit(started(&item_id, ItemKind::Reasoning, None)),
        emit(delta(&item_id, ItemKind::Reasoning, THOUGHT)),
        emit(completed(&item_id, ItemKind::Reasoning, None, Some(THOUGHT))),
    ];
    steps.extend(say("A short answer."));
    steps
}

fn tool() -> Vec<MockStep> {
    let id = unique("call");
    let call =
        MessagePart::ToolCall { id: Some(id.clone()), name: "mock.search".into(), input: json!({"query": "example"}) };
    let result = MessagePart::ToolResult {
        id: Some(id.clone()),
        name: Some("mock.search".into()),
        output: json!("nothing was found"),
        is_error: Some(true),
    };
    let started = EventData::ItemStarted(ItemStarted {
        item_id: id.clone(),
        kind: ItemKind::Tool,
        name: Some("mock.search".into()),
        input: Some(json!({"query": "example"})),
    });
    let failed = EventData::ItemCompleted(ItemCompleted {
        item_id: id,
        kind: ItemKind::Tool,
        name: Some("mock.search".into()),
        text: None,
        output: Some(json!("nothing was found")),
        status: ItemStatus::Failed,
    });
    vec![
        emit(started),
        emit(EventData::Message(UniversalMessage::of("assistant", vec![call]))),
        emit(EventData::Message(UniversalMessage::of("tool", vec![result]))),
        emit(failed),
    ]
}

fn attachment(image: bool) -> Vec<MockStep> {
    let part = if image {
        MessagePart::Image {
            source: AttachmentSource::Path { path: "/tmp/mock.png".into() },
            mime_type: Some("image/png".into()),
            alt: Some("a picture".into()),
            raw: None,
        }
    } else {
        MessagePart::File {
            source: AttachmentSource::Data { data: "aGVsbG8=".into(), encoding: Some("base64".into()) },
            mime_type: Some("text/plain".into()),
            filename: Some("hello.txt".into()),
            raw: None,
        }
    };
    vec![emit(EventData::Message(UniversalMessage::of("assistant", vec![part])))]
}

fn unknown() -> Vec<MockStep> {
    let native = json!({"type": "mock.unknown", "value": 1});
    let part = MessagePart::Unknown { raw: native.clone() };
    let message = EventData::Message(UniversalMessage::Parsed(ParsedMessage {
        role: "assistant".into(),
        id: Some(unique("message")),
        metadata: Map::from_iter([("mock".to_owned(), Value::Bool(true))]),
        parts: vec![part],
    }));
    vec![emit(message), step(AgentEvent::Event(EventData::Raw(native.clone()), raw(&native)))]
}

fn await_answers(events: Vec<AgentEvent>) -> Vec<MockStep> {
    events.into_iter().map(step).chain([MockStep::AwaitAnswers]).collect()
}

fn permissions() -> Vec<MockStep> {
    await_answers(vec![
        permission("commandExecution", "rm -rf build", &json!({"command": "rm -rf build"})),
        permission("fileChange", "src/main.rs", &json!({"diff": "+fn main() {}"})),
    ])
}

fn permission(name: &str, pattern: &str, metadata: &Value) -> AgentEvent {
    let metadata = metadata.as_object().cloned().unwrap_or_default();
    let id = unique("permission");
    let tool = ToolReference { message_id: unique("message"), call_id: unique("call") };
    AgentEvent::PermissionAsked(
        PermissionRequest {
            id,
            session_id: String::new(),
            permission: name.into(),
            patterns: vec![pattern.into()],
            metadata,
            always: vec![pattern.into()],
            tool: Some(tool),
        },
        None,
    )
}

fn questions() -> Vec<MockStep> {
    await_answers(vec![
        question("color", "Which colors do you like?", &["Red", "Green", "Blue"], true),
        question("experiment", "Allow the experiment?", &["Yes", "No"], false),
    ])
}

fn plan() -> Vec<MockStep> {
    const PLAN: &str = "1. Look. 2. Change. 3. Test.";
    let item_id = unique("item");
    let mut steps = vec![
        emit(started(&item_id, ItemKind::Plan, None)),
        emit(EventData::assistant(PLAN)),
        emit(completed(&item_id, ItemKind::Plan, None, Some(PLAN))),
    ];
    steps.extend(await_answers(vec![question("plan", "Approve plan execution?", &["approve", "reject"], false)]));
    steps
}

fn question(header: &str, text: &str, labels: &[&str], multi: bool) -> AgentEvent {
    let options = labels.iter().map(|&label| QuestionOption { label: label.into(), description: None }).collect();
    let question = Question {
        question: text.into(),
        header: Some(header.into()),
        options,
        multi_select: multi.then_some(true),
        custom: Some(true),
    };
    AgentEvent::QuestionAsked(
        QuestionRequest { id: unique("question"), session_id: String::new(), questions: vec![question], tool: None },
        None,
    )
}

/// Everything that needs no answer.
fn demo() -> Vec<MockStep> {
    let mut steps = Vec::new();
    for part in [markdown(), reasoning(), tool(), attachment(true), attachment(false), unknown()] {
        steps.extend(part);
    }
    steps.push(notice("Indexing"));
    steps.push(emit(EventData::error("mock_error", "mock error", None)));
    steps.push(emit(EventData::unparsed(json!("{not json"), "expected value at line 1 column 2")));
    steps.push(emit(EventData::Usage(usage())));
    steps
}

/// An id that is unique in this process.
fn unique(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("mock-{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
