//! Parses JSON lines of agents: untrusted, but no line may be lost.

use serde::de::DeserializeOwned;
use serde_json::{Value, value::RawValue};

use crate::agent::{RawMessage, raw};

/// Maximum number of values in a line, since each takes far more memory when parsed.
const MAX_VALUES: usize = 256 * 1024;

/// How much of an unparsable line is kept.
pub(crate) const MAX_KEPT: usize = 64 * 1024;

/// Replaces a lone surrogate.
const REPLACEMENT: &[u8; 4] = b"fffd";

/// Parses a line.
///
/// A JavaScript program may truncate a string inside a surrogate pair and then print a lone surrogate. The line is
/// still parsed.
pub(crate) fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    if line.len() > MAX_VALUES && count_values(line) > MAX_VALUES {
        return Err(format!("it has more than {MAX_VALUES} values"));
    }
    serde_json::from_slice(line).or_else(|error| {
        let repaired = replace_lone_surrogates(line).ok_or_else(|| error.to_string())?;
        serde_json::from_slice(&repaired).map_err(|error| error.to_string())
    })
}

/// The raw message of a line; a JSON string if it is not JSON.
pub(crate) fn to_raw(line: &[u8]) -> Option<RawMessage> {
    let text = std::str::from_utf8(line).ok().and_then(|line| RawValue::from_string(line.to_owned()).ok());
    text.map(RawMessage::from).or_else(|| raw(&Value::String(String::from_utf8_lossy(line).into_owned())))
}

/// The part of a line that is kept.
pub(crate) fn truncated(line: &[u8]) -> &[u8] {
    line.get(..MAX_KEPT).unwrap_or(line)
}

/// Estimates the number of values by their separators.
fn count_values(line: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in line {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b',') => count += 1,
            _ => {}
        }
    }
    count
}

/// The line with lone surrogates replaced; `None` if there are none.
fn replace_lone_surrogates(line: &[u8]) -> Option<Vec<u8>> {
    let mut repaired = line.to_vec();
    let (mut at, mut replaced) = (0, false);
    while let Some(found) = line.get(at..)?.iter().position(|byte| *byte == b'\\') {
        at += found;
        at += match (utf16_escape(line, at), utf16_escape(line, at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                repaired.get_mut(at + 2..at + 6)?.copy_from_slice(REPLACEMENT);
                replaced = true;
                6
            }
            _ => 2,
        };
        if at > line.len() {
            break;
        }
    }
    replaced.then_some(repaired)
}

/// The UTF-16 code unit of an escape at this position.
fn utf16_escape(line: &[u8], at: usize) -> Option<u16> {
    let digits = line.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lone_surrogate_is_replaced_and_a_pair_is_kept() {
        for (line, text) in [
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\udE00b""#, "\u{fffd}b"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
            (r#""\ud83d\n\\ud83d""#, "\u{fffd}\n\\ud83d"),
        ] {
            assert!(serde_json::from_str::<Value>(line).is_err());
            assert_eq!(parse(line.as_bytes()), Ok(json!(text)));
            assert_eq!(to_raw(line.as_bytes()).unwrap().get(), line);
        }
    }

    #[test]
    fn other_syntax_errors_are_not_repaired() {
        for line in [r#""\ud83d"#, r#""\"#, r#""\u12""#, r#""\ud83d\x""#, "\\", ""] {
            assert!(parse::<Value>(line.as_bytes()).is_err(), "{line}");
        }
        assert_eq!(to_raw(b"\xff").unwrap().get(), "\"\u{fffd}\"");
    }

    #[test]
    fn a_line_with_too_many_values_is_rejected_and_a_long_string_is_not() {
        let many = format!("[{}0]", "0,".repeat(MAX_VALUES + 1));
        assert!(parse::<Value>(many.as_bytes()).unwrap_err().contains("values"));
        let text = format!(r#"["\"{}"]"#, ",".repeat(MAX_VALUES * 2));
        assert!(parse::<Value>(text.as_bytes()).is_ok());
    }
}
