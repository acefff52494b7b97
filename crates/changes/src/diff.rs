//! Kept changes beside the project as it is now: a patch that `git apply` takes, or numbers.

mod hunks;
mod patch;
mod stat;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::apply::GitCount;
use crate::change::Change;
use crate::failure::Failure;
use crate::git::GitGuard;
use crate::kept::{Entry, KeepError, Kept};
use crate::mark::Mark;
use crate::path::RelativePath;
use crate::project::{Project, ProjectError};
use crate::state::{Content, Found, State};
use crate::tree::Kind;

/// Longer files are not compared line by line.
const LONGEST_TEXT: u64 = 8 << 20;
/// Nor are those of more lines.
const MOST_LINES: usize = 500_000;
/// After this time, in all, what is left is compared less finely: a sandbox can write files that take hours.
const TIME: Duration = Duration::from_secs(10);

/// What a difference looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffStyle {
    /// A patch, byte for byte, for `git apply`.
    Patch,
    /// The same for a terminal: what could steer it is shown as an escape, so it is no longer a patch of such lines.
    Terminal,
    /// How many lines of each file were added and removed.
    Stat,
}

/// A difference that cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// The changes cannot be read.
    #[error(transparent)]
    Kept(#[from] KeepError),
    /// The project cannot be read.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// The system did not let us.
    #[error(transparent)]
    System(#[from] Failure),
    /// There is nowhere to write to.
    #[error("cannot write the difference: {0}")]
    Write(#[from] io::Error),
}

/// A file that differs.
struct Pair<'a> {
    path: &'a RelativePath,
    old: Option<Side>,
    new: Option<Side>,
    /// Only the permissions differ.
    same: bool,
}

/// One side of it: a file or a link, as git sees them.
struct Side {
    link: bool,
    mode: u32,
    size: u64,
    /// None, if it is not text.
    text: Option<Vec<u8>>,
}

// === impl Kept ===

impl Kept {
    /// Writes how the project, as it is now, would change. It is looked for where it was, unless a path is given.
    /// Directories are not shown, as git does not know them; [`Kept::changes`] lists them. Returns what of it is to be
    /// pointed out.
    pub fn diff(&self, project: Option<&Path>, out: &mut impl Write, style: DiffStyle) -> Result<Vec<Mark>, DiffError> {
        let project = self.open_project(project)?;
        let deadline = Instant::now() + TIME;
        let mut lines = Vec::new();
        let changes: Vec<Change> = self.record().entries.iter().map(Entry::change).collect();
        let guard = if style == DiffStyle::Stat { Some(GitGuard::of(&project, &changes)?) } else { None };
        let (mut marks, mut git) = (Vec::new(), GitCount::default());
        for (entry, change) in self.record().entries.iter().zip(&changes) {
            let pair = self.pair(&project, entry)?;
            if guard.as_ref().is_some_and(|guard| guard.find(change).is_some()) {
                let is_there =
                    pair.is_none() && Found::new(&project, &entry.path, project.find(&entry.path)?).is(&entry.after)?;
                if !is_there {
                    git.add(change.files);
                }
            }
            let Some(pair) = pair else { continue };
            marks.extend(change.mark());
            match style {
                DiffStyle::Patch | DiffStyle::Terminal => patch::write(out, pair, style, deadline)?,
                DiffStyle::Stat => stat::Line::add(&mut lines, &pair, deadline),
            }
        }
        if style == DiffStyle::Stat {
            stat::write(out, &lines, git.get())?;
        }
        Ok(marks)
    }

    /// What is on both sides of a change; none, where the project is so already.
    fn pair<'a>(&self, project: &'a Project, entry: &'a Entry) -> Result<Option<Pair<'a>>, DiffError> {
        let mut found = Found::new(project, &entry.path, project.find(&entry.path)?);
        if found.is(&entry.after)? {
            return Ok(None);
        }
        let same = found.has_content_of(&entry.after)?;
        let old = Side::of_project(project, &entry.path, &found)?;
        let new = match &entry.after {
            State::File { mode, size, content: Content::Sha256(digest) } => {
                Some(Side::file(*mode, *size, || self.content(digest, *size))?)
            }
            State::Symlink { target } => Some(Side::link(target.clone())),
            _ => None,
        };
        let pair = Pair { path: &entry.path, old, new, same };
        Ok((pair.old.is_some() || pair.new.is_some()).then_some(pair))
    }
}

// === impl Pair ===

impl Pair<'_> {
    /// Both texts, if there is nothing else; what is absent is empty.
    fn texts(&self) -> Option<(&[u8], &[u8])> {
        fn text(side: Option<&Side>) -> Option<&[u8]> {
            side.map_or(Some(&[]), |side| side.text.as_deref())
        }
        Some((text(self.old.as_ref())?, text(self.new.as_ref())?))
    }
}

// === impl Side ===

impl Side {
    /// What a project has; none, for what git does not know.
    fn of_project(project: &Project, path: &RelativePath, found: &Found<'_>) -> Result<Option<Self>, Failure> {
        let failed = |action| Failure::at(action, path.as_bytes());
        let Some(meta) = found.meta() else { return Ok(None) };
        match meta.kind {
            Kind::File => {
                let open = || project.tree().file(path).map_err(failed("open"));
                Self::file(meta.permissions(), meta.size, open).map(Some)
            }
            Kind::Symlink => Ok(Some(Self::link(project.tree().target(path).map_err(failed("read"))?))),
            Kind::Directory | Kind::Fifo | Kind::Socket | Kind::Device => Ok(None),
        }
    }

    fn link(target: Vec<u8>) -> Self {
        let size = u64::try_from(target.len()).unwrap_or(u64::MAX);
        Self { link: true, mode: 0, size, text: Some(target) }
    }

    fn file<E: From<Failure>>(mode: u32, size: u64, open: impl FnOnce() -> Result<File, E>) -> Result<Self, E> {
        let text = if size > LONGEST_TEXT { None } else { text(open()?).map_err(Failure::at("read", b"a file"))? };
        Ok(Self { link: false, mode, size, text })
    }
}

/// A file as text; none, if it has a byte that text has not, or too many lines.
fn text(file: File) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = file.take(LONGEST_TEXT + 1).read_to_end(&mut bytes)?;
    let lines = bytes.iter().filter(|byte| **byte == b'\n').take(MOST_LINES + 1).count();
    let is_text = u64::try_from(read).is_ok_and(|read| read <= LONGEST_TEXT) && lines <= MOST_LINES;
    Ok((is_text && !bytes.contains(&0)).then_some(bytes))
}
