//! The patch format of git.

use std::io::{self, Write};
use std::time::Instant;

use super::hunks::{DiffHunk, hunks};
use super::{DiffSide, DiffStyle, FileDiff};
use crate::escape::{line_for_terminal, quoted};

/// Writes the patch of one file.
pub(super) fn write(out: &mut impl Write, pair: FileDiff<'_>, style: DiffStyle, deadline: Instant) -> io::Result<()> {
    match pair {
        // A change between symlink and file is a deletion and an addition.
        FileDiff { path, old: Some(old), new: Some(new), .. } if old.link != new.link => {
            write_one(out, &FileDiff { path, old: Some(old), new: None, same: false }, style, deadline)?;
            write_one(out, &FileDiff { path, old: None, new: Some(new), same: false }, style, deadline)
        }
        pair => write_one(out, &pair, style, deadline),
    }
}

fn write_one(out: &mut impl Write, pair: &FileDiff<'_>, style: DiffStyle, deadline: Instant) -> io::Result<()> {
    let path = pair.path.as_bytes();
    let (a, b) = (quoted("a/", path), quoted("b/", path));
    writeln!(out, "diff --git {a} {b}")?;
    match (&pair.old, &pair.new) {
        (None, Some(new)) => writeln!(out, "new file mode {:o}", new.git_mode())?,
        (Some(old), None) => writeln!(out, "deleted file mode {:o}", old.git_mode())?,
        (Some(old), Some(new)) if !old.link && old.mode != new.mode => {
            // Git has two modes. If they are equal, write the actual permissions.
            let known = old.git_mode() != new.git_mode();
            let mode = |side: &DiffSide| if known { side.git_mode() } else { 0o100_000 | side.mode };
            writeln!(out, "old mode {:o}\nnew mode {:o}", mode(old), mode(new))?;
        }
        _ => {}
    }
    if pair.same {
        return Ok(());
    }
    let missing = || "/dev/null".to_owned();
    let a = if pair.old.is_some() { a } else { missing() };
    let b = if pair.new.is_some() { b } else { missing() };
    let Some((old, new)) = pair.texts() else { return writeln!(out, "Binary files {a} and {b} differ") };
    for (number, hunk) in hunks(old, new, deadline).iter().enumerate() {
        if number == 0 {
            // A tab ends a name with a space.
            let tab = |name: &str| if name.contains(' ') { "\t" } else { "" };
            writeln!(out, "--- {a}{}\n+++ {b}{}", tab(&a), tab(&b))?;
        }
        write_hunk(out, hunk, style)?;
    }
    Ok(())
}

fn write_hunk(out: &mut impl Write, hunk: &DiffHunk<'_>, style: DiffStyle) -> io::Result<()> {
    let range = |(start, length)| if length == 1 { format!("{start}") } else { format!("{start},{length}") };
    writeln!(out, "@@ -{} +{} @@", range(hunk.old), range(hunk.new))?;
    for (sign, line) in &hunk.lines {
        let ended = line.strip_suffix(b"\n");
        let text = ended.unwrap_or(line);
        out.write_all(&[sign.byte()])?;
        match style {
            DiffStyle::Terminal => out.write_all(line_for_terminal(text).as_bytes())?,
            DiffStyle::Patch | DiffStyle::Stat => out.write_all(text)?,
        }
        out.write_all(if ended.is_some() { b"\n" } else { b"\n\\ No newline at end of file\n" })?;
    }
    Ok(())
}

// === impl DiffSide ===

impl DiffSide {
    fn git_mode(&self) -> u32 {
        match (self.link, self.mode & 0o100) {
            (true, _) => 0o120_000,
            (false, 0) => 0o100_644,
            (false, _) => 0o100_755,
        }
    }
}
