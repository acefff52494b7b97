//! Formats JSON, with characters escaped that would control a terminal.

use std::fmt::Write as _;

use serde_json::Value;

pub(crate) fn line(value: &Value) -> String {
    format!("{}\n", escaped(&value.to_string()))
}

/// A value on several lines, indented.
pub(crate) fn lines(value: &Value) -> String {
    format!("{}\n", escaped(&format!("{value:#}")))
}

/// Escapes control characters that JSON allows verbatim. They occur only in strings, so that escaping them keeps the
/// meaning.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_control(character) {
            // Writing to a string cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(character));
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Whether a character controls a terminal, or changes the order of text invisibly.
fn is_control(character: char) -> bool {
    matches!(
        character,
        '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn control_characters_are_escaped_without_changing_the_value() {
        let text = "\u{9b}2J \u{7f} \u{202e}txt.exe \\\u{85} ä \u{1b}[0m\n";
        let value = json!({"\u{2066}key": text});
        for text in [line(&value), lines(&value)] {
            assert!(!text.trim_end().contains(|c: char| c != '\n' && (c.is_control() || is_control(c))), "{text:?}");
            assert!(text.contains("\\u009b2J \\u007f \\u202etxt.exe \\\\\\u0085 ä \\u001b[0m\\n"), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
        assert_eq!(line(&value).lines().count(), 1);
    }
}
