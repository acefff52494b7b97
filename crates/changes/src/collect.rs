//! Finds changes by comparing the upper layer with the project.

use std::collections::HashSet;
use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::auto_run::AutoRunChange;
use crate::cancellation::{CancellationFlag, NEVER};
use crate::change::{ChangeKind, ChangeSummary, FileChange, Node, SkipReason};
use crate::confined_tree::{FileKind, FileMetadata, meta_in, target_in};
use crate::content;
use crate::escape::{CountedNoun, EscapedName};
use crate::git::GitGuard;
use crate::path::{InvalidRelativePath, RelativePath};
use crate::path_error::PathError;
use crate::project::Project;
use crate::upper::{UpperDirectory, UpperLayer};
use crate::walk::{self, TooManyFiles, WalkBudget, WalkError};

/// The limit of files and directories that are visited.
pub(crate) const MOST: u64 = 5_000_000;

/// The changes of a sandbox to a project, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes(Vec<FileChange>);

/// Changes that could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] PathError),
    /// The limit is exceeded.
    #[error(transparent)]
    TooMany(#[from] TooManyFiles),
}

/// Displays one change per line.
#[derive(Debug)]
pub struct ChangeList<'a>(&'a [FileChange]);

/// Displays one change per line, and one line for each `.git` directory.
#[derive(Debug)]
pub struct BriefChangeList<'a>(&'a [FileChange]);

/// What the project has at a directory of the layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LowerDirectory {
    /// A directory that is visible.
    Shown,
    /// A directory that is hidden by an opaque one.
    Hidden,
    /// Not a directory.
    Nothing,
}

struct ChangeCollector<'a> {
    upper: &'a UpperLayer,
    project: &'a Project,
    budget: WalkBudget<'a>,
    stop: &'a CancellationFlag,
    found: Vec<FileChange>,
    waiting: Vec<(Vec<u8>, LowerDirectory)>,
}

// === impl Changes ===

impl Changes {
    /// Collects the changes. A file that was written with the same content is not a change.
    pub fn collect(upper: &UpperLayer, project: &Project) -> Result<Self, ChangesError> {
        Self::collect_until(upper, project, &NEVER)
    }

    /// Like [`Self::collect`], with cancellation.
    pub fn collect_until(upper: &UpperLayer, project: &Project, stop: &CancellationFlag) -> Result<Self, ChangesError> {
        Self::collect_within(upper, project, MOST, stop)
    }

    fn collect_within(
        upper: &UpperLayer,
        project: &Project,
        limit: u64,
        stop: &CancellationFlag,
    ) -> Result<Self, ChangesError> {
        let waiting = vec![(Vec::new(), LowerDirectory::Shown)];
        let budget = WalkBudget::new(limit, stop);
        let mut collector = ChangeCollector { upper, project, budget, stop, found: Vec::new(), waiting };
        while let Some((path, below)) = collector.waiting.pop() {
            collector.directory(&path, below)?;
        }
        Ok(Self::new(collector.found))
    }

    pub(crate) fn new(mut found: Vec<FileChange>) -> Self {
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Self(found)
    }

    /// The changes by path; a directory comes right before its content.
    pub fn as_slice(&self) -> &[FileChange] {
        &self.0
    }

    /// The totals.
    pub fn summary(&self) -> ChangeSummary {
        ChangeSummary::of(&self.0, &GitGuard::of_changes(&self.0))
    }

    /// The totals, with all that git would act on given the project's settings.
    pub fn summary_in(&self, project: &Project) -> Result<ChangeSummary, PathError> {
        Ok(ChangeSummary::of(&self.0, &GitGuard::of(project, &self.0)?))
    }

    /// Changed files that tools run or load automatically.
    pub fn marks(&self) -> Vec<AutoRunChange> {
        AutoRunChange::of(&self.0)
    }

    /// Displays the changes for a person, one per line.
    pub fn list(&self) -> ChangeList<'_> {
        ChangeList(&self.0)
    }

    /// Displays the changes with one line for each `.git` directory.
    pub fn brief(&self) -> BriefChangeList<'_> {
        BriefChangeList(&self.0)
    }
}

// === impl ChangeList ===

impl fmt::Display for ChangeList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.0.len()).try_for_each(|number| self.write_line(f, number))
    }
}

impl ChangeList<'_> {
    fn write_line(&self, f: &mut fmt::Formatter<'_>, number: usize) -> fmt::Result {
        let Some(change) = self.0.get(number) else { return Ok(()) };
        // A new directory is visible through its content.
        let made = change.kind == ChangeKind::Added && matches!(change.node, Node::Directory { .. });
        if made && self.0.get(number + 1).is_some_and(|next| next.path.is_below(&change.path)) {
            return Ok(());
        }
        writeln!(f, "{change}")
    }
}

