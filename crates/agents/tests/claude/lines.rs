//! Lines of any kind: none is lost, and none does harm.

use bolero::TypeGenerator;
use carrel_agents::{
    agent::{AgentMode, Fact},
    claude::convert::Converter,
    schema::{EventData, Message},
};
use serde_json::{Value, json};

use crate::support::{has_raw, raw, rendered};

/// A line as a program may write it: anything, or nearly what it should be.
#[derive(Clone, Debug, TypeGenerator)]
enum Written {
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
fn no_line_is_lost_whatever_it_is() {
    bolero::check!().with_type::<Vec<Written>>().for_each(|written| {
        let mut converter = Converter::new(|path| Some(path.to_owned()));
        let mut open = 0_usize;
        for written in written {
            let line = match written {
                Written::Bytes(bytes) => bytes.clone(),
                Written::Message { kind, subtype, id, text, block, flag } => {
                    message(*kind, *subtype, *id, text, *block, *flag).to_string().into_bytes()
                }
                Written::Prompted(id) => {
                    converter.prompted((id % 4).to_string());
                    continue;
                }
                Written::Interrupted => {
                    converter.interrupted();
                    continue;
                }
            };
            let facts = converter.line(&line);
            assert_eq!(facts.is_empty(), line.trim_ascii().is_empty(), "{}", String::from_utf8_lossy(&line));
            for fact in &facts {
                assert_eq!(raw(fact).is_some(), has_raw(fact), "{fact:?}");
                match fact {
                    Fact::Event(EventData::ItemStarted(_), _) => open += 1,
                    Fact::Event(EventData::ItemCompleted(_), _) => open -= 1,
                    _ => {}
                }
            }
        }
        assert_eq!(converter.ended().len(), open);
    });
}

/// The facts of one line of a new conversation.
fn facts(line: &[u8]) -> Vec<Value> {
    Converter::new(|_| None).line(line).iter().map(rendered).collect()
}

//= agents.universal-schema.message-parsed-role-parts
//= promises.agents-server.lines-agent-dropped
#[test]
fn what_is_no_json_is_kept_as_it_came() {
    for line in [&b"Warning: something"[..], b"{\"type\":", b"\xff\xfe", &[b'['; 10_000]] {
        let facts = Converter::new(|_| None).line(line);
        let [Fact::Event(EventData::Message(Message::Unparsed(kept)), _)] = facts.as_slice() else {
            panic!("{facts:?}")
        };
        assert_eq!(kept.raw, json!(String::from_utf8_lossy(line)));
        assert!(kept.error.is_some());
    }
}

//= agents.universal-schema.cannot-parsed-preserved
#[test]
fn json_that_nobody_knows_is_raw() {
    for line in [json!({"type": "from_the_future", "a": 1}), json!(7), json!(["type"]), json!({"type": 3})] {
        assert_eq!(facts(line.to_string().as_bytes()), [json!({"raw": line})]);
    }
}

//= promises.agents-server.longest-line-agent
#[test]
fn the_beginning_of_a_line_that_is_too_long_is_kept() {
    let facts = Converter::new(|_| None).cut(&vec![b'x'; 1_000_000], 7);
    let [Fact::Event(EventData::Message(Message::Unparsed(kept)), _)] = facts.as_slice() else { panic!("{facts:?}") };
    assert_eq!(kept.error.as_deref(), Some("a line of more than 7 bytes"));
    assert_eq!(kept.raw.as_str().map(str::len), Some(64 * 1024));
}

#[test]
fn a_result_that_was_not_said_is_said() {
    let mut converter = Converter::new(|_| None);
    converter.prompted("p");
    let facts = converter.line(br#"{"type":"result","subtype":"success","result":"42"}"#);
    let facts: Vec<_> = facts.iter().map(rendered).collect();
    let said = json!({"message": {"role": "assistant", "parts": [{"type": "text", "text": "42"}]}});
    assert_eq!(facts.first(), Some(&said));
    assert_eq!(facts.last().unwrap()["turnEnded"]["outcome"], "completed");
}

#[test]
fn a_turn_of_the_agents_own_does_not_end_the_prompt_behind_it() {
    let mut converter = Converter::new(|_| None);
    let told = |converter: &mut Converter, line: Value| -> Vec<_> {
        converter.line(line.to_string().as_bytes()).iter().map(rendered).collect()
    };
    assert!(told(&mut converter, json!({"type": "system", "subtype": "init"})).contains(&json!("turnStarted")));
    converter.prompted("p");
    let mut told = |line| told(&mut converter, line);
    let ends = |facts: &[Value]| facts.iter().any(|fact| fact.get("turnEnded").is_some());
    assert!(!ends(&told(json!({"type": "result", "origin": {"kind": "task-notification"}}))));
    told(json!({"type": "command_lifecycle", "command_uuid": "p", "state": "started"}));
    let init = told(json!({"type": "system", "subtype": "init", "user_message_uuids": ["p"]}));
    assert!(!init.contains(&json!("turnStarted")));
    assert!(ends(&told(json!({"type": "result", "user_message_uuids": ["p"]}))));
}

#[test]
fn a_prompt_that_is_taken_back_ends_its_turn_once() {
    let mut converter = Converter::new(|_| None);
    converter.prompted("p");
    converter.interrupted();
    let cancelled = br#"{"type":"command_lifecycle","command_uuid":"p","state":"cancelled"}"#;
    let response = br#"{"type":"control_response","response":{"subtype":"success","response":{"cancelled":["p"]}}}"#;
    let ends = |facts: Vec<Fact>| facts.iter().filter(|fact| matches!(fact, Fact::TurnEnded { .. })).count();
    assert_eq!(ends(converter.line(response)), 1);
    assert_eq!(ends(converter.line(cancelled)), 0);
}

/// A line of this many blocks of a kind.
fn blocks(role: &str, count: usize, block: impl Fn(usize) -> Value) -> String {
    let blocks: Vec<_> = (0..count).map(block).collect();
    json!({"type": role, "message": {"id": "m", "content": blocks}}).to_string()
}

/// How many bytes of the agent's own words go with these facts.
fn words(facts: &[Fact]) -> usize {
    facts.iter().filter_map(raw).map(|raw| raw.get().len()).sum()
}

#[test]
fn a_message_of_very_many_blocks_is_told_once() {
    let text = |_| json!({"type": "text", "text": "x"});
    let line = blocks("assistant", 100_000, text);
    let facts = Converter::new(|_| None).line(line.as_bytes());
    assert_eq!(words(&facts), line.len());
    assert!(facts.len() < 4_096, "{}", facts.len());
    let rest = facts.iter().find_map(|fact| match fact {
        Fact::Event(EventData::Raw(rest), _) => rest.as_array().map(Vec::len),
        _ => None,
    });
    assert_eq!(rest, Some(100_000 - 1_024));
    let Some(Fact::Event(EventData::Message(_), Some(_))) = facts.last() else { panic!("{:?}", facts.last()) };
}

#[test]
fn the_words_of_a_long_end_are_not_kept_with_everything_that_it_ends() {
    let mut converter = Converter::new(|_| None);
    converter.prompted("p");
    for message in 0..40 {
        let tool = |at| json!({"type": "tool_use", "id": format!("{message}/{at}"), "name": "Bash", "input": {}});
        converter.line(blocks("assistant", 1_000, tool).as_bytes());
    }
    let line = json!({"type": "result", "result": "x".repeat(100_000)}).to_string();
    let facts = converter.line(line.as_bytes());
    assert!(facts.len() > 40_000);
    assert_eq!(words(&facts), line.len());
    assert!(matches!(facts.last(), Some(Fact::TurnEnded { raw: Some(_), .. })));
}

#[test]
fn a_line_of_very_many_values_is_kept_and_not_read() {
    let line = format!(r#"{{"type":"assistant","x":[{}0]}}"#, "0,".repeat(1_000_000));
    let facts = facts(line.as_bytes());
    assert_eq!(facts[0]["message"]["raw"].as_str(), Some(line.as_str()));
}

#[test]
fn a_mode_that_the_agent_tells_is_one_that_it_can_have() {
    let told = |converter: &mut Converter, mode: &str| -> Vec<Value> {
        let line = json!({"type": "system", "subtype": "status", "permissionMode": mode}).to_string();
        let facts = converter.line(line.as_bytes());
        facts.iter().map(rendered).filter_map(|fact| fact.get("modes").cloned()).collect()
    };
    let mut converter = Converter::new(|_| None);
    assert_eq!(told(&mut converter, "bypassPermissions"), [json!(null); 0]);
    converter.bypasses(true);
    assert_eq!(told(&mut converter, "bypassPermissions"), [json!(["build", "bypass"])]);
    // To plan by its permissions is another thing than to plan, until it is done with either.
    assert_eq!(told(&mut converter, "plan"), [json!(["build", "plan"])]);
    converter.works(AgentMode::Plan);
    assert_eq!(told(&mut converter, "plan"), [json!(["plan", "plan"])]);
    assert_eq!(told(&mut converter, "default"), [json!(["build", "default"])]);
    assert_eq!(told(&mut converter, "plan"), [json!(["build", "plan"])]);
}
