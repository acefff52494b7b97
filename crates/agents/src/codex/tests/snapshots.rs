//! Recorded sessions of Codex 0.166.0 and their events.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    agent::{AgentEvent, Prompt},
    codex::{
        convert::ThreadState,
        rpc::{self, RpcMessage},
    },
    json_line,
};

/// An event as a reviewer reads it.
pub(super) fn rendered(event: &AgentEvent) -> Value {
    match event {
        AgentEvent::Event(event, _) => json!({"event": event}),
        AgentEvent::NativeId(id) => json!({"nativeId": id}),
        AgentEvent::Modes(agent, permission) => json!({"modes": [agent, permission]}),
        AgentEvent::TurnStarted => json!("turnStarted"),
        AgentEvent::TurnEnded { outcome, message, usage, .. } => {
            json!({"turnEnded": {"outcome": outcome, "message": message, "usage": usage}})
        }
        AgentEvent::PermissionAsked(request, _) => json!({"permissionAsked": request}),
        AgentEvent::QuestionAsked(request, _) => json!({"questionAsked": request}),
        AgentEvent::Withdrawn(id) => json!({"withdrawn": id}),
        AgentEvent::Exited(gone) => json!({"gone": format!("{gone:?}")}),
    }
}

/// The prompt of the turn: the app-server echoes it after the response.
fn prompt_after(lines: &[&str], at: usize) -> Option<Prompt> {
    let mut request = lines[at..].iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let item = request.find(|request| request["params"]["item"]["type"] == "userMessage")?;
    let text = item["params"]["item"]["content"][0]["text"].as_str()?.to_owned();
    Some(Prompt { id: "ours".to_owned(), text })
}

/// Replays a recording. Nothing is answered here, so answered requests are withdrawn.
fn play(recording: &str) -> String {
    let lines: Vec<&str> = recording.lines().collect();
    let mut thread = ThreadState::default();
    let mut events = Vec::new();
    let mut output = String::new();
    for (at, line) in lines.iter().enumerate() {
        match rpc::read(line.as_bytes()).unwrap() {
            RpcMessage::Response { result, .. } => {
                let answer = result.unwrap();
                if let Some(id) = answer.pointer("/thread/id") {
                    thread = ThreadState::new(id.as_str().unwrap(), "codex-server");
                }
                if answer.pointer("/turn/id").is_some() {
                    let prompt = prompt_after(&lines, at).unwrap();
                    thread.prompt_sent(&prompt, &prompt.text);
                    thread.turn_start_response(Ok(&answer), &mut events);
                    assert!(events.is_empty());
                }
            }
            RpcMessage::Request(request) => {
                let raw = json_line::to_raw(line.as_bytes());
                match request.id {
                    None => thread.handle_notification(&request, raw, &mut events),
                    Some(_) => thread.handle_request(&request, raw, &mut events).unwrap(),
                }
                assert!(!events.is_empty(), "no event for {line}");
            }
        }
        for event in events.drain(..) {
            output.push_str(&rendered(&event).to_string());
            output.push('\n');
        }
    }
    output
}

//= agents.schema-pipeline.schemas-extracted-agents-fallbacks
//= agents.universal-schema.agent-converter-universal-form
#[test]
fn recordings_are_converted_as_reviewed() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut recordings: Vec<_> =
        fs::read_dir(tests.join("fixtures/codex")).unwrap().map(|entry| entry.unwrap().path()).collect();
    recordings.sort();
    assert!(recordings.len() >= 10, "recordings are missing: {recordings:?}");
    for recording in recordings {
        let reviewed_at = tests.join("snapshots/codex").join(recording.file_name().unwrap());
        let events = play(&fs::read_to_string(&recording).unwrap());
        if std::env::var_os("UPDATE_AGENT_SNAPSHOTS").is_some() {
            fs::create_dir_all(reviewed_at.parent().unwrap()).unwrap();
            fs::write(&reviewed_at, &events).unwrap();
        }
        let reviewed = fs::read_to_string(&reviewed_at).unwrap_or_default();
        let first = events.lines().zip(reviewed.lines()).find(|(now, then)| now != then);
        assert!(
            events == reviewed,
            "the facts of {} differ from {}, first at {first:#?}\nhint: review the change, then run the test with \
             UPDATE_AGENT_SNAPSHOTS=1",
            recording.display(),
            reviewed_at.display()
        );
    }
}
