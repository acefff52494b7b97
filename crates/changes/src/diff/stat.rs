//! The statistics of a diff.

use std::io::{self, Write};
use std::time::Instant;

use super::FileDiff;
use super::hunks::{LineKind, hunks};
use crate::escape::{CountedNoun, EscapedName, caution};

/// The longest bar.
const BAR: u64 = 40;

/// Statistics of one file.
pub(super) struct StatLine {
    path: String,
    count: StatCount,
}

enum StatCount {
    Lines {
        added: u64,
        removed: u64,
    },
    Bytes {
        old: u64,
        new: u64,
    },
    /// The changed files of a `.git` directory, with the lines of the text files.
    Files {
        files: u64,
        added: u64,
        removed: u64,
    },
}

/// Writes a line per file, the totals or, if only directories differ, their number, and the number of changes that git would act on.
pub(super) fn write(out: &mut impl Write, lines: &[StatLine], directories: u64, git: u64) -> io::Result<()> {
    let width = lines.iter().map(|line| line.path.chars().count()).max().unwrap_or(0);
    let most = lines.iter().map(StatLine::changed).max().unwrap_or(0);
    let digits = most.to_string().len();
    let (mut all_added, mut all_removed) = (0, 0);
    for StatLine { path, count, .. } in lines {
        write!(out, " {path:<width$} | ")?;
        match count {
            StatCount::Bytes { old, new } => writeln!(out, "Bin {old} -> {new} bytes")?,
            StatCount::Files { files, added, removed } => {
                writeln!(out, "{}", CountedNoun(*files, "file", "files"))?;
                all_added += added;
                all_removed += removed;
            }
            StatCount::Lines { added, removed } => {
                // Every nonzero count has at least one sign.
                let bar = |part: u64| {
                    let length = if most > BAR { (part * BAR / most).max(part.min(1)) } else { part };
                    usize::try_from(length).unwrap_or(0)
                };
                let signs = "+".repeat(bar(*added)) + &"-".repeat(bar(*removed));
                let text = format!("{:>digits$} {signs}", added + removed);
                writeln!(out, "{}", text.trim_end())?;
                all_added += added;
                all_removed += removed;
            }
        }
    }
    let files = lines.iter().map(StatLine::files).sum();
    let changed = match directories {
        1.. if lines.is_empty() => CountedNoun(directories, "directory", "directories"),
        _ => CountedNoun(files, "file", "files"),
    };
    write!(out, " {changed} changed")?;
    if all_added > 0 {
        write!(out, ", {}", CountedNoun(all_added, "insertion(+)", "insertions(+)"))?;
    }
    if all_removed > 0 {
        write!(out, ", {}", CountedNoun(all_removed, "deletion(-)", "deletions(-)"))?;
    }
    writeln!(out)?;
    if git > 0 { writeln!(out, " {}", caution(git)) } else { Ok(()) }
}

// === impl StatLine ===

impl StatLine {
    /// Adds the statistics of a file; the files of a `.git` directory share one line.
    pub(super) fn add(lines: &mut Vec<Self>, pair: &FileDiff<'_>, deadline: Instant) {
        let Some(repository) = pair.path.git_directory() else { return lines.push(Self::of(pair, deadline)) };
        let path = format!("{}/", EscapedName(repository));
        let (more_added, more_removed) = match Self::of(pair, deadline).count {
            StatCount::Lines { added, removed } => (added, removed),
            StatCount::Bytes { .. } | StatCount::Files { .. } => (0, 0),
        };
        let known = lines.iter_mut().find(|line| line.path == path && matches!(line.count, StatCount::Files { .. }));
        if let Some(Self { count: StatCount::Files { files, added, removed }, .. }) = known {
            *files += 1;
            *added += more_added;
            *removed += more_removed;
        } else {
            lines.push(Self { path, count: StatCount::Files { files: 1, added: more_added, removed: more_removed } });
        }
    }

    fn of(pair: &FileDiff<'_>, deadline: Instant) -> Self {
        let count = match (pair.same, pair.texts()) {
            (true, _) => StatCount::Lines { added: 0, removed: 0 },
            (false, Some((old, new))) => {
                let hunks = hunks(old, new, deadline);
                let signs = hunks.iter().flat_map(|hunk| &hunk.lines);
                let (mut added, mut removed) = (0, 0);
                for (sign, _) in signs {
                    added += u64::from(*sign == LineKind::Added);
                    removed += u64::from(*sign == LineKind::Removed);
                }
                StatCount::Lines { added, removed }
            }
            (false, None) => {
                let size = |side: &Option<super::DiffSide>| side.as_ref().map_or(0, |side| side.size);
                StatCount::Bytes { old: size(&pair.old), new: size(&pair.new) }
            }
        };
        Self { path: pair.path.to_string(), count }
    }

    fn changed(&self) -> u64 {
        match self.count {
            StatCount::Lines { added, removed } => added + removed,
            StatCount::Bytes { .. } | StatCount::Files { .. } => 0,
        }
    }

    fn files(&self) -> u64 {
        if let StatCount::Files { files, .. } = self.count { files } else { 1 }
    }
}
