//! Reads what an earlier server logged. A log may be large: it is read in chunks, and unreadable events are skipped.

use serde::{Deserialize, de::IgnoredAny};
use sha2::{Digest as _, Sha256};

use super::actor::PendingRequestKind;
use crate::log::{EventFormat, EventView, LogReadOptions, SessionLog};

/// Approximate size of a chunk.
const CHUNK_BYTES: usize = 256 * 1024;

/// How many events are searched at once, backwards, for the last turn.
const CHUNK_EVENTS: u64 = 1000;

/// Hash of a prompt's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PromptDigest([u8; 32]);

/// The last turn of a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LastTurn {
    /// Its number, from 1.
    pub(super) number: u64,
    /// Whether its end was logged.
    pub(super) ended: bool,
    /// Requests that were not answered, oldest first.
    pub(super) pending: Vec<(String, PendingRequestKind)>,
}

#[derive(Deserialize)]
struct LoggedEvent {
    data: LoggedData,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LoggedData {
    message: Option<LoggedMessage>,
    turn_started: Option<LoggedTurn>,
    turn_ended: Option<IgnoredAny>,
    question_asked: Option<LoggedRequest>,
    permission_asked: Option<LoggedRequest>,
    question_resolved: Option<LoggedRequest>,
    permission_resolved: Option<LoggedRequest>,
}

#[derive(Deserialize)]
struct LoggedMessage {
    role: Option<String>,
    id: Option<String>,
    #[serde(default)]
    parts: Vec<LoggedPart>,
}

#[derive(Deserialize)]
struct LoggedPart {
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LoggedTurn {
    turn_id: String,
}

#[derive(Deserialize)]
struct LoggedRequest {
    id: String,
}

// === impl PromptDigest ===

impl PromptDigest {
    pub(super) fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

/// The prompts with ids of clients.
pub(super) fn prompts(log: &SessionLog) -> Vec<(String, PromptDigest)> {
    let mut prompts = Vec::new();
    let mut at = 0;
    while let Some((events, last)) = read_chunk(log, EventView::Default, at, usize::MAX) {
        at = last;
        for message in events.into_iter().filter_map(|event| event.data.message) {
            let text = message.parts.first().and_then(|part| part.text.as_deref());
            if let (Some("user"), Some(id), Some(text)) = (message.role.as_deref(), &message.id, text) {
                prompts.push((id.clone(), PromptDigest::of(text)));
            }
        }
    }
    prompts
}

/// Finds the last turn, from the end.
pub(super) fn last_turn(log: &SessionLog) -> LastTurn {
    let end = log.last().full;
    let mut from = end;
    loop {
        let until = from;
        from = from.saturating_sub(CHUNK_EVENTS);
        if turn_starts_within(log, from, until) || from == 0 {
            return turn_after(log, from);
        }
    }
}

fn turn_starts_within(log: &SessionLog, from: u64, until: u64) -> bool {
    let mut at = from;
    while let Some((events, last)) =
        read_chunk(log, EventView::Full, at, usize::try_from(until - at).unwrap_or(usize::MAX))
    {
        if events.iter().any(|event| event.data.turn_started.is_some()) {
            return true;
        }
        at = last;
    }
    false
}

fn turn_after(log: &SessionLog, from: u64) -> LastTurn {
    let mut turn = LastTurn::default();
    let mut at = from;
    while let Some((events, last)) = read_chunk(log, EventView::Full, at, usize::MAX) {
        at = last;
        for LoggedEvent { data } in events {
            if let Some(LoggedTurn { turn_id }) = data.turn_started {
                let number = turn_id.rsplit('-').next().and_then(|number| number.parse().ok());
                turn = LastTurn { number: number.unwrap_or_default(), ..LastTurn::default() };
            }
            turn.ended |= data.turn_ended.is_some();
            turn.pending.extend(data.question_asked.map(|request| (request.id, PendingRequestKind::Question)));
            turn.pending.extend(data.permission_asked.map(|request| (request.id, PendingRequestKind::Permission)));
            for resolved in [data.question_resolved, data.permission_resolved].into_iter().flatten() {
                turn.pending.retain(|(id, _)| *id != resolved.id);
            }
        }
    }
    turn
}

/// The next events, and the id of the last one; `None` at the end.
fn read_chunk(log: &SessionLog, view: EventView, after: u64, limit: usize) -> Option<(Vec<LoggedEvent>, u64)> {
    let mut lines = Vec::new();
    let summary = log.read(
        LogReadOptions { view, raw: false, format: EventFormat::ServerSent },
        after,
        limit,
        CHUNK_BYTES,
        &mut lines,
    );
    let events = lines.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    (summary.count > 0).then(|| (events.filter_map(|event| serde_json::from_slice(event).ok()).collect(), summary.last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        log::{EventHeader, LogEntry},
        schema::{EventData, PermissionRequest, TurnEnded, TurnOutcome, TurnStarted},
    };

    fn log(events: &[EventData]) -> SessionLog {
        let (log, header) = (SessionLog::default(), EventHeader::new("2026-01-01T00:00:00.000Z", "s", "mock", None));
        log.append(events.iter().map(|data| LogEntry::new(&header, data, None)));
        log
    }

    fn begin(number: u64) -> EventData {
        EventData::TurnStarted(TurnStarted { turn_id: format!("turn-{number}"), message_id: None })
    }

    #[test]
    fn the_last_turn_is_found_however_long_it_is() {
        let pending = EventData::PermissionAsked(PermissionRequest { id: "p".into(), ..PermissionRequest::default() });
        let mut events = vec![begin(1), begin(2), pending];
        events.extend((0..2500).map(|number| EventData::assistant(number.to_string())));
        let open =
            LastTurn { number: 2, ended: false, pending: vec![("p".to_owned(), PendingRequestKind::Permission)] };
        assert_eq!(last_turn(&log(&events)), open);
        let ended = TurnEnded { turn_id: "turn-2".into(), outcome: TurnOutcome::Completed, message: None, usage: None };
        events.push(EventData::TurnEnded(ended));
        assert!(last_turn(&log(&events)).ended);
        assert_eq!(last_turn(&log(&[])), LastTurn::default());
    }

    #[test]
    fn unreadable_events_hide_no_prompt() {
        let mut deep = serde_json::Value::Null;
        for _ in 0..126 {
            deep = serde_json::json!([deep]);
        }
        let message = |id: &str| {
            let parsed = crate::schema::ParsedMessage {
                role: "user".into(),
                id: Some(id.into()),
                parts: vec![crate::schema::MessagePart::text("words")],
                ..crate::schema::ParsedMessage::default()
            };
            EventData::Message(crate::schema::UniversalMessage::Parsed(parsed))
        };
        let found = prompts(&log(&[message("a"), EventData::Raw(deep), message("b")]));
        assert_eq!(found, [("a".to_owned(), PromptDigest::of("words")), ("b".to_owned(), PromptDigest::of("words"))]);
    }
}
