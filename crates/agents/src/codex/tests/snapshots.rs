//! Recorded sessions of Codex 0.166.0, and what the server makes of them.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    agent::{Fact, Prompt},
    codex::{
        convert::Thread,
        rpc::{self, Line},
    },
    words,
};

/// A fact as a reviewer reads it.
pub(super) fn rendered(fact: &Fact) -> Value {
    match fact {
        Fact::Event(event, _) => json!({"event": event}),
        Fact::NativeId(id) => json!({"nativeId": id}),
        Fact::Modes(agent, permission) => json!({"modes": [agent, permission]}),
        Fact::TurnStarted => json!("turnStarted"),
        Fact::TurnEnded { outcome, message, usage, .. } => {
            json!({"turnEnded": {"outcome": outcome, "message": message, "usage": usage}})
        }
        Fact::PermissionAsked(request, _) => json!({"permissionAsked": request}),
        Fact::QuestionAsked(request, _) => json!({"questionAsked": request}),
        Fact::Withdrawn(id) => json!({"withdrawn": id}),
        Fact::Gone(gone) => json!({"gone": format!("{gone:?}")}),
    }
}

/// The prompt of the turn whose id was answered: it is said back right after.
fn prompt_after(lines: &[&str], at: usize) -> Option<Prompt> {
    let mut said = lines[at..].iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let item = said.find(|said| said["params"]["item"]["type"] == "userMessage")?;
    let text = item["params"]["item"]["content"][0]["text"].as_str()?.to_owned();
    Some(Prompt { id: "ours".to_owned(), text })
}

/// Plays a recording as the driver would. Nobody answers here, so what was answered then is taken back.
fn play(recording: &str) -> String {
    let lines: Vec<&str> = recording.lines().collect();
    let mut thread = Thread::default();
    let mut facts = Vec::new();
    let mut told = String::new();
    for (at, line) in lines.iter().enumerate() {
        match rpc::read(line.as_bytes()).unwrap() {
            Line::Answer { result, .. } => {
                let answer = result.unwrap();
                if let Some(id) = answer.pointer("/thread/id") {
                    thread = Thread::new(id.as_str().unwrap(), "codex-server");
                }
                if answer.pointer("/turn/id").is_some() {
                    let prompt = prompt_after(&lines, at).unwrap();
                    thread.prompted(&prompt, &prompt.text);
                    thread.answered(Ok(&answer), &mut facts);
                    assert!(facts.is_empty());
                }
            }
            Line::Said(said) => {
                let raw = words::as_it_came(line.as_bytes());
                match said.id {
                    None => thread.heard(&said, raw, &mut facts),
                    Some(_) => thread.asked(&said, raw, &mut facts).unwrap(),
                }
                assert!(!facts.is_empty(), "nothing was told of {line}");
            }
        }
        for fact in facts.drain(..) {
            told.push_str(&rendered(&fact).to_string());
            told.push('\n');
        }
    }
    told
}

//= agents.schema-pipeline.schemas-extracted-agents-fallbacks
//= agents.universal-schema.agent-converter-universal-form
#[test]
fn recordings_are_told_as_reviewed() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut recordings: Vec<_> =
        fs::read_dir(tests.join("fixtures/codex")).unwrap().map(|entry| entry.unwrap().path()).collect();
    recordings.sort();
    assert!(recordings.len() >= 10, "recordings are missing: {recordings:?}");
    for recording in recordings {
        let reviewed_at = tests.join("snapshots/codex").join(recording.file_name().unwrap());
        let facts = play(&fs::read_to_string(&recording).unwrap());
        if std::env::var_os("UPDATE_AGENT_SNAPSHOTS").is_some() {
            fs::create_dir_all(reviewed_at.parent().unwrap()).unwrap();
            fs::write(&reviewed_at, &facts).unwrap();
        }
        let reviewed = fs::read_to_string(&reviewed_at).unwrap_or_default();
        let first = facts.lines().zip(reviewed.lines()).find(|(now, then)| now != then);
        assert!(
            facts == reviewed,
            "the facts of {} differ from {}, first at {first:#?}\nhint: review the change, then run the test with \
             UPDATE_AGENT_SNAPSHOTS=1",
            recording.display(),
            reviewed_at.display()
        );
    }
}
