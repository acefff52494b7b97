//! Shows text of callers to people.

/// Replaces what was cut out.
const ELLIPSIS: &str = "…";

/// Limits a text to a number of bytes, and escapes control characters except line feeds. A long text loses its middle,
/// because its end often contains the hint.
pub fn bounded_text(text: impl Into<String>, max_bytes: usize) -> String {
    let mut text: String = text.into();
    if text.contains(is_escaped) {
        text = text.chars().fold(String::with_capacity(text.len()), |mut shown, letter| {
            if is_escaped(letter) {
                shown.extend(letter.escape_default())
            } else {
                shown.push(letter)
            }
            shown
        });
    }
    if text.len() <= max_bytes {
        return text;
    }
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let tail = (text.len() - max_bytes / 4..text.len()).find(is_boundary).unwrap_or(text.len());
    let room = max_bytes.saturating_sub(text.len() - tail).saturating_sub(ELLIPSIS.len());
    let head = (0..=room).rev().find(is_boundary).unwrap_or(0);
    text.replace_range(head..tail, ELLIPSIS);
    text
}

fn is_escaped(letter: char) -> bool {
    letter.is_control() && letter != '\n'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_loses_its_middle_and_a_short_one_is_unchanged() {
        assert_eq!(bounded_text("short\nü", 16), "short\nü");
        let cut = bounded_text(format!("no {}: try again", "x".repeat(5000)), 64);
        assert!(
            cut.len() <= 64 && cut.starts_with("no xxx") && cut.ends_with(": try again") && cut.contains(ELLIPSIS),
            "{cut}"
        );
    }

    #[test]
    fn control_characters_are_escaped_and_every_limit_holds() {
        assert_eq!(bounded_text("a\u{1b}[31m\u{7}\u{9b}\r", 64), "a\\u{1b}[31m\\u{7}\\u{9b}\\r");
        bolero::check!().with_type::<(String, u16)>().for_each(|(text, max_bytes)| {
            let max_bytes = usize::from(*max_bytes).max(16);
            let shown = bounded_text(text.as_str(), max_bytes);
            assert!(shown.len() <= max_bytes && !shown.contains(is_escaped), "{shown:?}");
        });
    }
}
