//! Lines of any kind: none is lost.

use bolero::TypeGenerator;
use carrel_agents::{
    agent::{AgentEvent, AgentMode},
    claude::convert::ClaudeConverter,
    schema::{EventData, UniversalMessage},
};
use serde_json::{Value, json};

use crate::support::{has_raw, raw, rendered};

/// Generated input: arbitrary bytes, or an almost valid message.
#[derive(Clone, Debug, TypeGenerator)]
enum GeneratedInput {
    Bytes(Vec<u8>),
    Message { kind: u8, subtype: u8, id: u8, text: String, block: u8, flag: bool },
    Prompted(u8),
    Interrupted,
}

const KINDS: [&str; 10] = [
    "system",
    "assistant",
    "user",
    "stream_event",
    "result",
    "control_request",
    "control_cancel_request",
    "control_response",
    "command_lifecycle",
    "something_new",
];
const SUBTYPES: [&str; 10] = [
    "init",
    "message_start",
    "content_block_start",
    "content_block_delta",
    "can_use_tool",
    "success",
    "error",
    "cancelled",
    "started",
    "elicitation",
];
const BLOCKS: [&str; 7] = ["text", "thinking", "tool_use", "tool_result", "text_delta", "input_json_delta", "image"];
const TOOLS: [&str; 3] = ["Bash", "AskUserQuestion", "ExitPlanMode"];

fn pick<'a>(list: &[&'a str], at: u8) -> &'a str {
    list[usize::from(at) % list.len()]
}

fn message(kind: u8, subtype: u8, id: u8, words: &str, block: u8, flag: bool) -> Value {
    let (subtype, tool) = (pick(&SUBTYPES, subtype), pick(&TOOLS, id));
    let id = (id % 4).to_string();
    let block = json!({"type": pick(&BLOCKS, block), "text": words, "thinking": words, "partial_json": words, "id": id,
        "tool_use_id": id, "name": tool, "input": {"plan": words}, "content": words, "is_error": flag});
    let question = json!({"question": words, "options": [{"label": words}]});
    json!({
        "type": pick(&KINDS, kind), "subtype": subtype, "state": subtype, "command_uuid": id, "request_id": id,
        "session_id": id, "isReplay": flag && id == "3", "aborted": flag, "is_error": flag, "result": words,
        "parent_tool_use_id": flag.then_some(&id), "origin": flag.then(|| json!({"kind": "task-notification"})),
        "user_message_uuids": [id], "message": {"id": id, "content": [block]},
        "event": {"type": subtype, "index": id.len(), "delta": block, "content_block": block, "message": {"id": id}},
        "request": {"subtype": subtype, "tool_name": tool, "tool_use_id": id, "input": {"questions": [question]}},
        "response": {"subtype": subtype, "request_id": id, "response": {"cancelled": [id]}},
    })
}

//= agents.universal-schema.cannot-parsed-preserved
//= agents.event-streaming.agent-runs-subprocess-output
//= promises.agents-server.lines-agent-dropped
#[test]
fn every_line_of_the_agent_becomes_an_event() {
    bolero::check!().with_type::<Vec<GeneratedInput>>().for_each(|written| {
        let mut converter = ClaudeConverter::new(|path| Some(path.to_owned()));
        let mut open = 0_usize;
        for written in written {
            let line = match written {
                GeneratedInput::Bytes(bytes) => bytes.clone(),
                GeneratedInput::Message { kind, subtype, id, text, block, flag } => {
                    message(*kind, *subtype, *id, text, *block, *flag).to_string().into_bytes()
                }
                GeneratedInput::Prompted(id) => {
                    converter.prompt_sent((id % 4).to_string());
                    continue;
                }
                GeneratedInput::Interrupted => {
                    converter.interrupt_sent();
                    continue;
                }
            };
            let events = converter.convert_line(&line);
            assert_eq!(events.is_empty(), line.trim_ascii().is_empty(), "{}", String::from_utf8_lossy(&line));
            for event in &events {
                assert_eq!(raw(event).is_some(), has_raw(event), "{event:?}");
                match event {
                    AgentEvent::Event(EventData::ItemStarted(_), _) => open += 1,
                    AgentEvent::Event(EventData::ItemCompleted(_), _) => open -= 1,
                    _ => {}
                }
            }
        }
        assert_eq!(converter.close_all().len(), open);
    });
}

/// The events of one line of a new conversation.
fn events(line: &[u8]) -> Vec<Value> {
    ClaudeConverter::new(|_| None).convert_line(line).iter().map(rendered).collect()
}

