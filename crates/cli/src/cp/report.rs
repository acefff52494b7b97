//! What was copied, and what was left out.

use std::fmt::Write as _;

use carrel_changes::EscapedLine;
use serde_json::{Value, json};

/// How many of what was left out are named.
const NAMED: usize = 20;

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyReport {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    pub(crate) bytes: u64,
    left_out: u64,
    /// Those among them that were wanted.
    missing: u64,
    /// There is a link among them that leads out of the copy.
    leaves: bool,
    named: Vec<(String, OmittedReason)>,
}

/// Why something was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OmittedReason {
    /// It is a device, a pipe or a socket.
    Kind,
    /// Its name, or what it leads to, is not text.
    NotText,
    /// It is a symbolic link to something that was not copied with it.
    Leaves,
}

// === impl CopyReport ===

impl CopyReport {
    pub(crate) fn leave_out(&mut self, path: impl Into<String>, why: OmittedReason) {
        self.left_out += 1;
        self.missing += u64::from(why != OmittedReason::Kind);
        self.leaves |= why == OmittedReason::Leaves;
        if self.named.len() < NAMED {
            self.named.push((path.into(), why));
        }
    }

    /// Whether everything was copied that can be.
    pub(crate) fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Whether a link was left out because it leads out of the copy.
    pub(crate) fn leaves(&self) -> bool {
        self.leaves
    }

    /// How many were left out though they were wanted.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// What a person has to know of it.
    pub(crate) fn notes(&self) -> String {
        let mut text = String::new();
        for (path, why) in &self.named {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "note: left out {}: {}", EscapedLine(path), why.words());
        }
        match self.left_out - self.named.len() as u64 {
            0 => {}
            more => drop(writeln!(text, "note: left out {more} more")),
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
            "left_out": {"count": self.left_out, "some": self.named.iter().map(named).collect::<Vec<_>>()},
        })
    }
}

// === impl OmittedReason ===

impl OmittedReason {
    fn words(self) -> &'static str {
        match self {
            Self::Kind => "it is a device, a pipe or a socket",
            Self::NotText => "its name is not text (UTF-8)",
            Self::Leaves => "it is a symbolic link that leads out of the copy",
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::NotText => "not_text",
            Self::Leaves => "leaves",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_named_as_far_as_that_helps() {
        let mut report = CopyReport::default();
        assert!(report.is_whole() && report.notes().is_empty());
        report.leave_out("/dev/\u{1b}x", OmittedReason::Kind);
        assert!(report.is_whole());
        assert_eq!(report.notes(), "note: left out /dev/\\x1bx: it is a device, a pipe or a socket\n");
        for number in 0..21 {
            report.leave_out(format!("/{number}"), OmittedReason::NotText);
        }
        assert_eq!((report.is_whole(), report.missing()), (false, 21));
        assert_eq!(report.notes().lines().count(), NAMED + 1);
        assert!(report.notes().ends_with("note: left out 2 more\n"));
        let json = report.json();
        assert_eq!(json.pointer("/left_out/count"), Some(&22.into()));
        assert_eq!(json.pointer("/left_out/some/1/why"), Some(&"not_text".into()));
    }
}
