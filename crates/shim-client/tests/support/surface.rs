//! The schema of `shim.*` at one version, as in `schema/version-N.json`.

use carrel_protocol::Generation;
use carrel_protocol::schema::{SchemaField, WireShape};
use carrel_shim_client::messages;
use serde_json::{Map, Value, json};

/// The complete schema of one version. The runtime protocol defines frames.
pub(crate) fn surface(version: u8) -> Value {
    let known = messages::all().into_iter().filter(|(_, since, ..)| *since <= version);
    let message = |(name, since, flags, payload): (&str, u8, carrel_protocol::Flags, WireShape)| {
        let payload = payload.at(Generation::new(version));
        json!({"type": name, "introduced_in": since, "flags": flags.bits(), "payload": shape(payload, since)})
    };
    json!({"protocol_version": version, "messages": known.map(message).collect::<Vec<_>>()})
}

/// A shape inside something that exists since `outer`: no part is older than its container.
fn shape(shape: WireShape, outer: u8) -> Value {
    let inner = |inner: WireShape| self::shape(inner, outer);
    match shape {
        WireShape::Scalar(name) => name.into(),
        WireShape::Nullable(of) => json!({"nullable": inner(*of)}),
        WireShape::List(of) => json!({"list": inner(*of)}),
        WireShape::Record(fields) => {
            json!({"fields": fields.into_iter().map(|of| field(of, outer)).collect::<Vec<_>>()})
        }
        WireShape::Choice(values) => {
            let value = |(value, since): (String, Generation)| json!({"value": value, "since": since.get().max(outer)});
            json!({"choice": values.into_iter().map(value).collect::<Vec<_>>()})
        }
        WireShape::Tagged(variants) => {
            let variants: Map<_, _> = variants.into_iter().map(|(name, of)| (name.to_owned(), inner(of))).collect();
            json!({"tagged": variants})
        }
    }
}

fn field(field: SchemaField, outer: u8) -> Value {
    let since = field.since.get().max(outer);
    json!({
        "name": field.name,
        "presence": field.presence.as_str(),
        "since": since,
        "shape": shape(field.shape, since),
    })
}
