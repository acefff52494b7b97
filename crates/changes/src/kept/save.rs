//! Changes are kept: contents are copied, and what the project has is looked at once more.

use std::collections::HashMap;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::store::{Store, Unfinished};
use super::{Entry, KeepError, Kept, Record};
use crate::change::{Change, ChangeKind, Node};
use crate::collect::{Changes, MOST};
use crate::content::{self, Digest};
use crate::failure::Failure;
use crate::name::ChangeName;
use crate::path::RelativePath;
use crate::project::{Project, Snapshot};
use crate::state::{Content, State};
use crate::stop::{NEVER, Stop};
use crate::tree::{Kind, Meta};
use crate::upper::Upper;
use crate::walk::{self, Budget};

/// The name of a content before its digest is known.
const NEXT: &str = "next";

/// What is to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// The changes.
    pub changes: &'a Changes,
    /// Where their contents are.
    pub upper: &'a Upper,
    /// The project that they were made in.
    pub project: &'a Project,
    /// What the project looked like when the sandbox started. Without it, what it looks like now counts.
    pub snapshot: Option<&'a Snapshot>,
    /// How much is kept.
    pub limits: Limits,
    /// What calls it off, if anything does: then nothing is kept.
    pub stop: Option<&'a Stop>,
}

/// How much is kept at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that contents have on disk.
    pub allocated: u64,
    /// The length of all contents, with holes.
    pub length: u64,
}

struct Saving<'a> {
    what: &'a Keep<'a>,
    stop: &'a Stop,
    to: &'a Unfinished<'a>,
    allocated: u64,
    length: u64,
    /// Contents with several names: each is read and counted once.
    linked: HashMap<(u64, u64), Digest>,
    entries: Vec<Entry>,
}

pub(super) fn save(directory: &Path, name: &ChangeName, what: &Keep<'_>) -> Result<Kept, KeepError> {
    let store = Store::make(directory)?;
    if store.has(name) {
        return Err(KeepError::Exists(name.clone()));
    }
    let to = store.begin()?;
    let (entries, skipped) = {
        let (stop, linked, entries) = (what.stop.unwrap_or(&NEVER), HashMap::new(), Vec::new());
        let mut saving = Saving { what, stop, to: &to, allocated: 0, length: 0, linked, entries };
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
    let record = Record { project, identity, user: what.upper.user(), entries, skipped };
    to.finish(name, record)
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { allocated: 8 << 30, length: 16 << 30 }
    }
}

// === impl Saving ===

impl Saving<'_> {
    /// Something that the sandbox wrote.
    fn written(&mut self, change: &Change) -> Result<(), KeepError> {
        let path = &change.path;
        let meta = self.what.upper.tree().meta(path).map_err(Failure::at("look at", path.as_bytes()))?;
        let mode = meta.permissions();
        let after = match (&change.node, meta.kind) {
            (Node::Directory { .. }, Kind::Directory) => State::Directory { mode },
            (Node::Symlink { target }, Kind::Symlink) => State::Symlink { target: target.clone() },
            (Node::File { .. }, Kind::File) => {
                State::File { mode, size: meta.size, content: Content::Sha256(self.content(path, &meta)?) }
            }
            _ => return Err(Failure::at("read", path.as_bytes())(Errno::STALE).into()),
        };
        self.entry(path.clone(), after, Some(self.what.upper.owner(&meta)))
    }

    /// Something that the sandbox deleted, with all that was in it.
    fn deleted(&mut self, change: &Change) -> Result<(), KeepError> {
        self.entry(change.path.clone(), State::Absent, None)?;
        if matches!(change.node, Node::Directory { .. }) {
            let mut paths = Vec::new();
            let mut budget = Budget::new(MOST, self.stop);
            walk::below(self.what.project.tree(), change.path.as_bytes(), &mut budget, |path, _| paths.push(path))?;
            for path in paths {
                self.entry(path, State::Absent, None)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: RelativePath, after: State, owner: Option<(u32, u32)>) -> Result<(), KeepError> {
        self.stop.check().map_err(Failure::at("keep", path.as_bytes()))?;
        let meta = self.what.project.find(&path)?;
        let before = State::of(self.what.project, &path, meta.as_ref(), self.stop)?;
        let disturbed = self.what.snapshot.is_some_and(|snapshot| !snapshot.still(&path, meta.as_ref()));
        // The host may have done the same in the meantime.
        if before != after {
            self.entries.push(Entry { path, before, after, owner, disturbed });
        }
        Ok(())
    }

    /// Copies a content, within the limits, and names it by its digest.
    fn content(&mut self, path: &RelativePath, meta: &Meta) -> Result<Digest, KeepError> {
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
                return Err(KeepError::TooLarge { what, size, limit });
            }
        }
        let failed = |action| Failure::at(action, path.as_bytes());
        let from = self.what.upper.tree().file(path).map_err(failed("open"))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let files = self.to.files.root();
        let mode = Mode::RUSR | Mode::WUSR;
        let to = rustix::fs::openat(files, NEXT, flags, mode).map_err(failed("keep"))?;
        // Whatever the caller takes from new files: this one is ours.
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
