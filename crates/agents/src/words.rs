//! A line of JSON in an agent's own words, read so that no line can do harm and none that means something is lost.

use serde::de::DeserializeOwned;
use serde_json::{Value, value::RawValue};

use crate::agent::{Raw, raw};

/// How many values a line may have. Read, each takes many times the room that it has in the line.
const MOST: usize = 256 * 1024;

/// How much is kept of what is too long to be read, or says nothing: enough to see what it was.
pub(crate) const KEPT: usize = 64 * 1024;

/// Half of a pair of escapes stands for nothing by itself, and is replaced by what stands for that.
const REPLACEMENT: &[u8; 4] = b"fffd";

/// Reads a line, or says why it cannot be read.
///
/// A program in JavaScript may cut a text in the middle of a character, and then writes half of it as an escape. That is
/// no reason to miss what the line asks or ends.
pub(crate) fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    if line.len() > MOST && values(line) > MOST {
        return Err(format!("it has more than {MOST} values"));
    }
    serde_json::from_slice(line).or_else(|error| {
        let whole = without_halves(line).ok_or_else(|| error.to_string())?;
        serde_json::from_slice(&whole).map_err(|error| error.to_string())
    })
}

/// A line as it came, to be kept beside what it told: as a text, where it is no JSON.
pub(crate) fn as_it_came(line: &[u8]) -> Option<Raw> {
    let text = std::str::from_utf8(line).ok().and_then(|line| RawValue::from_string(line.to_owned()).ok());
    text.map(Raw::from).or_else(|| raw(&Value::String(String::from_utf8_lossy(line).into_owned())))
}

/// The beginning of a line.
pub(crate) fn beginning(line: &[u8]) -> &[u8] {
    line.get(..KEPT).unwrap_or(line)
}

/// About how many values a line has, by what stands between them.
fn values(line: &[u8]) -> usize {
    let (mut count, mut within, mut escaped) = (0, false, false);
    for byte in line {
        match (within, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => within = !within,
            (false, b',') => count += 1,
            _ => {}
        }
    }
    count
}

/// The line with each escape that is half of a pair replaced; nothing if there is none.
fn without_halves(line: &[u8]) -> Option<Vec<u8>> {
    let mut whole = line.to_vec();
    let (mut at, mut replaced) = (0, false);
    while let Some(found) = line.get(at..)?.iter().position(|byte| *byte == b'\\') {
        at += found;
        at += match (unit(line, at), unit(line, at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                whole.get_mut(at + 2..at + 6)?.copy_from_slice(REPLACEMENT);
                replaced = true;
                6
            }
            _ => 2,
        };
        if at > line.len() {
            break;
        }
    }
    replaced.then_some(whole)
}

/// The number in an escape that stands here.
fn unit(line: &[u8], at: usize) -> Option<u16> {
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
    fn half_a_character_is_replaced_and_a_whole_one_is_not() {
        for (line, text) in [
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\udE00b""#, "\u{fffd}b"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
            (r#""\ud83d\n\\ud83d""#, "\u{fffd}\n\\ud83d"),
        ] {
            assert!(serde_json::from_str::<Value>(line).is_err());
            assert_eq!(read(line.as_bytes()), Ok(json!(text)));
            assert_eq!(as_it_came(line.as_bytes()).unwrap().get(), line);
        }
    }

    #[test]
    fn what_is_wrong_otherwise_stays_wrong() {
        for line in [r#""\ud83d"#, r#""\"#, r#""\u12""#, r#""\ud83d\x""#, "\\", ""] {
            assert!(read::<Value>(line.as_bytes()).is_err(), "{line}");
        }
        assert_eq!(as_it_came(b"\xff").unwrap().get(), "\"\u{fffd}\"");
    }

    #[test]
    fn a_line_of_very_many_values_is_not_read_and_a_long_text_is() {
        let many = format!("[{}0]", "0,".repeat(MOST + 1));
        assert!(read::<Value>(many.as_bytes()).unwrap_err().contains("values"));
        let text = format!(r#"["\"{}"]"#, ",".repeat(MOST * 2));
        assert!(read::<Value>(text.as_bytes()).is_ok());
    }
}
