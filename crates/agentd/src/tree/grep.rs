//! Finds lines by content.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use carrel_protocol::payload::{TreeGrep, TreeMatch};
use regex_lite::{Regex, RegexBuilder};
use rustix::fs::FileType;

use super::glob::GlobPattern;
use super::walk::TreeWalk;
use super::{BATCH, TreeOperation, TreeStep};
use crate::files::{FsError, join};
use crate::image_file;
use crate::session::SessionKey;
use crate::shared_state::SessionIo;

/// Bytes per step.
const BYTES: u64 = 1024 * 1024;
/// Entries per step.
const VISITS: usize = 128;
/// The maximum length of a line to search.
const LINE: u64 = 16 * 1024;
/// The maximum size of an expression: size times line length bounds the cost of a search.
pub(super) const EXPRESSION: usize = 32 * 1024;
/// The maximum length of a line in the result.
const SHOWN: usize = 2000;

/// A search by content.
pub(super) struct GrepSearch {
    root: String,
    expression: Regex,
    files: Option<GlobPattern>,
    walk: Option<TreeWalk>,
    current: Option<OpenTextFile>,
}

struct OpenTextFile {
    path: String,
    lines: BufReader<File>,
    number: u64,
    /// Whether the rest of an overlong line is being skipped.
    skipping: bool,
}

/// The result of one read.
struct LinePiece {
    read: u64,
    /// A line without its terminator, truncated if too long; `None` for the rest of such a line.
    line: Option<Vec<u8>>,
}

// === impl GrepSearch ===

impl GrepSearch {
    pub(super) fn start(grep: &TreeGrep) -> Result<Self, FsError> {
        let pattern = if grep.literal { regex_lite::escape(&grep.pattern) } else { grep.pattern.clone() };
        let expression = RegexBuilder::new(&pattern)
            .case_insensitive(grep.ignore_case)
            .size_limit(EXPRESSION)
            .build()
            .map_err(|error| FsError::other("grep", error.to_string()))?;
        let files = grep.glob.as_deref().map(GlobPattern::new).transpose()?;
        let (walk, current) = match TreeWalk::new(&grep.root, grep.hidden) {
            Ok(walk) => (Some(walk), None),
            Err(rustix::io::Errno::NOTDIR) => (None, Some(OpenTextFile::path(&grep.root)?)),
            Err(errno) => return Err(FsError::new("grep", errno)),
        };
        Ok(Self { root: grep.root.clone(), expression, files, walk, current: current.flatten() })
    }

    /// The next file to search. Unreadable files are skipped.
    fn next_file(&mut self) -> Result<TreeStep, FsError> {
        let Some(walk) = &mut self.walk else { return Ok(TreeStep::Done) };
        for _ in 0..VISITS {
            let Some(visited) = walk.next().map_err(|errno| FsError::new("grep", errno))? else {
                return Ok(TreeStep::Done);
            };
            let wanted = self.files.as_ref().is_none_or(|files| files.matches(&visited.path));
            if visited.kind != FileType::RegularFile || !wanted {
                continue;
            }
            if let Ok(file) = visited.open() {
                self.current = OpenTextFile::new(join(&self.root, &visited.path), file.into());
                if self.current.is_some() {
                    break;
                }
            }
        }
        Ok(TreeStep::More)
    }

    /// Searches the current file; `Ok(true)` at its end.
    fn search(&mut self, found: &mut Vec<TreeMatch>) -> bool {
        let Some(open) = &mut self.current else { return true };
        let mut searched = 0;
        while searched < BYTES && found.len() < BATCH {
            let Some(piece) = open.piece() else { return true };
            searched += piece.read;
            let Some(line) = piece.line else { continue };
            let text = String::from_utf8_lossy(&line);
            if self.expression.is_match(&text) {
                let shown = text.chars().take(SHOWN).collect();
                found.push(TreeMatch { path: open.path.clone(), line: Some(open.number), text: Some(shown) });
            }
        }
        false
    }
}

impl TreeOperation for GrepSearch {
    fn step(&mut self, _: &mut SessionIo, _: SessionKey, found: &mut Vec<TreeMatch>) -> Result<TreeStep, FsError> {
        if self.current.is_none() {
            return self.next_file();
        }
        if self.search(found) {
            self.current = None;
            if self.walk.is_none() {
                return Ok(TreeStep::Done);
            }
        }
        Ok(TreeStep::More)
    }
}

// === impl OpenTextFile ===

impl OpenTextFile {
    fn path(path: &str) -> Result<Option<Self>, FsError> {
        let file = image_file::open(path).map_err(|errno| FsError::new("grep", errno))?;
        Ok(Self::new(path.to_owned(), file))
    }

    /// Opens a text file; `None` for binary content.
    fn new(path: String, file: File) -> Option<Self> {
        let mut lines = BufReader::with_capacity(64 * 1024, file);
        let start = lines.fill_buf().ok()?;
        let binary = start.iter().take(8192).any(|byte| *byte == 0);
        (!binary).then_some(Self { path, lines, number: 0, skipping: false })
    }

    /// The next piece of the file; `None` at its end or on a read error.
    fn piece(&mut self) -> Option<LinePiece> {
        let mut line = Vec::new();
        let read = self.lines.by_ref().take(LINE).read_until(b'\n', &mut line).ok().filter(|count| *count > 0)? as u64;
        let ended = line.last() == Some(&b'\n');
        if std::mem::replace(&mut self.skipping, !ended && read == LINE) {
            self.skipping = !ended;
            return Some(LinePiece { read, line: None });
        }
        self.number += 1;
        for end in [b'\n', b'\r'] {
            if line.last() == Some(&end) {
                line.pop();
            }
        }
        Some(LinePiece { read, line: Some(line) })
    }
}
