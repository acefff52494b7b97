//! Objects for programs, as text that cannot steer a terminal on which they are read all the same.

use std::fmt::Write as _;

use serde_json::Value;

/// One on a line.
pub(crate) fn line(value: &Value) -> String {
    format!("{}\n", escaped(&value.to_string()))
}

/// One on several lines, for people too.
pub(crate) fn lines(value: &Value) -> String {
    format!("{}\n", escaped(&format!("{value:#}")))
}

/// Escapes what the format allows as it is. Beyond ASCII there is nothing but what stands in strings; nor is the last
/// character of ASCII, which is a control character too, anywhere else.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if steers(character) {
            // Writing to a string cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(character));
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Whether a character is a command to a terminal, or is not seen but changes the order in which others are.
fn steers(character: char) -> bool {
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
    fn what_could_steer_a_terminal_is_escaped_and_means_the_same() {
        let text = "\u{9b}2J \u{7f} \u{202e}txt.exe \\\u{85} ä \u{1b}[0m\n";
        let value = json!({"\u{2066}key": text});
        for said in [line(&value), lines(&value)] {
            assert!(!said.trim_end().contains(|c: char| c != '\n' && (c.is_control() || steers(c))), "{said:?}");
            assert!(said.contains("\\u009b2J \\u007f \\u202etxt.exe \\\\\\u0085 ä \\u001b[0m\\n"), "{said}");
            assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), value);
        }
        assert_eq!(line(&value).lines().count(), 1);
    }
}
