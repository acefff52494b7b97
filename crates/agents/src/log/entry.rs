//! A log entry: an event in JSON, without its id, which depends on the view.

use super::{EventFormat, LogPosition, LogReadOptions};
use crate::{
    agent::{self, RawMessage},
    schema::EventData,
};

/// An event in its stored form.
#[derive(Debug)]
pub struct LogEntry {
    /// The event's JSON after its `id`, without the closing brace.
    body: Box<[u8]>,
    /// The agent's raw message.
    raw: Option<RawMessage>,
    detail: bool,
}

/// The fields that events of one flush share: the JSON from the timestamp to the `data` key.
#[derive(Debug)]
pub struct EventHeader(Vec<u8>);

// === impl EventHeader ===

impl EventHeader {
    /// Encodes it.
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

/// The raw message without newlines, which would end a line of a stream or file.
fn on_one_line(raw: RawMessage) -> Option<RawMessage> {
    if !raw.get().contains(['\r', '\n']) {
        return Some(raw);
    }
    let value: serde_json::Value = serde_json::from_str(raw.get()).ok()?;
    agent::raw(&value)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

// === impl LogEntry ===

impl LogEntry {
    /// Encodes an event.
    pub fn new(header: &EventHeader, data: &EventData, raw: Option<RawMessage>) -> Self {
        let mut body = Vec::with_capacity(header.0.len() + 128);
        body.extend_from_slice(&header.0);
        let before = body.len();
        if let Err(error) = serde_json::to_writer(&mut body, data) {
            // Only maps with non-string keys cannot be encoded, and the schema has none.
            body.truncate(before);
            body.extend_from_slice(format!(r#"{{"error":{{"message":{}}}}}"#, quoted(&error.to_string())).as_bytes());
        }
        Self { body: body.into_boxed_slice(), raw: raw.and_then(on_one_line), detail: data.is_detail() }
    }

    /// An event that was read from a file.
    pub(crate) fn restored(body: Vec<u8>, raw: Option<RawMessage>, detail: bool) -> Self {
        Self { body: body.into_boxed_slice(), raw: raw.and_then(on_one_line), detail }
    }

    /// Whether it is only in the full view.
    pub const fn is_detail(&self) -> bool {
        self.detail
    }

    /// Approximate memory use.
    pub fn size(&self) -> usize {
        self.body.len() + self.raw.as_deref().map_or(0, |raw| raw.get().len()) + size_of::<Self>()
    }

    /// Writes it with its id in the reader's view.
    pub fn write(&self, id: u64, options: LogReadOptions, out: &mut Vec<u8>) {
        let mut digits = DecimalBuffer::default();
        let id = digits.of(id);
        if options.format == EventFormat::ServerSent {
            out.extend_from_slice(b"id: ");
            out.extend_from_slice(id);
            out.extend_from_slice(b"\ndata: ");
        }
        self.json(id, options.raw, out);
        if options.format == EventFormat::ServerSent {
            out.extend_from_slice(b"\n\n");
        }
    }

    /// Writes a line of the log file.
    pub(crate) fn write_line(&self, at: LogPosition, out: &mut Vec<u8>) {
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

/// Formats a number without an allocation.
#[derive(Default)]
struct DecimalBuffer([u8; 20]);

impl DecimalBuffer {
    fn of(&mut self, number: u64) -> &[u8] {
        use std::io::Write;
        let mut rest = self.0.as_mut_slice();
        let room = rest.len();
        // Twenty digits hold every `u64`.
        let _fits = write!(rest, "{number}");
        let used = room - rest.len();
        self.0.get(..used).unwrap_or_default()
    }
}
