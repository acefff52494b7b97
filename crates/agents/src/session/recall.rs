//! What an earlier server wrote down, as far as a session has to know it. A log may be large: it is read a piece at a time,
//! and what cannot be read of it is passed over alone.

use serde::{Deserialize, de::IgnoredAny};
use sha2::{Digest as _, Sha256};

use super::actor::Asked;
use crate::log::{Log, Style, View, Wish};

/// About how much is read at once.
const PIECE: usize = 256 * 1024;

/// How many events are looked at together on the way back to the last turn.
const STEP: u64 = 1000;

/// What a prompt says, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest([u8; 32]);

/// The last turn of a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LastTurn {
    /// Which it was, from 1.
    pub(super) number: u64,
    /// Whether its end was written.
    pub(super) over: bool,
    /// What was asked in it and not answered, the oldest first.
    pub(super) asked: Vec<(String, Asked)>,
}

#[derive(Deserialize)]
struct Event {
    data: Data,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Data {
    message: Option<Message>,
    turn_started: Option<Turn>,
    turn_ended: Option<IgnoredAny>,
    question_asked: Option<Request>,
    permission_asked: Option<Request>,
    question_resolved: Option<Request>,
    permission_resolved: Option<Request>,
}

#[derive(Deserialize)]
struct Message {
    role: Option<String>,
    id: Option<String>,
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Turn {
    turn_id: String,
}

#[derive(Deserialize)]
struct Request {
    id: String,
}

// === impl Digest ===

impl Digest {
    pub(super) fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

/// The prompts that clients named: their ids and their words.
pub(super) fn prompts(log: &Log) -> Vec<(String, Digest)> {
    let mut prompts = Vec::new();
    let mut at = 0;
    while let Some((events, last)) = piece(log, View::Default, at, usize::MAX) {
        at = last;
        for message in events.into_iter().filter_map(|event| event.data.message) {
            let text = message.parts.first().and_then(|part| part.text.as_deref());
            if let (Some("user"), Some(id), Some(text)) = (message.role.as_deref(), &message.id, text) {
                prompts.push((id.clone(), Digest::of(text)));
            }
        }
    }
    prompts
}

/// The last turn, found from the end.
pub(super) fn last_turn(log: &Log) -> LastTurn {
    let end = log.last().full;
    let mut from = end;
    loop {
        let until = from;
        from = from.saturating_sub(STEP);
        if begins_within(log, from, until) || from == 0 {
            return turn_behind(log, from);
        }
    }
}

fn begins_within(log: &Log, from: u64, until: u64) -> bool {
    let mut at = from;
    while let Some((events, last)) = piece(log, View::Full, at, usize::try_from(until - at).unwrap_or(usize::MAX)) {
        if events.iter().any(|event| event.data.turn_started.is_some()) {
            return true;
        }
        at = last;
    }
    false
}

fn turn_behind(log: &Log, from: u64) -> LastTurn {
    let mut turn = LastTurn::default();
    let mut at = from;
    while let Some((events, last)) = piece(log, View::Full, at, usize::MAX) {
        at = last;
        for Event { data } in events {
            if let Some(Turn { turn_id }) = data.turn_started {
                let number = turn_id.rsplit('-').next().and_then(|number| number.parse().ok());
                turn = LastTurn { number: number.unwrap_or_default(), ..LastTurn::default() };
            }
            turn.over |= data.turn_ended.is_some();
            turn.asked.extend(data.question_asked.map(|request| (request.id, Asked::Question)));
            turn.asked.extend(data.permission_asked.map(|request| (request.id, Asked::Permission)));
            for resolved in [data.question_resolved, data.permission_resolved].into_iter().flatten() {
                turn.asked.retain(|(id, _)| *id != resolved.id);
            }
        }
    }
    turn
}

/// The next events, at most so many, and the id of the last; nothing at the end.
fn piece(log: &Log, view: View, after: u64, limit: usize) -> Option<(Vec<Event>, u64)> {
    let mut lines = Vec::new();
    let given = log.read(Wish { view, raw: false, style: Style::Stream }, after, limit, PIECE, &mut lines);
    let events = lines.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    (given.count > 0).then(|| (events.filter_map(|event| serde_json::from_slice(event).ok()).collect(), given.last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        log::{Entry, Heading},
        schema::{EventData, PermissionRequest, TurnEnded, TurnOutcome, TurnStarted},
    };

    fn log(events: &[EventData]) -> Log {
        let (log, heading) = (Log::default(), Heading::new("2026-01-01T00:00:00.000Z", "s", "mock", None));
        log.append(events.iter().map(|data| Entry::new(&heading, data, None)));
        log
    }

    fn begin(number: u64) -> EventData {
        EventData::TurnStarted(TurnStarted { turn_id: format!("turn-{number}"), message_id: None })
    }

    #[test]
    fn the_last_turn_is_found_however_long_it_is() {
        let asked = EventData::PermissionAsked(PermissionRequest { id: "p".into(), ..PermissionRequest::default() });
        let mut events = vec![begin(1), begin(2), asked];
        events.extend((0..2500).map(|number| EventData::assistant(number.to_string())));
        let open = LastTurn { number: 2, over: false, asked: vec![("p".to_owned(), Asked::Permission)] };
        assert_eq!(last_turn(&log(&events)), open);
        let ended = TurnEnded { turn_id: "turn-2".into(), outcome: TurnOutcome::Completed, message: None, usage: None };
        events.push(EventData::TurnEnded(ended));
        assert!(last_turn(&log(&events)).over);
        assert_eq!(last_turn(&log(&[])), LastTurn::default());
    }

    #[test]
    fn what_nobody_can_read_hides_no_prompt() {
        let mut deep = serde_json::Value::Null;
        for _ in 0..126 {
            deep = serde_json::json!([deep]);
        }
        let message = |id: &str| {
            let parsed = crate::schema::ParsedMessage {
                role: "user".into(),
                id: Some(id.into()),
                parts: vec![crate::schema::Part::text("words")],
                ..crate::schema::ParsedMessage::default()
            };
            EventData::Message(crate::schema::Message::Parsed(parsed))
        };
        let found = prompts(&log(&[message("a"), EventData::Raw(deep), message("b")]));
        assert_eq!(found, [("a".to_owned(), Digest::of("words")), ("b".to_owned(), Digest::of("words"))]);
    }
}
