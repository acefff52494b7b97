//! Recorded sessions of Claude Code 2.1.325 and their events.

use std::{fs, path::Path};

use carrel_agents::claude::convert::ClaudeConverter;
use serde_json::Value;

use crate::support::{has_raw, raw, rendered};

/// Replays a recording: a prompt is sent before the agent reports it.
fn play(recording: &str) -> String {
    let mut converter = ClaudeConverter::new(|_| None);
    let mut events = String::new();
    for line in recording.lines() {
        let native: Value = serde_json::from_str(line).unwrap();
        if native["state"] == "queued" {
            converter.prompt_sent(native["command_uuid"].as_str().unwrap());
        }
        if native["response"]["request_id"] == "interrupt" {
            converter.interrupt_sent();
        }
        for event in converter.convert_line(line.as_bytes()) {
            assert_eq!(raw(&event).map(ToString::to_string), has_raw(&event).then(|| line.to_owned()));
            events.push_str(&rendered(&event).to_string());
            events.push('\n');
        }
    }
    assert!(converter.close_all().is_empty(), "something was left open");
    events
}

//= agents.schema-pipeline.schemas-extracted-agents-fallbacks
//= agents.universal-schema.agent-converter-universal-form
//= agents.compatibility.session-ids-session-id
#[test]
fn recordings_are_converted_as_reviewed() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut recordings: Vec<_> =
        fs::read_dir(tests.join("fixtures/claude")).unwrap().map(|entry| entry.unwrap().path()).collect();
    recordings.sort();
    assert!(recordings.len() >= 12, "recordings are missing: {recordings:?}");
    for recording in recordings {
        let reviewed_at = tests.join("snapshots/claude").join(recording.file_name().unwrap());
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
