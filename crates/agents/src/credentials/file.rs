//! Reads credential files, which are untrusted.

use std::{fs::OpenOptions, io::Read, os::unix::fs::OpenOptionsExt, path::Path};

use rustix::fs::OFlags;
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Maximum size. Claude Code stores its history beside its key.
const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;
/// Larger numbers are milliseconds, not seconds: as seconds they are after the year 5138.
const MILLISECONDS_THRESHOLD: f64 = 1e11;

/// Parses a file; `None` on any error.
pub(super) fn read(path: &Path) -> Option<Value> {
    serde_json::from_slice(&bytes(path, MAX_FILE_BYTES)?).ok()
}

/// Reads a regular file; `None` if it is larger.
pub(crate) fn bytes(path: &Path, longest: u64) -> Option<Vec<u8>> {
    // Do not block on a FIFO.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).ok()?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok().filter(|about| about.is_file() && about.len() <= longest)?;
    let mut bytes = Vec::new();
    file.take(longest + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= longest).then_some(bytes)
}

/// A string at a path of keys.
pub(super) fn text<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a str> {
    keys.iter().try_fold(value, |value, key| value.get(key))?.as_str()
}

/// Whether an expiry has passed: seconds, milliseconds or a date. Other values never expire.
pub(super) fn has_expired(expiry: Option<&Value>) -> bool {
    let now = OffsetDateTime::now_utc();
    let number = match expiry {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => match OffsetDateTime::parse(text.trim(), &Rfc3339) {
            Ok(date) => return date <= now,
            Err(_) => text.trim().parse().ok(),
        },
        _ => None,
    };
    let Some(number) = number else { return false };
    let seconds = if number > MILLISECONDS_THRESHOLD { number / 1000.0 } else { number };
    #[expect(clippy::cast_precision_loss, reason = "seconds of this age are exact in a float")]
    let now = now.unix_timestamp() as f64;
    seconds <= now
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dates_and_numbers_expire() {
        let past = |value: Value| has_expired(Some(&value));
        for over in
            [json!("2024-01-01T00:00:00Z"), json!(1_700_000_000), json!(1_700_000_000_000_u64), json!("1700000000")]
        {
            assert!(past(over.clone()), "{over}");
        }
        for valid in [json!("2999-01-01T00:00:00+01:00"), json!(32_472_144_000_u64), json!(32_472_144_000_000_u64)] {
            assert!(!past(valid.clone()), "{valid}");
        }
    }

    #[test]
    fn an_invalid_expiry_never_expires() {
        assert!(!has_expired(None));
        assert!(!has_expired(Some(&json!("soon"))));
        assert!(!has_expired(Some(&json!(null))));
        assert!(!has_expired(Some(&json!({ "at": 1 }))));
    }
}
