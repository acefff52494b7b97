//! Saves changes: copies contents and records the state of the project.

use std::collections::HashMap;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::store::{ChangesStore, UnfinishedSave};
use super::{ChangeEntry, ChangesRecord, SavedChanges, SavedChangesError};
use crate::cancellation::{CancellationFlag, NEVER};
use crate::change::{ChangeKind, FileChange, Node};
use crate::collect::{Changes, MOST};
use crate::confined_tree::{FileKind, FileMetadata};
use crate::content::{self, ContentDigest};
use crate::file_state::{FileContent, FileState};
use crate::name::ChangeName;
use crate::path::RelativePath;
use crate::path_error::PathError;
use crate::project::{Project, ProjectSnapshot};
use crate::upper::UpperLayer;
use crate::walk::{self, WalkBudget};

/// The name of a content before its digest is known.
const NEXT: &str = "next";

/// What to save.
#[derive(Clone, Copy, Debug)]
pub struct SaveRequest<'a> {
    /// As collected from `upper` and `project`.
    pub changes: &'a Changes,
    /// The layer with the contents.
    pub upper: &'a UpperLayer,
    /// The project they were made in.
    pub project: &'a Project,
    /// The state of the project when the sandbox started; without it, the current state counts.
    pub snapshot: Option<&'a ProjectSnapshot>,
    /// Limits on contents.
    pub limits: SaveLimits,
    /// Cancels the operation; then nothing is saved.
    pub stop: Option<&'a CancellationFlag>,
}

/// Limits on saved contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveLimits {
    /// Allocated bytes.
    pub allocated: u64,
    /// The total size, including holes.
    pub length: u64,
}

struct ChangesWriter<'a> {
    what: &'a SaveRequest<'a>,
    stop: &'a CancellationFlag,
    to: &'a UnfinishedSave<'a>,
    allocated: u64,
    length: u64,
    /// Hard-linked contents, which are read and counted once.
    linked: HashMap<(u64, u64), ContentDigest>,
    entries: Vec<ChangeEntry>,
}

pub(super) fn save(
    directory: &Path,
    name: &ChangeName,
    what: &SaveRequest<'_>,
) -> Result<SavedChanges, SavedChangesError> {
    let store = ChangesStore::make(directory)?;
    if store.has(name) {
        return Err(SavedChangesError::Exists(name.clone()));
    }
    let to = store.begin()?;
    let (entries, skipped) = {
        let (stop, linked, entries) = (what.stop.unwrap_or(&NEVER), HashMap::new(), Vec::new());
        let mut saving = ChangesWriter { what, stop, to: &to, allocated: 0, length: 0, linked, entries };
        let mut skipped = Vec::new();
        for change in what.changes.as_slice() {
            match (change.kind, &change.node) {
                (ChangeKind::Skipped, Node::Skipped(why)) => skipped.push((change.path.clone(), *why)),
                (ChangeKind::Deleted, _) => saving.deleted(change)?,
                _ => saving.written(change)?,
            }
        }
        saving.entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        (saving.entries, skipped)
    };
    let (project, identity) = (what.project.path().to_owned(), Some(*what.project.identity()));
    let record = ChangesRecord { project, identity, user: what.upper.user(), entries, skipped };
    to.finish(name, record)
}

// === impl SaveLimits ===

impl Default for SaveLimits {
    fn default() -> Self {
        Self { allocated: 8 << 30, length: 16 << 30 }
    }
}

// === impl ChangesWriter ===

impl ChangesWriter<'_> {
    /// Adds a file that the sandbox wrote.
    fn written(&mut self, change: &FileChange) -> Result<(), SavedChangesError> {
        let path = &change.path;
        let meta = self.what.upper.tree().meta(path).map_err(PathError::at("look at", path.as_bytes()))?;
        let mode = meta.permissions();
        let after = match (&change.node, meta.kind) {
            (Node::Directory { .. }, FileKind::Directory) => FileState::Directory { mode },
            (Node::Symlink { target }, FileKind::Symlink) => FileState::Symlink { target: target.clone() },
            (Node::File { .. }, FileKind::File) => {
                FileState::File { mode, size: meta.size, content: FileContent::Sha256(self.content(path, &meta)?) }
            }
            _ => return Err(PathError::at("read", path.as_bytes())(Errno::STALE).into()),
        };
        self.entry(path.clone(), after, Some(self.what.upper.owner(&meta)))
    }

    /// Adds a deletion, with everything that was below it.
    fn deleted(&mut self, change: &FileChange) -> Result<(), SavedChangesError> {
        self.entry(change.path.clone(), FileState::Absent, None)?;
        if matches!(change.node, Node::Directory { .. }) {
            let mut paths = Vec::new();
            let mut budget = WalkBudget::new(MOST, self.stop);
            walk::below(self.what.project.tree(), change.path.as_bytes(), &mut budget, |path, _| paths.push(path))?;
            for path in paths {
                self.entry(path, FileState::Absent, None)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: RelativePath,
        after: FileState,
        owner: Option<(u32, u32)>,
    ) -> Result<(), SavedChangesError> {
        self.stop.check().map_err(PathError::at("keep", path.as_bytes()))?;
        let meta = self.what.project.find(&path)?;
        let before = FileState::of(self.what.project, &path, meta.as_ref(), self.stop)?;
        let disturbed = self.what.snapshot.is_some_and(|snapshot| !snapshot.still(&path, meta.as_ref()));
        // The host may have deleted it too.
        if before != after {
            self.entries.push(ChangeEntry { path, before, after, owner, disturbed });
        }
        Ok(())
    }

    /// Copies a content within the limits, and names it by its digest.
    fn content(&mut self, path: &RelativePath, meta: &FileMetadata) -> Result<ContentDigest, SavedChangesError> {
        let key = (meta.device, meta.inode);
        if let Some(digest) = self.linked.get(&key) {
            return Ok(*digest);
        }
        let limits = self.what.limits;
        self.allocated = self.allocated.saturating_add(meta.allocated);
        self.length = self.length.saturating_add(meta.size);
        for (what, size, limit) in [("data", self.allocated, limits.allocated), ("length", self.length, limits.length)]
        {
            if size > limit {
                return Err(SavedChangesError::TooLarge { what, size, limit });
            }
        }
        let failed = |action| PathError::at(action, path.as_bytes());
        let from = self.what.upper.tree().file(path).map_err(failed("open"))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let files = self.to.files.root();
        let mode = Mode::RUSR | Mode::WUSR;
        let to = rustix::fs::openat(files, NEXT, flags, mode).map_err(failed("keep"))?;
        // Independent of the caller's umask.
        rustix::fs::fchmod(&to, mode).map_err(failed("keep"))?;
        let to = std::fs::File::from(to);
        let digest = content::copy(&from, &to, meta.size, self.stop).map_err(failed("keep"))?;
        let digest = digest.ok_or_else(|| failed("read")(Errno::STALE))?;
        rustix::fs::renameat(files, NEXT, files, digest.to_string()).map_err(failed("keep"))?;
        if meta.shared {
            self.linked.insert(key, digest);
        }
        Ok(digest)
    }
}
