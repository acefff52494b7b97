//! What was copied, and what was skipped.

use std::fmt::Write as _;

use carrel_changes::EscapedLine;
use serde_json::{Value, json};

/// How many skipped files are listed.
const NAMED: usize = 20;

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyReport {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    pub(crate) bytes: u64,
    omitted: u64,
    /// How many of them should have been copied.
    missing: u64,
    /// Whether one of them is a link that points out of the copy.
    leaving_link: bool,
    named: Vec<(String, OmittedReason)>,
}

/// Why a file was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OmittedReason {
    /// It is a device, a pipe or a socket.
    SpecialFile,
    /// Its name, or its target, is not UTF-8.
    NotUtf8,
    /// It is a symbolic link that points out of the copy.
    LinkLeavesCopy,
}

// === impl CopyReport ===

impl CopyReport {
    pub(crate) fn omit(&mut self, path: impl Into<String>, why: OmittedReason) {
        self.omitted += 1;
        self.missing += u64::from(why != OmittedReason::SpecialFile);
        self.leaving_link |= why == OmittedReason::LinkLeavesCopy;
        if self.named.len() < NAMED {
            self.named.push((path.into(), why));
        }
    }

    /// Whether everything was copied except special files.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Whether a link was skipped because it points out of the copy.
    pub(crate) fn has_leaving_link(&self) -> bool {
        self.leaving_link
    }

    /// How many skipped files should have been copied.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// The notes for a person.
    pub(crate) fn notes(&self) -> String {
        let mut text = String::new();
        for (path, why) in &self.named {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "note: skipped {}: {}", EscapedLine(path), why.message());
        }
        match self.omitted - self.named.len() as u64 {
            0 => {}
            more => drop(writeln!(text, "note: skipped {more} more")),
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let named = |(path, why): &(String, OmittedReason)| json!({"path": path, "why": why.code()});
        json!({
            "files": self.files,
            "directories": self.directories,
            "links": self.links,
            "bytes": self.bytes,
            "left_out": {"count": self.omitted, "some": self.named.iter().map(named).collect::<Vec<_>>()},
        })
    }
}

// === impl OmittedReason ===

impl OmittedReason {
    fn message(self) -> &'static str {
        match self {
            Self::SpecialFile => "it is a device, a pipe or a socket",
            Self::NotUtf8 => "its name is not UTF-8",
            Self::LinkLeavesCopy => "it is a symbolic link that points out of the copy",
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::SpecialFile => "kind",
            Self::NotUtf8 => "not_text",
            Self::LinkLeavesCopy => "leaves",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_files_are_listed_up_to_a_limit() {
        let mut report = CopyReport::default();
        assert!(report.is_complete() && report.notes().is_empty());
        report.omit("/dev/\u{1b}x", OmittedReason::SpecialFile);
        assert!(report.is_complete());
        assert_eq!(report.notes(), "note: skipped /dev/\\x1bx: it is a device, a pipe or a socket\n");
        for number in 0..21 {
            report.omit(format!("/{number}"), OmittedReason::NotUtf8);
        }
        assert_eq!((report.is_complete(), report.missing()), (false, 21));
        assert_eq!(report.notes().lines().count(), NAMED + 1);
        assert!(report.notes().ends_with("note: skipped 2 more\n"));
        let json = report.json();
        assert_eq!(json.pointer("/left_out/count"), Some(&22.into()));
        assert_eq!(json.pointer("/left_out/some/1/why"), Some(&"not_text".into()));
    }
}
