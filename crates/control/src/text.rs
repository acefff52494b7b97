//! Text that callers gave, as it is shown to people.

/// What stands for what was cut out.
const GAP: &str = "…";

/// A text of at most so many bytes, without control characters other than line feeds. What is too long loses its middle:
/// the end often says what to do.
pub fn bounded_text(text: impl Into<String>, longest: usize) -> String {
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
    if text.len() <= longest {
        return text;
    }
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let tail = (text.len() - longest / 4..text.len()).find(is_boundary).unwrap_or(text.len());
    let room = longest.saturating_sub(text.len() - tail).saturating_sub(GAP.len());
    let head = (0..=room).rev().find(is_boundary).unwrap_or(0);
    text.replace_range(head..tail, GAP);
    text
}

fn is_escaped(letter: char) -> bool {
    letter.is_control() && letter != '\n'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_loses_its_middle_and_a_short_one_nothing() {
        assert_eq!(bounded_text("short\nü", 16), "short\nü");
        let cut = bounded_text(format!("no {}: try again", "x".repeat(5000)), 64);
        assert!(
            cut.len() <= 64 && cut.starts_with("no xxx") && cut.ends_with(": try again") && cut.contains(GAP),
            "{cut}"
        );
    }

    #[test]
    fn control_characters_are_escaped_and_every_bound_is_kept() {
        assert_eq!(bounded_text("a\u{1b}[31m\u{7}\u{9b}\r", 64), "a\\u{1b}[31m\\u{7}\\u{9b}\\r");
        bolero::check!().with_type::<(String, u16)>().for_each(|(text, longest)| {
            let longest = usize::from(*longest).max(16);
            let shown = bounded_text(text.as_str(), longest);
            assert!(shown.len() <= longest && !shown.contains(is_escaped), "{shown:?}");
        });
    }
}
