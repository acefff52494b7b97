//! Tests of the files on disk.

use super::*;
use crate::{
    agent::{AgentId, AgentMode, PermissionMode},
    log::{EventFormat, EventHeader, EventView, LogEntry, LogPosition, LogReadOptions, SessionLog},
    schema::{EventData, Notice, SessionEnded},
};

fn record(id: &str, created_at: u64) -> SessionRecord {
    SessionRecord {
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

fn entries(count: usize) -> Vec<LogEntry> {
    let header = EventHeader::new("2026-01-01T00:00:00.000Z", "s", "mock", None);
    let raw = || crate::agent::raw(&serde_json::json!({"n": 1}));
    (0..count)
        .flat_map(|number| {
            let notice = EventData::Notice(Notice { label: "x".into(), details: None });
            [
                LogEntry::new(&header, &EventData::assistant(format!("{number}")), raw()),
                LogEntry::new(&header, &notice, None),
            ]
        })
        .collect()
}

fn text(log: &SessionLog, view: EventView) -> String {
    let mut out = Vec::new();
    log.read(LogReadOptions { view, raw: true, format: EventFormat::JsonArray }, 0, usize::MAX, usize::MAX, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_stored_session_is_restored_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let before = SessionLog::default();
    before.append(entries(50));
    {
        let store = SessionStore::open(dir.path()).unwrap();
        let mut session_dir = store.create("any/id \u{0}").unwrap();
        session_dir.append(&entries(50)).unwrap();
        session_dir.write_record(&record("any/id \u{0}", 2)).unwrap();
        store.create("older").unwrap().write_record(&record("older", 1)).unwrap();
    }
    let loaded = SessionStore::open(dir.path()).unwrap().load();
    assert_eq!(loaded.iter().map(|(record, _)| record.created_at).collect::<Vec<_>>(), [1, 2]);
    let (found, session_dir) = &loaded[1];
    assert_eq!(*found, record("any/id \u{0}", 2));
    assert_eq!(session_dir.last(), LogPosition { default: 50, full: 100 });
    let after = SessionLog::lazy(session_dir.last(), session_dir.reader());
    for view in [EventView::Default, EventView::Full] {
        assert_eq!(text(&after, view), text(&before, view));
    }
}

//= promises.agents-server.data-dir-events-after
#[test]
fn a_log_with_an_incomplete_line_continues_after_the_last_complete_one() {
    let dir = tempfile::tempdir().unwrap();
    let (path, whole) = {
        let store = SessionStore::open(dir.path()).unwrap();
        let mut session_dir = store.create("s").unwrap();
        session_dir.append(&entries(2)).unwrap();
        session_dir.write_record(&record("s", 1)).unwrap();
        let path = std::fs::read_dir(dir.path().join("sessions")).unwrap().next().unwrap().unwrap().path();
        let path = path.join("events.jsonl");
        (path.clone(), std::fs::read(path).unwrap())
    };
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
        let mut loaded = SessionStore::open(dir.path()).unwrap().load();
        let (_, session_dir) = &mut loaded[0];
        assert_eq!(session_dir.last().full, lines, "cut at {cut}");
        session_dir.append(&entries(1)).unwrap();
        let log = SessionLog::lazy(session_dir.last(), session_dir.reader());
        let events: Vec<serde_json::Value> =
            serde_json::from_str(&format!("[{}]", text(&log, EventView::Full))).unwrap();
        assert_eq!(events.len() as u64, lines + 2, "cut at {cut}");
    }
    // A hole, as a power failure leaves it.
    std::fs::write(&path, [&whole[..], &[0; 5000], b"\n"].concat()).unwrap();
    assert_eq!(SessionStore::open(dir.path()).unwrap().load()[0].1.last().full, 4);
}

#[test]
fn the_files_of_a_session_keep_their_format() {
    let dir = tempfile::tempdir().unwrap();
    let store = SessionStore::open(dir.path()).unwrap();
    let mut session_dir = store.create("s").unwrap();
    session_dir.append(&entries(1)).unwrap();
    let end = SessionEnded { reason: "exited".into(), exit_code: Some(1), ..SessionEnded::default() };
    let queue = vec![QueuedPromptRecord { id: "m".into(), text: "hi".into(), named: true }];
    let full =
        SessionRecord { model: Some("large".into()), end: Some(end), title: Some("t".into()), queue, ..record("s", 7) };
    session_dir.write_record(&full).unwrap();
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
    let store = SessionStore::open(dir.path()).unwrap();
    assert!(matches!(SessionStore::open(dir.path()), Err(SessionStoreError::Locked(_))));
    drop(store);
}

#[test]
fn a_removed_session_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = SessionStore::open(dir.path()).unwrap();
    let session_dir = store.create("s").unwrap();
    session_dir.write_record(&record("s", 1)).unwrap();
    session_dir.remove().unwrap();
    assert!(store.load().is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("sessions")).unwrap().count(), 0);
}
