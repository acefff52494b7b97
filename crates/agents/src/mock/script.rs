//! What the built-in agent does with a prompt: its first word is the command.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Map, Value, json};

use super::Step;
use crate::{
    agent::{Answer, Fact, raw},
    schema::{
        AttachmentSource, EventData, ItemCompleted, ItemDelta, ItemKind, ItemStarted, ItemStatus, Message, Notice,
        ParsedMessage, Part, PermissionReply, PermissionRequest, Question, QuestionOption, QuestionRequest,
        ToolReference, TurnOutcome, Usage,
    },
};

const HELP: &str = "Commands: help, demo, markdown, tool, status, image, file, reasoning, unknown, permission, question, \
    plan, error, unparsed, usage, slow [MS], burst N, crash [CODE], end, echo TEXT. Anything else is said back.";

/// How long `slow` lasts unless it is told.
const LONG: Duration = Duration::from_secs(3600);

/// The most events that one burst has.
const MOST: u64 = 10_000_000;

/// What a prompt leads to.
pub(super) fn play(text: &str) -> Vec<Step> {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let mut steps = match word.to_ascii_lowercase().as_str() {
        _ if known(text).is_some() => known(text).unwrap_or_default(),
        "help" => says(HELP),
        "demo" => demo(),
        "markdown" => markdown(),
        "tool" | "tools" | "tooling" => tool(),
        "status" => vec![notice("Indexing"), tell(EventData::assistant("Indexing is done."))],
        "image" => attachment(true),
        "file" => attachment(false),
        "reasoning" => reasoning(),
        "unknown" => unknown(),
        "permission" | "permissions" => permissions(),
        "question" | "questions" => questions(),
        "plan" => plan(),
        "error" => vec![tell(EventData::error("mock_error", "mock error", Some(json!({"asked": true}))))],
        "unparsed" => vec![tell(EventData::unparsed(json!("{not json"), "expected value at line 1 column 2"))],
        "usage" => vec![tell(EventData::Usage(usage())), tell(EventData::assistant("Little was used."))],
        "slow" => {
            vec![Step::Pause(rest.parse().map_or(LONG, Duration::from_millis)), tell(EventData::assistant("slow"))]
        }
        "burst" => vec![Step::Burst(1..rest.parse().unwrap_or(1000_u64).min(MOST) + 1)],
        "crash" => return vec![Step::Die(rest.parse().unwrap_or(1))],
        "end" | "ended" | "session.end" => return vec![step(ended(TurnOutcome::Completed)), Step::Finish],
        "echo" | "say" => says(rest),
        _ => says(text),
    };
    steps.push(step(ended(TurnOutcome::Completed)));
    steps
}

/// The end of a turn.
pub(super) fn ended(outcome: TurnOutcome) -> Fact {
    let usage = (outcome == TurnOutcome::Completed).then(usage);
    Fact::TurnEnded { outcome, message: None, usage, raw: None }
}

/// What the agent says to an answer.
pub(super) fn heard(id: &str, answer: &Answer) -> String {
    match answer {
        Answer::Permission(PermissionReply::Once, _) => format!("{id}: allowed once"),
        Answer::Permission(PermissionReply::Always, _) => format!("{id}: always allowed"),
        Answer::Permission(PermissionReply::Reject, None) => format!("{id}: rejected"),
        Answer::Permission(PermissionReply::Reject, Some(message)) => format!("{id}: rejected, {message}"),
        Answer::Question(answers) => {
            let answers: Vec<_> = answers.iter().map(|chosen| chosen.join(", ")).collect();
            format!("{id}: answered {}", answers.join("; "))
        }
        Answer::QuestionRejected => format!("{id}: not answered"),
    }
}

/// Prompts that tests of other servers of this interface use.
fn known(text: &str) -> Option<Vec<Step>> {
    let lower = text.to_ascii_lowercase();
    if let Some(word) = text.strip_prefix("Reply with exactly the single word ") {
        return Some(says(word.trim_end_matches('.')));
    }
    if lower.contains("askuserquestion") {
        return Some(asking(vec![question("question", "Proceed?", &["Yes", "No"], false)]));
    }
    match text {
        "List files in the current directory using available tools." => {
            Some(asking(vec![permission("commandExecution", "ls", &json!({"command": "ls"}))]))
        }
        "Answer briefly and include your reasoning." => Some(reasoning()),
        "Provide a short status update." => Some(vec![notice("Working"), tell(EventData::assistant("All is well."))]),
        _ if lower.contains("bash") && lower.contains("ls") && lower.contains("tool") => {
            let mut steps = asking(vec![permission("Bash", "ls", &json!({"command": "ls"}))]);
            steps.extend(tool());
            Some(steps)
        }
        _ => None,
    }
}

fn tell(data: EventData) -> Step {
    step(Fact::event(data))
}

/// A fact as a step.
pub(super) fn step(fact: Fact) -> Step {
    Step::Tell(Box::new(fact))
}

fn says(text: &str) -> Vec<Step> {
    let item_id = unique("item");
    vec![
        tell(started(&item_id, ItemKind::Message, None)),
        tell(delta(&item_id, ItemKind::Message, text)),
        tell(EventData::assistant(text)),
        tell(completed(&item_id, ItemKind::Message, None, Some(text))),
    ]
}

fn notice(label: &str) -> Step {
    tell(EventData::Notice(Notice { label: label.into(), details: None }))
}

