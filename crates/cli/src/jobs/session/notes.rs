//! What is said beside what a job writes.

use carrel_changes::EscapedLine;
use serde_json::json;

use super::ending::note;

/// How notes are said, if they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    pub(crate) quiet: bool,
    pub(crate) json: bool,
}

// === impl Notes ===

impl Notes {
    /// A note as a line; nothing, if nobody wants it. A terminal in raw mode has to be told where a line begins.
    pub(crate) fn line(self, words: &str, raw: bool) -> String {
        let end = if raw { "\r\n" } else { "\n" };
        match self {
            Self { quiet: true, .. } => String::new(),
            Self { json: true, .. } => format!("{}{end}", crate::json::line(&json!({"note": words})).trim_end()),
            _ => format!("note: {}{end}", EscapedLine(words)),
        }
    }

    /// Says it at once.
    pub(crate) fn say(self, words: &str) {
        note(&self.line(words, false));
    }

    /// The same, with what to do about it.
    pub(crate) fn say_with_hint(self, words: &str, hint: &str) {
        match self {
            Self { quiet: true, .. } => {}
            Self { json: true, .. } => note(&crate::json::line(&json!({"note": words, "hint": hint}))),
            _ => note(&format!("note: {}\nhint: {}\n", EscapedLine(words), EscapedLine(hint))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_a_line_for_people_and_an_object_for_programs() {
        let notes = Notes::default();
        assert_eq!(notes.line("a \u{1b}[2J", false), "note: a \\x1b[2J\n");
        assert_eq!(notes.line("a", true), "note: a\r\n");
        assert_eq!(Notes { json: true, ..notes }.line("a \"b\"", false), "{\"note\":\"a \\\"b\\\"\"}\n");
        assert_eq!(Notes { quiet: true, json: true }.line("a", false), "");
    }
}
