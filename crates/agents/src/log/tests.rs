//! Guarantees for readers of a log.

use super::*;
use crate::{agent, schema::EventData};

const ARRAY: LogReadOptions = LogReadOptions { view: EventView::Default, raw: false, format: EventFormat::JsonArray };

fn entry(data: &EventData) -> LogEntry {
    LogEntry::new(&EventHeader::new("2026-01-01T00:00:00.000Z", "s\"1", "mock", Some("mock-s")), data, None)
}

fn read(
    log: &SessionLog,
    options: LogReadOptions,
    after: u64,
    limit: usize,
) -> (Vec<serde_json::Value>, LogReadSummary) {
    let mut out = vec![b'['];
    let summary = log.read(options, after, limit, usize::MAX, &mut out);
    out.push(b']');
    (serde_json::from_slice(&out).unwrap(), summary)
}

//= agents.event-streaming.events-monotonically-increasing-id
//= promises.agents-server.events-session
#[test]
fn each_view_numbers_its_events_from_one_without_gaps() {
    let log = SessionLog::default();
    for number in 0..10 {
        let detail =
            EventData::TurnStarted(crate::schema::TurnStarted { turn_id: number.to_string(), message_id: None });
        log.append([entry(&detail), entry(&EventData::assistant(format!("{number}")))]);
    }
    for (view, count) in [(EventView::Default, 10), (EventView::Full, 20)] {
        let (events, summary) = read(&log, LogReadOptions { view, ..ARRAY }, 0, usize::MAX);
        let ids: Vec<_> = events.iter().map(|event| event["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, (1..=count).collect::<Vec<_>>());
        assert_eq!(summary, LogReadSummary { last: count, count: usize::try_from(count).unwrap(), more: false });
    }
    assert_eq!(log.last(), LogPosition { default: 10, full: 20 });
}

//= agents.event-streaming.event-numbered-appended-sent
#[test]
fn a_reader_resumes_after_the_last_id_it_saw() {
    let log = SessionLog::default();
    log.append((0..5).map(|number| entry(&EventData::assistant(format!("{number}")))));
    let (events, summary) = read(&log, ARRAY, 2, 2);
    assert_eq!(events.iter().map(|event| event["id"].as_u64().unwrap()).collect::<Vec<_>>(), [3, 4]);
    assert!(summary.more);
    let (events, summary) = read(&log, ARRAY, 5, usize::MAX);
    assert!(events.is_empty() && !summary.more && summary.last == 5);
    // A reader ahead of the log waits, and gets nothing twice.
    assert_eq!(read(&log, ARRAY, u64::MAX, usize::MAX).1, LogReadSummary { last: u64::MAX, count: 0, more: false });
}

#[test]
fn a_read_is_bounded_but_returns_at_least_one_event() {
    let log = SessionLog::default();
    log.append((0..100).map(|number| entry(&EventData::assistant(format!("{number} {}", "x".repeat(1000))))));
    let mut out = Vec::new();
    let summary = log.read(ARRAY, 0, usize::MAX, 10, &mut out);
    assert_eq!((summary.count, summary.more), (1, true));
    let summary = log.read(ARRAY, 0, usize::MAX, 10_000, &mut out);
    assert!((8..=11).contains(&summary.count) && summary.more, "{summary:?}");
}

//= agents.universal-schema.universalevent-id-timestamp-session
#[test]
fn an_event_is_encoded_as_documented() {
    let log = SessionLog::default();
    let header = EventHeader::new("2026-01-01T00:00:00.000Z", "s\"1", "mock", None);
    let raw = agent::raw(&serde_json::json!({"native": true}));
    log.append([LogEntry::new(&header, &EventData::assistant("hi\n"), raw)]);
    let mut out = Vec::new();
    log.read(LogReadOptions { format: EventFormat::ServerSent, raw: true, ..ARRAY }, 0, 1, 0, &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        concat!(
            "id: 1\ndata: ",
            r#"{"id":1,"timestamp":"2026-01-01T00:00:00.000Z","sessionId":"s\"1","agent":"mock","#,
            r#""data":{"message":{"role":"assistant","parts":[{"type":"text","text":"hi\n"}]}},"raw":{"native":true}}"#,
            "\n\n"
        )
    );
}

//= agents.event-streaming.event-numbered-appended-sent
#[tokio::test]
async fn readers_are_woken_by_new_events_and_by_the_end() {
    let log = SessionLog::default();
    let mut watch = log.watch();
    log.append([entry(&EventData::assistant("one"))]);
    watch.changed().await.unwrap();
    assert_eq!(watch.borrow_and_update().last.default, 1);
    log.close();
    watch.changed().await.unwrap();
    assert!(watch.borrow_and_update().closed);
}