//= agents.universal-schema.message-parsed-role-parts
//= promises.agents-server.lines-agent-dropped
#[test]
fn a_line_that_is_not_json_is_kept_unparsed() {
    for line in [&b"Warning: something"[..], b"{\"type\":", b"\xff\xfe", &[b'['; 10_000]] {
        let events = ClaudeConverter::new(|_| None).convert_line(line);
        let [AgentEvent::Event(EventData::Message(UniversalMessage::Unparsed(kept)), _)] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(kept.raw, json!(String::from_utf8_lossy(line)));
        assert!(kept.error.is_some());
    }
}

//= agents.universal-schema.cannot-parsed-preserved
#[test]
fn json_of_an_unknown_type_is_a_raw_event() {
    for line in [json!({"type": "from_the_future", "a": 1}), json!(7), json!(["type"]), json!({"type": 3})] {
        assert_eq!(events(line.to_string().as_bytes()), [json!({"raw": line})]);
    }
}

//= agents.modes-capabilities.files-images-parts
//= agents.universal-schema.parts-text-tool-call
#[test]
fn images_and_documents_that_a_tool_returns_are_parts() {
    let source = |kind: &str| json!({"type": "base64", "data": "AA==", "media_type": kind});
    let blocks = json!([
        {"type": "text", "text": "a"},
        {"type": "image", "source": source("image/png")},
        {"type": "document", "source": source("application/pdf"), "title": "b.pdf"},
        {"type": "image", "source": {"type": "url", "url": "http://c.test/"}},
        {"type": "image", "source": {"type": "file", "file_id": "d"}},
    ]);
    let data = json!({"type": "data", "data": "AA==", "encoding": "base64"});
    let attachments = [
        json!({"type": "image", "source": data, "mime_type": "image/png"}),
        json!({"type": "file", "source": data, "mime_type": "application/pdf", "filename": "b.pdf"}),
        json!({"type": "image", "source": {"type": "url", "url": "http://c.test/"}}),
    ];
    let parts = |line: Value| {
        let events = events(line.to_string().as_bytes());
        let mut messages = events.into_iter().filter_map(|event| event.get("message").cloned());
        messages.next().unwrap()["parts"].as_array().unwrap().clone()
    };
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": blocks});
    let found = parts(json!({"type": "user", "message": {"content": [result]}}));
    let result = json!({"type": "tool_result", "id": "t", "output": blocks, "is_error": false});
    assert_eq!((&found[0], &found[1..]), (&result, &attachments[..]));

    let rest = [json!({"type": "unknown", "raw": blocks[4]})];
    let whole = [&[json!({"type": "text", "text": "a"})], &attachments[..], &rest].concat();
    assert_eq!(parts(json!({"type": "assistant", "message": {"id": "m", "content": blocks}})), whole);
    assert_eq!(parts(json!({"type": "user", "parent_tool_use_id": "t", "message": {"content": blocks}})), whole);
}

//= promises.agents-server.longest-line-agent
#[test]
fn the_beginning_of_a_truncated_line_is_kept() {
    let events = ClaudeConverter::new(|_| None).convert_truncated(&vec![b'x'; 1_000_000], 7);
    let [AgentEvent::Event(EventData::Message(UniversalMessage::Unparsed(kept)), _)] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(kept.error.as_deref(), Some("a line of more than 7 bytes"));
    assert_eq!(kept.raw.as_str().map(str::len), Some(64 * 1024));
}