// === impl BriefChangeList ===

impl fmt::Display for BriefChangeList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut repositories: HashSet<&[u8]> = HashSet::new();
        for (number, change) in self.0.iter().enumerate() {
            let Some(repository) = change.path.git_directory() else {
                ChangeList(self.0).write_line(f, number)?;
                continue;
            };
            if repositories.insert(repository) {
                let inside = self.0.iter().filter(|other| other.path.git_directory() == Some(repository));
                let files = inside.map(|change| change.files).sum();
                writeln!(f, "M {}/ ({} changed)", EscapedName(repository), CountedNoun(files, "file", "files"))?;
            }
        }
        Ok(())
    }
}

// === impl ChangesError ===

impl From<WalkError> for ChangesError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::System(failure) => failure.into(),
            WalkError::TooMany(many) => many.into(),
        }
    }
}

// === impl ChangeCollector ===

impl ChangeCollector<'_> {
    fn directory(&mut self, path: &[u8], below: LowerDirectory) -> Result<(), ChangesError> {
        let layer = match self.upper.read(path, self.budget.left()) {
            Err(Errno::FBIG) => return Err(self.budget.exceeded().into()),
            read => read.map_err(PathError::at("read", path))?,
        };
        self.budget.spend(layer.entries.len() + layer.whiteouts.len())?;
        let below = if layer.opaque && below == LowerDirectory::Shown { LowerDirectory::Hidden } else { below };
        let lower = match below {
            LowerDirectory::Nothing => None,
            LowerDirectory::Shown | LowerDirectory::Hidden => self.lower(path)?,
        };
        let mut too_far = None;
        for (name, meta) in &layer.entries {
            match RelativePath::below(path, name) {
                Ok(child) => self.entry(child, meta, lower.as_ref(), below)?,
                Err(bad) => too_far = Some(bad),
            }
        }
        if let Some(bad) = too_far {
            self.add_invalid_path(path, &bad);
        }
        let Some(lower) = lower else { return Ok(()) };
        for name in self.add_deleted(path, layer, &lower, below)? {
            let Ok(child) = RelativePath::below(path, &name) else { continue };
            if let Some(meta) = metadata_of(&lower, &child)? {
                self.deleted(child, &meta, &lower)?;
            }
        }
        Ok(())
    }

    /// Names that the project has and the sandbox deleted.
    fn add_deleted(
        &mut self,
        path: &[u8],
        layer: UpperDirectory,
        lower: &OwnedFd,
        below: LowerDirectory,
    ) -> Result<Vec<Vec<u8>>, ChangesError> {
        if below != LowerDirectory::Hidden {
            return Ok(layer.whiteouts);
        }
        let names = self.budget.list(lower, path)?;
        let kept: HashSet<_> = layer.entries.into_iter().map(|(name, _)| name).collect();
        Ok(names.into_iter().filter(|name| !kept.contains(name)).collect())
    }

    /// The project's directory at a path, if it exists.
    fn lower(&self, path: &[u8]) -> Result<Option<OwnedFd>, PathError> {
        match self.project.tree().directory(path) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(PathError::at("open", path)(errno)),
        }
    }

    /// Handles one entry of the layer.
    fn entry(
        &mut self,
        path: RelativePath,
        meta: &FileMetadata,
        lower: Option<&OwnedFd>,
        below: LowerDirectory,
    ) -> Result<(), ChangesError> {
        self.stop.check().map_err(PathError::at("look at", path.as_bytes()))?;
        let target = match meta.kind {
            FileKind::Symlink => self.upper.tree().target(&path).map_err(PathError::at("read", path.as_bytes()))?,
            _ => Vec::new(),
        };
        let was = match lower {
            Some(lower) => metadata_of(lower, &path)?,
            None => None,
        };
        let kind = match (meta.kind, &was) {
            (FileKind::Fifo | FileKind::Socket | FileKind::Device, _) => Some(ChangeKind::Skipped),
            (_, None) => Some(ChangeKind::Added),
            (now, Some(was)) if now != was.kind => Some(ChangeKind::TypeChanged),
            (_, Some(was)) => self.difference(&path, meta, was, &target, lower)?,
        };
        if meta.kind == FileKind::Directory {
            let below =
                if was.is_some_and(|was| was.kind == FileKind::Directory) { below } else { LowerDirectory::Nothing };
            self.waiting.push((path.as_bytes().to_vec(), below));
        }
        let Some(kind) = kind else { return Ok(()) };
        if kind == ChangeKind::TypeChanged && was.is_some_and(|was| was.kind == FileKind::Directory) {
            self.emptied(&path)?;
        }
        // A directory that replaced a file counts as the file that is gone.
        let counted = meta.kind != FileKind::Directory || was.is_some_and(|was| is_file(was.kind));
        let files = u64::from(counted && kind != ChangeKind::Skipped);
        self.found.push(FileChange { path, kind, node: Node::new(meta, target), files });
        Ok(())
    }

    /// How an entry differs from the project's file of the same type.
    fn difference(
        &self,
        path: &RelativePath,
        now: &FileMetadata,
        was: &FileMetadata,
        target: &[u8],
        lower: Option<&OwnedFd>,
    ) -> Result<Option<ChangeKind>, PathError> {
        let failed = |action| PathError::at(action, path.as_bytes());
        let same = match (now.kind, lower) {
            (FileKind::File, _) if now.size != was.size => false,
            (FileKind::File, _) => {
                let ours = self.upper.tree().file(path).map_err(failed("open"))?;
                match self.project.tree().file(path) {
                    // A mount point of the host, which the sandbox did not see.
                    Err(Errno::XDEV) => false,
                    theirs => content::same(&ours, &theirs.map_err(failed("open"))?, now.size, self.stop)
                        .map_err(failed("read"))?,
                }
            }
            (FileKind::Symlink, Some(lower)) => {
                return Ok(
                    (target_in(lower, path.name()).map_err(failed("read"))? != target).then_some(ChangeKind::Modified)
                );
            }
            _ => true,
        };
        Ok(match (same, now.permissions() == was.permissions()) {
            (false, _) => Some(ChangeKind::Modified),
            (true, false) => Some(ChangeKind::ModeChanged),
            (true, true) => None,
        })
    }

    /// A directory of the project that was replaced by something else.
    fn emptied(&mut self, path: &RelativePath) -> Result<(), ChangesError> {
        let Some(lower) = self.lower(path.as_bytes())? else { return Ok(()) };
        for name in self.budget.list(&lower, path.as_bytes())? {
            let Ok(child) = RelativePath::below(path.as_bytes(), &name) else { continue };
            if let Some(meta) = metadata_of(&lower, &child)? {
                self.deleted(child, &meta, &lower)?;
            }
        }
        Ok(())
    }

    fn deleted(&mut self, path: RelativePath, was: &FileMetadata, lower: &OwnedFd) -> Result<(), ChangesError> {
        let mut files = u64::from(was.kind != FileKind::Directory);
        let mut target = Vec::new();
        match was.kind {
            FileKind::Directory => walk::below(self.project.tree(), path.as_bytes(), &mut self.budget, |_, meta| {
                files += u64::from(meta.kind != FileKind::Directory);
            })?,
            FileKind::Symlink => {
                target = target_in(lower, path.name()).map_err(PathError::at("read", path.as_bytes()))?;
            }
            _ => {}
        }
        self.found.push(FileChange { path, kind: ChangeKind::Deleted, node: Node::new(was, target), files });
        Ok(())
    }

    /// An entry whose name is too long: it is reported at its directory.
    fn add_invalid_path(&mut self, directory: &[u8], bad: &InvalidRelativePath) {
        let why = if matches!(bad, InvalidRelativePath::TooDeep) { SkipReason::TooDeep } else { SkipReason::TooLong };
        let Ok(path) = RelativePath::new(directory) else { return };
        self.found.push(FileChange { path, kind: ChangeKind::Skipped, node: Node::Skipped(why), files: 0 });
    }
}

