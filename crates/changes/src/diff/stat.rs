//! A difference in numbers.

use std::io::{self, Write};
use std::time::Instant;

use super::Pair;
use super::hunks::{Sign, hunks};
use crate::words::{Counted, Shown, caution};

/// The longest bar.
const BAR: u64 = 40;

/// A file in numbers.
pub(super) struct Line {
    path: String,
    count: Count,
}

enum Count {
    Lines {
        added: u64,
        removed: u64,
    },
    Bytes {
        old: u64,
        new: u64,
    },
    /// Files of a repository, with the lines of those that are text.
    Files {
        files: u64,
        added: u64,
        removed: u64,
    },
}

/// Writes a line for each file, one for all, and one for those that git would act on.
pub(super) fn write(out: &mut impl Write, lines: &[Line], git: u64) -> io::Result<()> {
    let width = lines.iter().map(|line| line.path.chars().count()).max().unwrap_or(0);
    let most = lines.iter().map(Line::changed).max().unwrap_or(0);
    let digits = most.to_string().len();
    let (mut all_added, mut all_removed) = (0, 0);
    for Line { path, count, .. } in lines {
        write!(out, " {path:<width$} | ")?;
        match count {
            Count::Bytes { old, new } => writeln!(out, "Bin {old} -> {new} bytes")?,
            Count::Files { files, added, removed } => {
                writeln!(out, "{}", Counted(*files, "file", "files"))?;
                all_added += added;
                all_removed += removed;
            }
            Count::Lines { added, removed } => {
                // What is there has a sign, however small it is beside the largest.
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
    let files = lines.iter().map(Line::files).sum();
    write!(out, " {} changed", Counted(files, "file", "files"))?;
    if all_added > 0 {
        write!(out, ", {}", Counted(all_added, "insertion(+)", "insertions(+)"))?;
    }
    if all_removed > 0 {
        write!(out, ", {}", Counted(all_removed, "deletion(-)", "deletions(-)"))?;
    }
    writeln!(out)?;
    if git > 0 { writeln!(out, " {}", caution(git)) } else { Ok(()) }
}

// === impl Line ===

impl Line {
    /// Adds a file to the lines; what is in a `.git` is one line.
    pub(super) fn add(lines: &mut Vec<Self>, pair: &Pair<'_>, deadline: Instant) {
        let Some(repository) = pair.path.git_directory() else { return lines.push(Self::of(pair, deadline)) };
        let path = format!("{}/", Shown(repository));
        let (more_added, more_removed) = match Self::of(pair, deadline).count {
            Count::Lines { added, removed } => (added, removed),
            Count::Bytes { .. } | Count::Files { .. } => (0, 0),
        };
        let known = lines.iter_mut().find(|line| line.path == path && matches!(line.count, Count::Files { .. }));
        if let Some(Self { count: Count::Files { files, added, removed }, .. }) = known {
            *files += 1;
            *added += more_added;
            *removed += more_removed;
        } else {
            lines.push(Self { path, count: Count::Files { files: 1, added: more_added, removed: more_removed } });
        }
    }

    fn of(pair: &Pair<'_>, deadline: Instant) -> Self {
        let count = match (pair.same, pair.texts()) {
            (true, _) => Count::Lines { added: 0, removed: 0 },
            (false, Some((old, new))) => {
                let hunks = hunks(old, new, deadline);
                let signs = hunks.iter().flat_map(|hunk| &hunk.lines);
                let (mut added, mut removed) = (0, 0);
                for (sign, _) in signs {
                    added += u64::from(*sign == Sign::Added);
                    removed += u64::from(*sign == Sign::Removed);
                }
                Count::Lines { added, removed }
            }
            (false, None) => {
                let size = |side: &Option<super::Side>| side.as_ref().map_or(0, |side| side.size);
                Count::Bytes { old: size(&pair.old), new: size(&pair.new) }
            }
        };
        Self { path: pair.path.to_string(), count }
    }

    fn changed(&self) -> u64 {
        match self.count {
            Count::Lines { added, removed } => added + removed,
            Count::Bytes { .. } | Count::Files { .. } => 0,
        }
    }

    fn files(&self) -> u64 {
        if let Count::Files { files, .. } = self.count { files } else { 1 }
    }
}