#[test]
fn a_result_that_no_message_contained_is_logged() {
    let mut converter = ClaudeConverter::new(|_| None);
    converter.prompt_sent("p");
    let events = converter.convert_line(br#"{"type":"result","subtype":"success","result":"42"}"#);
    let events: Vec<_> = events.iter().map(rendered).collect();
    let output = json!({"message": {"role": "assistant", "parts": [{"type": "text", "text": "42"}]}});
    assert_eq!(events.first(), Some(&output));
    assert_eq!(events.last().unwrap()["turnEnded"]["outcome"], "completed");
}

#[test]
fn the_agents_own_turn_does_not_end_that_of_a_queued_prompt() {
    let mut converter = ClaudeConverter::new(|_| None);
    let events = |converter: &mut ClaudeConverter, line: Value| -> Vec<_> {
        converter.convert_line(line.to_string().as_bytes()).iter().map(rendered).collect()
    };
    assert!(events(&mut converter, json!({"type": "system", "subtype": "init"})).contains(&json!("turnStarted")));
    converter.prompt_sent("p");
    let mut events = |line| events(&mut converter, line);
    let ends = |events: &[Value]| events.iter().any(|event| event.get("turnEnded").is_some());
    assert!(!ends(&events(json!({"type": "result", "origin": {"kind": "task-notification"}}))));
    events(json!({"type": "command_lifecycle", "command_uuid": "p", "state": "started"}));
    let init = events(json!({"type": "system", "subtype": "init", "user_message_uuids": ["p"]}));
    assert!(!init.contains(&json!("turnStarted")));
    assert!(ends(&events(json!({"type": "result", "user_message_uuids": ["p"]}))));
}

#[test]
fn a_cancelled_prompt_ends_its_turn_once() {
    let mut converter = ClaudeConverter::new(|_| None);
    converter.prompt_sent("p");
    converter.interrupt_sent();
    let cancelled = br#"{"type":"command_lifecycle","command_uuid":"p","state":"cancelled"}"#;
    let response = br#"{"type":"control_response","response":{"subtype":"success","response":{"cancelled":["p"]}}}"#;
    let ends =
        |events: Vec<AgentEvent>| events.iter().filter(|event| matches!(event, AgentEvent::TurnEnded { .. })).count();
    assert_eq!(ends(converter.convert_line(response)), 1);
    assert_eq!(ends(converter.convert_line(cancelled)), 0);
}

/// A message with this many blocks.
fn blocks(role: &str, count: usize, block: impl Fn(usize) -> Value) -> String {
    let blocks: Vec<_> = (0..count).map(block).collect();
    json!({"type": role, "message": {"id": "m", "content": blocks}}).to_string()
}

/// Total size of the raw messages of these events.
fn words(events: &[AgentEvent]) -> usize {
    events.iter().filter_map(raw).map(|raw| raw.get().len()).sum()
}

#[test]
fn a_message_with_very_many_blocks_keeps_its_raw_message_once() {
    let text = |_| json!({"type": "text", "text": "x"});
    let line = blocks("assistant", 100_000, text);
    let events = ClaudeConverter::new(|_| None).convert_line(line.as_bytes());
    assert_eq!(words(&events), line.len());
    assert!(events.len() < 4_096, "{}", events.len());
    let rest = events.iter().find_map(|event| match event {
        AgentEvent::Event(EventData::Raw(rest), _) => rest.as_array().map(Vec::len),
        _ => None,
    });
    assert_eq!(rest, Some(100_000 - 1_024));
    let Some(AgentEvent::Event(EventData::Message(_), Some(_))) = events.last() else { panic!("{:?}", events.last()) };
}

#[test]
fn a_large_result_keeps_its_raw_message_once() {
    let mut converter = ClaudeConverter::new(|_| None);
    converter.prompt_sent("p");
    for message in 0..40 {
        let tool = |at| json!({"type": "tool_use", "id": format!("{message}/{at}"), "name": "Bash", "input": {}});
        converter.convert_line(blocks("assistant", 1_000, tool).as_bytes());
    }
    let line = json!({"type": "result", "result": "x".repeat(100_000)}).to_string();
    let events = converter.convert_line(line.as_bytes());
    assert!(events.len() > 40_000);
    assert_eq!(words(&events), line.len());
    assert!(matches!(events.last(), Some(AgentEvent::TurnEnded { raw: Some(_), .. })));
}

#[test]
fn a_line_with_too_many_values_is_kept_unparsed() {
    let line = format!(r#"{{"type":"assistant","x":[{}0]}}"#, "0,".repeat(1_000_000));
    let events = events(line.as_bytes());
    assert_eq!(events[0]["message"]["raw"].as_str(), Some(line.as_str()));
}

#[test]
fn a_reported_mode_is_one_that_the_agent_can_have() {
    let events = |converter: &mut ClaudeConverter, mode: &str| -> Vec<Value> {
        let line = json!({"type": "system", "subtype": "status", "permissionMode": mode}).to_string();
        let events = converter.convert_line(line.as_bytes());
        events.iter().map(rendered).filter_map(|event| event.get("modes").cloned()).collect()
    };
    let mut converter = ClaudeConverter::new(|_| None);
    assert_eq!(events(&mut converter, "bypassPermissions"), [json!(null); 0]);
    converter.set_may_bypass(true);
    assert_eq!(events(&mut converter, "bypassPermissions"), [json!(["build", "bypass"])]);
    // Permission mode plan differs from agent mode plan until either ends.
    assert_eq!(events(&mut converter, "plan"), [json!(["build", "plan"])]);
    converter.set_agent_mode(AgentMode::Plan);
    assert_eq!(events(&mut converter, "plan"), [json!(["plan", "plan"])]);
    assert_eq!(events(&mut converter, "default"), [json!(["build", "default"])]);
    assert_eq!(events(&mut converter, "plan"), [json!(["build", "plan"])]);
}
