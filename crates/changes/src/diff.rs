//! Compares saved changes with the current project: as a patch for `git apply`, or as statistics.

mod hunks;
mod patch;
mod stat;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::apply::GitCount;
use crate::auto_run::AutoRunChange;
use crate::change::{FileChange, Node};
use crate::confined_tree::FileKind;
use crate::file_state::{FileContent, FileState, ProjectFile};
use crate::git::GitGuard;
use crate::path::RelativePath;
use crate::path_error::PathError;
use crate::project::{Project, ProjectError};
use crate::saved::{ChangeEntry, SavedChanges, SavedChangesError};

/// Larger files are not compared line by line.
const LONGEST_TEXT: u64 = 8 << 20;
/// Nor are files with more lines.
const MAX_LINES: usize = 500_000;
/// The time limit for exact comparison: a sandbox can write files that take hours.
const TIME: Duration = Duration::from_secs(10);

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffStyle {
    /// A patch for `git apply`, byte for byte.
    Patch,
    /// A patch for a terminal: control characters are escaped, so it may not apply.
    Terminal,
    /// Added and removed lines per file.
    Stat,
}

/// A diff that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// The saved changes cannot be read.
    #[error(transparent)]
    Kept(#[from] SavedChangesError),
    /// The project cannot be read.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] PathError),
    /// The output failed.
    #[error("cannot write the diff: {0}")]
    Write(#[from] io::Error),
}

/// A file that differs.
struct FileDiff<'a> {
    path: &'a RelativePath,
    old: Option<DiffSide>,
    new: Option<DiffSide>,
    /// Only the permissions differ.
    same: bool,
}

/// One side of a diff: a file or a symlink, as git sees it.
struct DiffSide {
    link: bool,
    mode: u32,
    size: u64,
    /// `None` for binary files.
    text: Option<Vec<u8>>,
}

// === impl SavedChanges ===

impl SavedChanges {
    /// Writes how applying would change the current project, at its recorded path or at another one. Directories are
    /// not shown, as in git; [`SavedChanges::changes`] lists them. Returns what deserves a warning.
    pub fn diff(
        &self,
        project: Option<&Path>,
        out: &mut impl Write,
        style: DiffStyle,
    ) -> Result<Vec<AutoRunChange>, DiffError> {
        let project = self.open_project(project)?;
        let deadline = Instant::now() + TIME;
        let (mut lines, mut directories) = (Vec::new(), 0);
        let changes: Vec<FileChange> = self.record().entries.iter().map(ChangeEntry::change).collect();
        let guard = if style == DiffStyle::Stat { Some(GitGuard::of(&project, &changes)?) } else { None };
        let (mut marks, mut git) = (Vec::new(), GitCount::default());
        for (entry, change) in self.record().entries.iter().zip(&changes) {
            let pair = self.pair(&project, entry)?;
            if let Some(guard) = &guard {
                let is_there = pair.is_none()
                    && ProjectFile::new(&project, &entry.path, project.find(&entry.path)?).is(&entry.after)?;
                if !is_there && guard.find(change).is_some() {
                    git.add(change.files);
                }
                directories += u64::from(!is_there && matches!(change.node, Node::Directory { .. }));
            }
            let Some(pair) = pair else { continue };
            marks.extend(change.mark());
            match style {
                DiffStyle::Patch | DiffStyle::Terminal => patch::write(out, pair, style, deadline)?,
                DiffStyle::Stat => stat::StatLine::add(&mut lines, &pair, deadline),
            }
        }
        if style == DiffStyle::Stat {
            stat::write(out, &lines, directories, git.get())?;
        }
        Ok(marks)
    }

    /// Both sides of a change; `None` if the project already has it.
    fn pair<'a>(&self, project: &'a Project, entry: &'a ChangeEntry) -> Result<Option<FileDiff<'a>>, DiffError> {
        let mut found = ProjectFile::new(project, &entry.path, project.find(&entry.path)?);
        if found.is(&entry.after)? {
            return Ok(None);
        }
        let same = found.has_content_of(&entry.after)?;
        let old = DiffSide::of_project(project, &entry.path, &found)?;
        let new = match &entry.after {
            FileState::File { mode, size, content: FileContent::Sha256(digest) } => {
                Some(DiffSide::file(*mode, *size, || self.content(digest, *size))?)
            }
            FileState::Symlink { target } => Some(DiffSide::link(target.clone())),
            _ => None,
        };
        let pair = FileDiff { path: &entry.path, old, new, same };
        Ok((pair.old.is_some() || pair.new.is_some()).then_some(pair))
    }
}

// === impl FileDiff ===

impl FileDiff<'_> {
    /// Both texts, if both sides are text; a missing side is empty.
    fn texts(&self) -> Option<(&[u8], &[u8])> {
        fn text(side: Option<&DiffSide>) -> Option<&[u8]> {
            side.map_or(Some(&[]), |side| side.text.as_deref())
        }
        Some((text(self.old.as_ref())?, text(self.new.as_ref())?))
    }
}

// === impl DiffSide ===

impl DiffSide {
    /// The project's side; `None` for what git does not track.
    fn of_project(project: &Project, path: &RelativePath, found: &ProjectFile<'_>) -> Result<Option<Self>, PathError> {
        let failed = |action| PathError::at(action, path.as_bytes());
        let Some(meta) = found.meta() else { return Ok(None) };
        match meta.kind {
            FileKind::File => {
                let open = || project.tree().file(path).map_err(failed("open"));
                Self::file(meta.permissions(), meta.size, open).map(Some)
            }
            FileKind::Symlink => Ok(Some(Self::link(project.tree().target(path).map_err(failed("read"))?))),
            FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::Device => Ok(None),
        }
    }

    fn link(target: Vec<u8>) -> Self {
        let size = u64::try_from(target.len()).unwrap_or(u64::MAX);
        Self { link: true, mode: 0, size, text: Some(target) }
    }

    fn file<E: From<PathError>>(mode: u32, size: u64, open: impl FnOnce() -> Result<File, E>) -> Result<Self, E> {
        let text = if size > LONGEST_TEXT { None } else { text(open()?).map_err(PathError::at("read", b"a file"))? };
        Ok(Self { link: false, mode, size, text })
    }
}

/// A file as text; `None` if it has NUL bytes or too many lines.
fn text(file: File) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = file.take(LONGEST_TEXT + 1).read_to_end(&mut bytes)?;
    let lines = bytes.iter().filter(|byte| **byte == b'\n').take(MAX_LINES + 1).count();
    let is_text = u64::try_from(read).is_ok_and(|read| read <= LONGEST_TEXT) && lines <= MAX_LINES;
    Ok((is_text && !bytes.contains(&0)).then_some(bytes))
}
