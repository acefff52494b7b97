//! Notes on standard error, beside output of a job.

use carrel_changes::EscapedLine;
use serde_json::json;

use super::ending::note;

/// How notes are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionNotes {
    pub(crate) quiet: bool,
    pub(crate) json: bool,
}

// === impl Notes ===

impl SessionNotes {
    /// A note as a line; empty if quiet. A terminal in raw mode needs a carriage return.
    pub(crate) fn line(self, words: &str, raw: bool) -> String {
        let end = if raw { "\r\n" } else { "\n" };
        match self {
            Self { quiet: true, .. } => String::new(),
            Self { json: true, .. } => format!("{}{end}", crate::json::line(&json!({"note": words})).trim_end()),
            _ => format!("note: {}{end}", EscapedLine(words)),
        }
    }

    pub(crate) fn print(self, words: &str) {
        note(&self.line(words, false));
    }

    /// Prints a note with a hint.
    pub(crate) fn print_with_hint(self, words: &str, hint: &str) {
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
    fn a_note_is_a_line_or_a_json_object() {
        let notes = SessionNotes::default();
        assert_eq!(notes.line("a \u{1b}[2J", false), "note: a \\x1b[2J\n");
        assert_eq!(notes.line("a", true), "note: a\r\n");
        assert_eq!(SessionNotes { json: true, ..notes }.line("a \"b\"", false), "{\"note\":\"a \\\"b\\\"\"}\n");
        assert_eq!(SessionNotes { quiet: true, json: true }.line("a", false), "");
    }
}
