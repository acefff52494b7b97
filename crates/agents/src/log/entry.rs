//! One event, written down once for all of its readers: everything but its number, which depends on the view.

use super::{Position, Style, Wish};
use crate::{
    agent::{self, Raw},
    schema::EventData,
};

/// An event as it is kept.
#[derive(Debug)]
pub struct Entry {
    /// The event's JSON behind its `id`, without the closing brace.
    body: Box<[u8]>,
    /// The agent's own words.
    raw: Option<Raw>,
    detail: bool,
}

/// What events of one moment have in common: the JSON from the timestamp to the `data` key.
#[derive(Debug)]
pub struct Heading(Vec<u8>);

// === impl Heading ===

impl Heading {
    /// Writes it down.
    pub fn new(timestamp: &str, session_id: &str, agent: &str, native_id: Option<&str>) -> Self {
        let mut text = format!(
            r#""timestamp":{},"sessionId":{},"agent":{}"#,
            quoted(timestamp),
            quoted(session_id),
            quoted(agent)
        );
        if let Some(id) = native_id {
            text.push_str(r#","agentSessionId":"#);
            text.push_str(&quoted(id));
        }
        text.push_str(r#","data":"#);
        Self(text.into_bytes())
    }
}

/// The agent's words without the line ends that JSON allows between its tokens: they would end a line of a stream or of a
/// file.
fn on_one_line(raw: Raw) -> Option<Raw> {
    if !raw.get().contains(['\r', '\n']) {
        return Some(raw);
    }
    let value: serde_json::Value = serde_json::from_str(raw.get()).ok()?;
    agent::raw(&value)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

// === impl Entry ===

impl Entry {
    /// An event of this moment.
    pub fn new(heading: &Heading, data: &EventData, raw: Option<Raw>) -> Self {
        let mut body = Vec::with_capacity(heading.0.len() + 128);
        body.extend_from_slice(&heading.0);
        let before = body.len();
        if let Err(error) = serde_json::to_writer(&mut body, data) {
            // Only a map with keys that are no strings cannot be written, and the schema has none.
            body.truncate(before);
            body.extend_from_slice(format!(r#"{{"error":{{"message":{}}}}}"#, quoted(&error.to_string())).as_bytes());
        }
        Self { body: body.into_boxed_slice(), raw: raw.and_then(on_one_line), detail: data.is_detail() }
    }

    /// An event as it was written to a file before.
    pub(crate) fn restored(body: Vec<u8>, raw: Option<Raw>, detail: bool) -> Self {
        Self { body: body.into_boxed_slice(), raw: raw.and_then(on_one_line), detail }
    }

    /// Whether only the full view has it.
    pub const fn is_detail(&self) -> bool {
        self.detail
    }

    /// About how much memory it takes.
    pub fn size(&self) -> usize {
        self.body.len() + self.raw.as_deref().map_or(0, |raw| raw.get().len()) + size_of::<Self>()
    }

    /// Writes it with its number in the reader's view.
    pub fn write(&self, id: u64, wish: Wish, out: &mut Vec<u8>) {
        let mut digits = Digits::default();
        let id = digits.of(id);
        if wish.style == Style::Stream {
            out.extend_from_slice(b"id: ");
            out.extend_from_slice(id);
            out.extend_from_slice(b"\ndata: ");
        }
        self.json(id, wish.raw, out);
        if wish.style == Style::Stream {
            out.extend_from_slice(b"\n\n");
        }
    }

    /// A line of a file, with everything.
    pub(crate) fn write_line(&self, at: Position, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{{\"id\":{},\"default\":{},", at.full, at.default).as_bytes());
        self.rest(true, out);
        out.push(b'\n');
    }

    fn json(&self, id: &[u8], with_raw: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        out.extend_from_slice(id);
        out.push(b',');
        self.rest(with_raw, out);
    }

    fn rest(&self, with_raw: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.body);
        if let Some(raw) = self.raw.as_deref().filter(|_| with_raw) {
            out.extend_from_slice(b",\"raw\":");
            out.extend_from_slice(raw.get().as_bytes());
        }
        out.push(b'}');
    }
}

/// A number in digits, without an allocation for each event.
#[derive(Default)]
struct Digits([u8; 20]);

impl Digits {
    fn of(&mut self, number: u64) -> &[u8] {
        use std::io::Write;
        let mut rest = self.0.as_mut_slice();
        let room = rest.len();
        // Twenty digits hold every number.
        let _fits = write!(rest, "{number}");
        let used = room - rest.len();
        self.0.get(..used).unwrap_or_default()
    }
}
