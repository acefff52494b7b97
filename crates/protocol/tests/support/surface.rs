//! The schema of one generation, as the text of `schema/gen-N.json`.

use carrel_protocol::payload::ExecLimits;
use carrel_protocol::schema::{WireShape, messages_at};
use carrel_protocol::{Flags, Generation, MessageType, bulk, exec_flow, frame};
use serde_json::{Map, Value, json};

/// The maximum line width, where possible.
const WIDTH: usize = 120;

/// The complete schema of one generation.
pub(crate) fn surface(generation: Generation) -> Value {
    let mut surface = Map::new();
    surface.insert("protocol_version".into(), generation.get().into());
    surface.insert("frame".into(), frame_constants(generation));
    if generation >= Generation::BULK {
        surface.insert("bulk".into(), bulk_constants());
    }
    if generation >= Generation::EXEC_FLOW {
        surface.insert("exec_flow".into(), exec_flow_constants());
    }
    surface.insert("messages".into(), messages_at(generation).map(message).collect());
    Value::Object(surface)
}

/// The text of a snapshot: what fits on one line is written on one, so that diffs are readable.
pub(crate) fn text(surface: &Value) -> String {
    let mut text = String::new();
    write(surface, 0, &mut text);
    text.push('\n');
    text
}

fn frame_constants(generation: Generation) -> Value {
    let bit = |flags: Flags| Value::from(flags.bits());
    let mut flags = Map::new();
    flags.insert("terminal".into(), bit(Flags::TERMINAL));
    flags.insert("session_start".into(), bit(Flags::SESSION_START));
    flags.insert("shutdown".into(), bit(Flags::SHUTDOWN));
    if generation >= Generation::BULK {
        flags.insert("bulk".into(), bit(Flags::BULK));
    }
    json!({
        "length_size": frame::LENGTH_SIZE,
        "header_size": frame::HEADER_SIZE,
        "min_length": frame::MIN_LENGTH,
        "max_length": frame::MAX_LENGTH,
        "flags": flags,
    })
}

fn bulk_constants() -> Value {
    json!({
        "record_format": bulk::RECORD_FORMAT,
        "record_header_size": bulk::RECORD_HEADER_SIZE,
        "min_record_payload": bulk::MIN_RECORD_PAYLOAD,
        "max_record_payload": bulk::MAX_RECORD_PAYLOAD,
        "default_window": bulk::DEFAULT_WINDOW,
        "max_window": bulk::MAX_WINDOW,
    })
}

fn exec_flow_constants() -> Value {
    let limits = ExecLimits::DEFAULT;
    json!({
        "output_chunk_charge": exec_flow::OUTPUT_CHUNK_CHARGE,
        "max_control_frame": exec_flow::MAX_CONTROL_FRAME,
        "default_limits": {
            "max_executions": limits.max_executions,
            "input_limit": limits.input_limit,
            "output_limit": limits.output_limit,
            "stdin_chunk_size": limits.stdin_chunk_size,
            "output_chunk_size": limits.output_chunk_size,
        },
    })
}

fn message((message_type, payload): (MessageType, WireShape)) -> Value {
    let introduced_in = message_type.min_protocol_version();
    json!({
        "type": message_type.as_str(),
        "introduced_in": introduced_in.get(),
        "flags": message_type.flags().bits(),
        "payload": shape(payload, introduced_in),
    })
}

/// A shape inside something that exists since `outer`: no part is older than its container.
fn shape(shape: WireShape, outer: Generation) -> Value {
    let inner = |inner: WireShape| self::shape(inner, outer);
    match shape {
        WireShape::Scalar(name) => name.into(),
        WireShape::Nullable(of) => json!({"nullable": inner(*of)}),
        WireShape::List(of) => json!({"list": inner(*of)}),
        WireShape::Record(fields) => {
            let field = |field: carrel_protocol::schema::SchemaField| {
                let since = field.since.max(outer);
                json!({
                    "name": field.name,
                    "presence": field.presence.as_str(),
                    "since": since.get(),
                    "shape": self::shape(field.shape, since),
                })
            };
            json!({"fields": fields.into_iter().map(field).collect::<Vec<_>>()})
        }
        WireShape::Choice(values) => {
            let value = |(value, since): (String, Generation)| json!({"value": value, "since": since.max(outer).get()});
            json!({"choice": values.into_iter().map(value).collect::<Vec<_>>()})
        }
        WireShape::Tagged(variants) => {
            let variants: Map<_, _> = variants.into_iter().map(|(name, of)| (name.to_owned(), inner(of))).collect();
            json!({"tagged": variants})
        }
    }
}

fn write(value: &Value, depth: usize, text: &mut String) {
    let column = text.len() - text.rfind('\n').map_or(0, |newline| newline + 1);
    let line = value.to_string();
    let parts: Vec<_> = match value {
        Value::Array(elements) => elements.iter().map(|element| (None, element)).collect(),
        Value::Object(entries) => entries.iter().map(|(key, value)| (Some(key), value)).collect(),
        _ => vec![],
    };
    if parts.is_empty() || column + line.len() <= WIDTH {
        text.push_str(&line);
        return;
    }
    let (open, close) = if value.is_array() { ('[', ']') } else { ('{', '}') };
    text.push(open);
    for (index, (key, part)) in parts.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        text.push_str(&" ".repeat(depth + 1));
        if let Some(key) = key {
            text.push_str(&format!("{}: ", Value::from(key.as_str())));
        }
        write(part, depth + 1, text);
    }
    text.push('\n');
    text.push_str(&" ".repeat(depth));
    text.push(close);
}