/// What the project has at a name in an open directory.
fn metadata_of(directory: &OwnedFd, path: &RelativePath) -> Result<Option<FileMetadata>, PathError> {
    match meta_in(directory, path.name()) {
        Ok(meta) => Ok(Some(meta)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(PathError::at("look at", path.as_bytes())(errno)),
    }
}

/// Whether a summary counts it as a file.
fn is_file(kind: FileKind) -> bool {
    matches!(kind, FileKind::File | FileKind::Symlink)
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.changes.looked
    #[test]
    fn the_limit_of_files_ends_the_collection() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["project/d/1", "project/d/2", "upper/a", "upper/b"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        // Deleted files count as well.
        std::fs::write(dir.path().join("upper/d"), "").unwrap();
        let upper = UpperLayer::new(std::fs::File::open(dir.path().join("upper")).unwrap().into(), 0, 0, 0);
        let project = Project::open(dir.path().join("project")).unwrap();
        assert_eq!(Changes::collect_within(&upper, &project, 5, &NEVER).unwrap().as_slice().len(), 5);
        for limit in 0..5 {
            let error = Changes::collect_within(&upper, &project, limit, &NEVER).unwrap_err();
            assert_eq!(error.to_string(), format!("there are more than {limit} files and directories"));
        }
    }
}
