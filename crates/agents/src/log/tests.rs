//! What readers of a log are promised.

use super::*;
use crate::{agent, schema::EventData};

const ARRAY: Wish = Wish { view: View::Default, raw: false, style: Style::Array };

fn entry(data: &EventData) -> Entry {
    Entry::new(&Heading::new("2026-01-01T00:00:00.000Z", "s\"1", "mock", Some("mock-s")), data, None)
}

fn read(log: &Log, wish: Wish, after: u64, limit: usize) -> (Vec<serde_json::Value>, Given) {
    let mut out = vec![b'['];
    let given = log.read(wish, after, limit, usize::MAX, &mut out);
    out.push(b']');
    (serde_json::from_slice(&out).unwrap(), given)
}

//= agents.event-streaming.events-monotonically-increasing-id
//= promises.agents-server.events-session
#[test]
fn each_view_counts_its_own_events_from_one_without_a_gap() {
    let log = Log::default();
    for number in 0..10 {
        let detail =
            EventData::TurnStarted(crate::schema::TurnStarted { turn_id: number.to_string(), message_id: None });
        log.append([entry(&detail), entry(&EventData::assistant(format!("{number}")))]);
    }
    for (view, count) in [(View::Default, 10), (View::Full, 20)] {
        let (events, given) = read(&log, Wish { view, ..ARRAY }, 0, usize::MAX);
        let ids: Vec<_> = events.iter().map(|event| event["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, (1..=count).collect::<Vec<_>>());
        assert_eq!(given, Given { last: count, count: usize::try_from(count).unwrap(), more: false });
    }
    assert_eq!(log.last(), Position { default: 10, full: 20 });
}

//= agents.event-streaming.event-numbered-appended-told
#[test]
fn a_reader_goes_on_behind_the_last_id_that_it_saw() {
    let log = Log::default();
    log.append((0..5).map(|number| entry(&EventData::assistant(format!("{number}")))));
    let (events, given) = read(&log, ARRAY, 2, 2);
    assert_eq!(events.iter().map(|event| event["id"].as_u64().unwrap()).collect::<Vec<_>>(), [3, 4]);
    assert!(given.more);
    let (events, given) = read(&log, ARRAY, 5, usize::MAX);
    assert!(events.is_empty() && !given.more && given.last == 5);
    // Somebody who is ahead of the log waits for what comes, and gets nothing twice.
    assert_eq!(read(&log, ARRAY, u64::MAX, usize::MAX).1, Given { last: u64::MAX, count: 0, more: false });
}

#[test]
fn what_a_reader_gets_at_once_is_bounded_but_never_nothing() {
    let log = Log::default();
    log.append((0..100).map(|number| entry(&EventData::assistant(format!("{number} {}", "x".repeat(1000))))));
    let mut out = Vec::new();
    let given = log.read(ARRAY, 0, usize::MAX, 10, &mut out);
    assert_eq!((given.count, given.more), (1, true));
    let given = log.read(ARRAY, 0, usize::MAX, 10_000, &mut out);
    assert!((8..=11).contains(&given.count) && given.more, "{given:?}");
}

//= agents.universal-schema.universalevent-id-timestamp-session
#[test]
fn an_event_is_written_as_the_document_says() {
    let log = Log::default();
    let heading = Heading::new("2026-01-01T00:00:00.000Z", "s\"1", "mock", None);
    let raw = agent::raw(&serde_json::json!({"native": true}));
    log.append([Entry::new(&heading, &EventData::assistant("hi\n"), raw)]);
    let mut out = Vec::new();
    log.read(Wish { style: Style::Stream, raw: true, ..ARRAY }, 0, 1, 0, &mut out);
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

//= agents.event-streaming.event-numbered-appended-told
#[tokio::test]
async fn readers_are_woken_by_what_is_added_and_by_the_end() {
    let log = Log::default();
    let mut watch = log.watch();
    log.append([entry(&EventData::assistant("one"))]);
    watch.changed().await.unwrap();
    assert_eq!(watch.borrow_and_update().last.default, 1);
    log.close();
    watch.changed().await.unwrap();
    assert!(watch.borrow_and_update().closed);
}
