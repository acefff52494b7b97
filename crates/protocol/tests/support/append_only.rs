//! Compatibility check between two generations: "New kinds of message are only ever added, never removed or redefined",
//! and "New fields are always optional".

use serde_json::Value;

/// Returns what the newer schema removed or redefined.
pub(crate) fn check(older: &Value, newer: &Value) -> Result<(), String> {
    for section in ["frame", "bulk", "exec_flow"] {
        constants(&older[section], &newer[section], section)?;
    }
    for message in list(&older["messages"]) {
        let name = &message["type"];
        let same = list(&newer["messages"]).iter().find(|candidate| candidate["type"] == *name);
        let same = same.ok_or_else(|| format!("{name} was removed"))?;
        for key in ["introduced_in", "flags"] {
            if same[key] != message[key] {
                return Err(format!("{key} of {name} was {} and is {}", message[key], same[key]));
            }
        }
        payload(&message["payload"], &same["payload"], &name.to_string())?;
    }
    let version = newer["protocol_version"].as_u64();
    for message in list(&newer["messages"]) {
        let known = list(&older["messages"]).iter().any(|candidate| candidate["type"] == message["type"]);
        if !known && message["introduced_in"].as_u64() != version {
            return Err(format!("{} is new, but not labelled with this generation", message["type"]));
        }
    }
    Ok(())
}

/// Constants are unchanged; new ones may be added.
fn constants(older: &Value, newer: &Value, place: &str) -> Result<(), String> {
    match older {
        Value::Null => Ok(()),
        Value::Object(entries) => {
            entries.iter().try_for_each(|(key, value)| constants(value, &newer[key], &format!("{place}.{key}")))
        }
        _ if older == newer => Ok(()),
        _ => Err(format!("{place} was {older} and is {newer}")),
    }
}

fn payload(older: &Value, newer: &Value, place: &str) -> Result<(), String> {
    let kind = |shape: &Value| shape.as_object().and_then(|object| object.keys().next().cloned());
    if kind(older) != kind(newer) {
        return Err(format!("{place} has another shape"));
    }
    match kind(older).as_deref() {
        Some(wrapper @ ("nullable" | "list")) => payload(&older[wrapper], &newer[wrapper], place),
        Some("fields") => fields(list(&older["fields"]), list(&newer["fields"]), place),
        Some("choice") => appended(list(&older["choice"]), list(&newer["choice"]), place),
        Some("tagged") => variants(&older["tagged"], &newer["tagged"], place),
        _ if older == newer => Ok(()),
        _ => Err(format!("{place} was {older} and is {newer}")),
    }
}

/// Existing fields and their order are unchanged; new fields are optional.
fn fields(older: &[Value], newer: &[Value], place: &str) -> Result<(), String> {
    let mut known = older.iter().peekable();
    for field in newer {
        let inner = format!("{place}.{}", field["name"].as_str().unwrap_or_default());
        match known.next_if(|old| old["name"] == field["name"]) {
            Some(old) if old["presence"] != field["presence"] || old["since"] != field["since"] => {
                return Err(format!("{inner} was {old} and is {field}"));
            }
            Some(old) => payload(&old["shape"], &field["shape"], &inner)?,
            None if field["presence"] == "required" => return Err(format!("{inner} is new and required")),
            None => {}
        }
    }
    match known.next() {
        Some(gone) => Err(format!("{place}.{} was removed or moved", gone["name"].as_str().unwrap_or_default())),
        None => Ok(()),
    }
}

fn appended(older: &[Value], newer: &[Value], place: &str) -> Result<(), String> {
    match older.iter().find(|value| !newer.contains(value)) {
        Some(gone) => Err(format!("{place} no longer has {gone}")),
        None => Ok(()),
    }
}

/// Variants are unchanged, and none is added: a new operation needs its own message type, because only a type can be
/// gated by generation.
fn variants(older: &Value, newer: &Value, place: &str) -> Result<(), String> {
    let names = |tagged: &Value| tagged.as_object().map(|o| o.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    if names(older) != names(newer) {
        return Err(format!("{place} has other variants"));
    }
    names(older).iter().try_for_each(|name| payload(&older[name], &newer[name], &format!("{place}.{name}")))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