fn usage() -> Usage {
    Usage {
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

fn markdown() -> Vec<Step> {
    const TEXT: &str = "# Mock\n\n- one\n- two\n\n```rust\nfn main() {}\n```\n";
    let item_id = unique("item");
    let mut steps = vec![tell(started(&item_id, ItemKind::Message, None))];
    steps.extend(TEXT.split_inclusive('\n').map(|line| tell(delta(&item_id, ItemKind::Message, line))));
    steps.push(tell(EventData::assistant(TEXT)));
    steps.push(tell(completed(&item_id, ItemKind::Message, None, Some(TEXT))));
    steps
}

fn reasoning() -> Vec<Step> {
    const THOUGHT: &str = "The question is short, so the answer is short.";
    let item_id = unique("item");
    let mut steps = vec![
        tell(started(&item_id, ItemKind::Reasoning, None)),
        tell(delta(&item_id, ItemKind::Reasoning, THOUGHT)),
        tell(completed(&item_id, ItemKind::Reasoning, None, Some(THOUGHT))),
    ];
    steps.extend(says("A short answer."));
    steps
}

fn tool() -> Vec<Step> {
    let id = unique("call");
    let call = Part::ToolCall { id: Some(id.clone()), name: "mock.search".into(), input: json!({"query": "example"}) };
    let result = Part::ToolResult {
        id: Some(id.clone()),
        name: Some("mock.search".into()),
        output: json!("nothing was found"),
        is_error: Some(true),
    };
    let begun = EventData::ItemStarted(ItemStarted {
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
        tell(begun),
        tell(EventData::Message(Message::of("assistant", vec![call]))),
        tell(EventData::Message(Message::of("tool", vec![result]))),
        tell(failed),
    ]
}

fn attachment(image: bool) -> Vec<Step> {
    let part = if image {
        Part::Image {
            source: AttachmentSource::Path { path: "/tmp/mock.png".into() },
            mime_type: Some("image/png".into()),
            alt: Some("a picture".into()),
            raw: None,
        }
    } else {
        Part::File {
            source: AttachmentSource::Data { data: "aGVsbG8=".into(), encoding: Some("base64".into()) },
            mime_type: Some("text/plain".into()),
            filename: Some("hello.txt".into()),
            raw: None,
        }
    };
    vec![tell(EventData::Message(Message::of("assistant", vec![part])))]
}

fn unknown() -> Vec<Step> {
    let native = json!({"type": "mock.unknown", "value": 1});
    let part = Part::Unknown { raw: native.clone() };
    let message = EventData::Message(Message::Parsed(ParsedMessage {
        role: "assistant".into(),
        id: Some(unique("message")),
        metadata: Map::from_iter([("mock".to_owned(), Value::Bool(true))]),
        parts: vec![part],
    }));
    vec![tell(message), step(Fact::Event(EventData::Raw(native.clone()), raw(&native)))]
}

fn asking(facts: Vec<Fact>) -> Vec<Step> {
    facts.into_iter().map(step).chain([Step::Answers]).collect()
}

fn permissions() -> Vec<Step> {
    asking(vec![
        permission("commandExecution", "rm -rf build", &json!({"command": "rm -rf build"})),
        permission("fileChange", "src/main.rs", &json!({"diff": "+fn main() {}"})),
    ])
}

fn permission(name: &str, pattern: &str, metadata: &Value) -> Fact {
    let metadata = metadata.as_object().cloned().unwrap_or_default();
    let id = unique("permission");
    let tool = ToolReference { message_id: unique("message"), call_id: unique("call") };
    Fact::PermissionAsked(
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

fn questions() -> Vec<Step> {
    asking(vec![
        question("color", "Which colors do you like?", &["Red", "Green", "Blue"], true),
        question("experiment", "Allow the experiment?", &["Yes", "No"], false),
    ])
}

fn plan() -> Vec<Step> {
    const PLAN: &str = "1. Look. 2. Change. 3. Test.";
    let item_id = unique("item");
    let mut steps = vec![
        tell(started(&item_id, ItemKind::Plan, None)),
        tell(EventData::assistant(PLAN)),
        tell(completed(&item_id, ItemKind::Plan, None, Some(PLAN))),
    ];
    steps.extend(asking(vec![question("plan", "Approve plan execution?", &["approve", "reject"], false)]));
    steps
}

fn question(header: &str, text: &str, labels: &[&str], multi: bool) -> Fact {
    let options = labels.iter().map(|&label| QuestionOption { label: label.into(), description: None }).collect();
    let question = Question {
        question: text.into(),
        header: Some(header.into()),
        options,
        multi_select: multi.then_some(true),
        custom: Some(true),
    };
    Fact::QuestionAsked(
        QuestionRequest { id: unique("question"), session_id: String::new(), questions: vec![question], tool: None },
        None,
    )
}

/// One of everything that needs no answer.
fn demo() -> Vec<Step> {
    let mut steps = Vec::new();
    for part in [markdown(), reasoning(), tool(), attachment(true), attachment(false), unknown()] {
        steps.extend(part);
    }
    steps.push(notice("Indexing"));
    steps.push(tell(EventData::error("mock_error", "mock error", None)));
    steps.push(tell(EventData::unparsed(json!("{not json"), "expected value at line 1 column 2")));
    steps.push(tell(EventData::Usage(usage())));
    steps
}

/// An id that no other thing of this server has.
fn unique(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("mock-{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
