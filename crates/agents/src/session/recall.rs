//! What an earlier server wrote down, as far as a session has to know it.

use serde_json::Value;

use super::actor::Asked;
use crate::log::{Log, Style, View, Wish};

/// The prompts that clients named: their ids and their words.
pub(super) fn prompts(log: &Log) -> Vec<(String, String)> {
    let named = |event: &Value| {
        let message = event["data"].get("message").filter(|message| message["role"] == "user")?;
        Some((message["id"].as_str()?.to_owned(), message["parts"][0]["text"].as_str()?.to_owned()))
    };
    events(log, View::Default).iter().filter_map(named).collect()
}

/// What was asked and not answered, the oldest first.
pub(super) fn asked(log: &Log) -> Vec<(String, Asked)> {
    let mut open = Vec::new();
    for event in events(log, View::Full) {
        let id = |kind: &str| event["data"].get(kind).and_then(|data| data["id"].as_str());
        if let Some(id) = id("questionAsked") {
            open.push((id.to_owned(), Asked::Question));
        } else if let Some(id) = id("permissionAsked") {
            open.push((id.to_owned(), Asked::Permission));
        } else if let Some(id) = id("questionResolved").or_else(|| id("permissionResolved")) {
            open.retain(|(asked, _)| asked != id);
        }
    }
    open
}

fn events(log: &Log, view: View) -> Vec<Value> {
    let mut events = vec![b'['];
    log.read(Wish { view, raw: false, style: Style::Array }, 0, usize::MAX, usize::MAX, &mut events);
    events.push(b']');
    serde_json::from_slice(&events).unwrap_or_default()
}
