//! What is kept over a restart.

use super::*;
use crate::{
    agent::{AgentId, AgentMode, PermissionMode},
    log::{Entry, Heading, Log, Position, Style, View, Wish},
    schema::{EventData, Notice, SessionEnded},
};

fn record(id: &str, created_at: u64) -> Record {
    Record {
        session_id: id.into(),
        agent: AgentId::Mock,
        agent_mode: AgentMode::Build,
        permission_mode: PermissionMode::Default,
        model: None,
        variant: None,
        native_id: Some(format!("mock-{id}")),
        begun: true,
        end: None,
        created_at,
        updated_at: created_at,
        directory: "/".into(),
        title: None,
        turns: 0,
        running: false,
        queue: Vec::new(),
    }
}

fn entries(count: usize) -> Vec<Entry> {
    let heading = Heading::new("2026-01-01T00:00:00.000Z", "s", "mock", None);
    let raw = || crate::agent::raw(&serde_json::json!({"n": 1}));
    (0..count)
        .flat_map(|number| {
            let notice = EventData::Notice(Notice { label: "x".into(), details: None });
            [
                Entry::new(&heading, &EventData::assistant(format!("{number}")), raw()),
                Entry::new(&heading, &notice, None),
            ]
        })
        .collect()
}

fn text(log: &Log, view: View) -> String {
    let mut out = Vec::new();
    log.read(Wish { view, raw: true, style: Style::Array }, 0, usize::MAX, usize::MAX, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn what_was_kept_is_read_again_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let before = Log::default();
    before.append(entries(50));
    {
        let keep = Keep::open(dir.path()).unwrap();
        let mut shelf = keep.shelf("any/id \u{0}").unwrap();
        shelf.append(&entries(50)).unwrap();
        shelf.record(&record("any/id \u{0}", 2)).unwrap();
        keep.shelf("older").unwrap().record(&record("older", 1)).unwrap();
    }
    let kept = Keep::open(dir.path()).unwrap().load();
    assert_eq!(kept.iter().map(|(record, _)| record.created_at).collect::<Vec<_>>(), [1, 2]);
    let (found, shelf) = &kept[1];
    assert_eq!(*found, record("any/id \u{0}", 2));
    assert_eq!(shelf.last(), Position { default: 50, full: 100 });
    let after = Log::dormant(shelf.last(), shelf.reader());
    for view in [View::Default, View::Full] {
        assert_eq!(text(&after, view), text(&before, view));
    }
}

//= promises.agents-server.data-dir-events-after
#[test]
fn a_log_that_was_torn_anywhere_goes_on_behind_its_last_whole_line() {
    let dir = tempfile::tempdir().unwrap();
    let (path, whole) = {
        let keep = Keep::open(dir.path()).unwrap();
        let mut shelf = keep.shelf("s").unwrap();
        shelf.append(&entries(2)).unwrap();
        shelf.record(&record("s", 1)).unwrap();
        let path = std::fs::read_dir(dir.path().join("sessions")).unwrap().next().unwrap().unwrap().path();
        let path = path.join("events.jsonl");
        (path.clone(), std::fs::read(path).unwrap())
    };
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
        let mut kept = Keep::open(dir.path()).unwrap().load();
        let (_, shelf) = &mut kept[0];
        assert_eq!(shelf.last().full, lines, "cut at {cut}");
        shelf.append(&entries(1)).unwrap();
        let log = Log::dormant(shelf.last(), shelf.reader());
        let events: Vec<serde_json::Value> = serde_json::from_str(&format!("[{}]", text(&log, View::Full))).unwrap();
        assert_eq!(events.len() as u64, lines + 2, "cut at {cut}");
    }
    // A hole, as a power cut leaves one.
    std::fs::write(&path, [&whole[..], &[0; 5000], b"\n"].concat()).unwrap();
    assert_eq!(Keep::open(dir.path()).unwrap().load()[0].1.last().full, 4);
}

#[test]
fn the_files_of_a_session_keep_their_format() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep::open(dir.path()).unwrap();
    let mut shelf = keep.shelf("s").unwrap();
    shelf.append(&entries(1)).unwrap();
    let end = SessionEnded { reason: "exited".into(), exit_code: Some(1), ..SessionEnded::default() };
    let queue = vec![WaitingRecord { id: "m".into(), text: "hi".into(), named: true }];
    let full = Record { model: Some("large".into()), end: Some(end), title: Some("t".into()), queue, ..record("s", 7) };
    shelf.record(&full).unwrap();
    let path = std::fs::read_dir(dir.path().join("sessions")).unwrap().next().unwrap().unwrap().path();
    assert!(path.ends_with("043a718774c572bd8a25adbeb1bfcd5c"), "{}", path.display());
    assert_eq!(
        std::fs::read_to_string(path.join("session.json")).unwrap(),
        concat!(
            r#"{"sessionId":"s","agent":"mock","agentMode":"build","permissionMode":"default","model":"large","#,
            r#""variant":null,"nativeId":"mock-s","begun":true,"end":{"reason":"exited","exitCode":1},"createdAt":7,"#,
            r#""updatedAt":7,"directory":"/","title":"t","turns":0,"running":false,"#,
            r#""queue":[{"id":"m","text":"hi","named":true}]}"#
        )
    );
    let head = r#""timestamp":"2026-01-01T00:00:00.000Z","sessionId":"s","agent":"mock","#;
    let message = r#""data":{"message":{"role":"assistant","parts":[{"type":"text","text":"0"}]}},"raw":{"n":1}}"#;
    let notice = r#""data":{"notice":{"label":"x"}}}"#;
    assert_eq!(
        std::fs::read_to_string(path.join("events.jsonl")).unwrap(),
        format!("{{\"id\":1,\"default\":1,{head}{message}\n{{\"id\":2,\"default\":1,{head}{notice}\n")
    );
}

#[test]
fn two_servers_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep::open(dir.path()).unwrap();
    assert!(matches!(Keep::open(dir.path()), Err(KeepError::Taken(_))));
    drop(keep);
}

#[test]
fn a_session_that_is_removed_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep::open(dir.path()).unwrap();
    let shelf = keep.shelf("s").unwrap();
    shelf.record(&record("s", 1)).unwrap();
    shelf.remove().unwrap();
    assert!(keep.load().is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("sessions")).unwrap().count(), 0);
}
