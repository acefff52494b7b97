//! Changes are found by walking the layer beside the project.

use std::collections::HashSet;
use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::change::{Change, ChangeKind, Node, Skipped, Summary};
use crate::content;
use crate::failure::Failure;
use crate::git::GitGuard;
use crate::mark::Mark;
use crate::path::{BadPath, RelativePath};
use crate::project::Project;
use crate::stop::{NEVER, Stop};
use crate::tree::{Kind, Meta, meta_in, target_in};
use crate::upper::{Layer, Upper};
use crate::walk::{self, Budget, TooMany, WalkError};
use crate::words::{Counted, Shown};

/// How many files and directories are looked at.
pub(crate) const MOST: u64 = 5_000_000;

/// What a sandbox did to a project, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes(Vec<Change>);

/// Changes that cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// The system did not let us.
    #[error(transparent)]
    System(#[from] Failure),
    /// There is too much to look at.
    #[error(transparent)]
    TooMany(#[from] TooMany),
}

/// The changes, one in a line.
#[derive(Debug)]
pub struct List<'a>(&'a [Change]);

/// The changes, one in a line, and those in a `.git` together.
#[derive(Debug)]
pub struct BriefList<'a>(&'a [Change]);

/// What the project has in place of a directory of the layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Below {
    /// A directory that shows through.
    Shown,
    /// A directory that is hidden.
    Hidden,
    /// No directory.
    Nothing,
}

struct Collector<'a> {
    upper: &'a Upper,
    project: &'a Project,
    budget: Budget<'a>,
    stop: &'a Stop,
    found: Vec<Change>,
    waiting: Vec<(Vec<u8>, Below)>,
}

// === impl Changes ===

impl Changes {
    /// Finds what a sandbox did. A file that is as it was is no change, even if it was written.
    pub fn collect(upper: &Upper, project: &Project) -> Result<Self, ChangesError> {
        Self::collect_until(upper, project, &NEVER)
    }

    /// The same, unless it is called off.
    pub fn collect_until(upper: &Upper, project: &Project, stop: &Stop) -> Result<Self, ChangesError> {
        Self::collect_within(upper, project, MOST, stop)
    }

    fn collect_within(upper: &Upper, project: &Project, limit: u64, stop: &Stop) -> Result<Self, ChangesError> {
        let waiting = vec![(Vec::new(), Below::Shown)];
        let budget = Budget::new(limit, stop);
        let mut collector = Collector { upper, project, budget, stop, found: Vec::new(), waiting };
        while let Some((path, below)) = collector.waiting.pop() {
            collector.directory(&path, below)?;
        }
        Ok(Self::new(collector.found))
    }

    pub(crate) fn new(mut found: Vec<Change>) -> Self {
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Self(found)
    }

    /// The changes, by path. A directory comes right before what is in it.
    pub fn as_slice(&self) -> &[Change] {
        &self.0
    }

    /// How much changed.
    pub fn summary(&self) -> Summary {
        Summary::of(&self.0, &GitGuard::of_changes(&self.0))
    }

    /// The same, with all that git would act on because of what the project has.
    pub fn summary_in(&self, project: &Project) -> Result<Summary, Failure> {
        Ok(Summary::of(&self.0, &GitGuard::of(project, &self.0)?))
    }

    /// Changes of files that tools run or follow by themselves.
    pub fn marks(&self) -> Vec<Mark> {
        Mark::of(&self.0)
    }

    /// The changes as a person reads them, one in a line.
    pub fn list(&self) -> List<'_> {
        List(&self.0)
    }

    /// The same, with one line for all that is in a `.git`.
    pub fn brief(&self) -> BriefList<'_> {
        BriefList(&self.0)
    }
}

// === impl List ===

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.0.len()).try_for_each(|number| self.line(f, number))
    }
}

impl List<'_> {
    fn line(&self, f: &mut fmt::Formatter<'_>, number: usize) -> fmt::Result {
        let Some(change) = self.0.get(number) else { return Ok(()) };
        // A new directory is seen by what is in it.
        let made = change.kind == ChangeKind::Added && matches!(change.node, Node::Directory { .. });
        if made && self.0.get(number + 1).is_some_and(|next| next.path.is_below(&change.path)) {
            return Ok(());
        }
        writeln!(f, "{change}")
    }
}

// === impl BriefList ===

impl fmt::Display for BriefList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut repositories: HashSet<&[u8]> = HashSet::new();
        for (number, change) in self.0.iter().enumerate() {
            let Some(repository) = change.path.git_directory() else {
                List(self.0).line(f, number)?;
                continue;
            };
            if repositories.insert(repository) {
                let inside = self.0.iter().filter(|other| other.path.git_directory() == Some(repository));
                let files = inside.map(|change| change.files).sum();
                writeln!(f, "M {}/ ({} changed)", Shown(repository), Counted(files, "file", "files"))?;
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

// === impl Collector ===

impl Collector<'_> {
    fn directory(&mut self, path: &[u8], below: Below) -> Result<(), ChangesError> {
        let layer = match self.upper.read(path, self.budget.left()) {
            Err(Errno::FBIG) => return Err(self.budget.exceeded().into()),
            read => read.map_err(Failure::at("read", path))?,
        };
        self.budget.spend(layer.entries.len() + layer.whiteouts.len())?;
        let below = if layer.opaque && below == Below::Shown { Below::Hidden } else { below };
        let lower = match below {
            Below::Nothing => None,
            Below::Shown | Below::Hidden => self.lower(path)?,
        };
        let mut too_far = None;
        for (name, meta) in &layer.entries {
            match RelativePath::below(path, name) {
                Ok(child) => self.entry(child, meta, lower.as_ref(), below)?,
                Err(bad) => too_far = Some(bad),
            }
        }
        if let Some(bad) = too_far {
            self.too_far(path, &bad);
        }
        let Some(lower) = lower else { return Ok(()) };
        for name in self.gone(path, layer, &lower, below)? {
            let Ok(child) = RelativePath::below(path, &name) else { continue };
            if let Some(meta) = look(&lower, &child)? {
                self.deleted(child, &meta, &lower)?;
            }
        }
        Ok(())
    }

    /// The names that the project has and the sandbox no longer had.
    fn gone(&mut self, path: &[u8], layer: Layer, lower: &OwnedFd, below: Below) -> Result<Vec<Vec<u8>>, ChangesError> {
        if below != Below::Hidden {
            return Ok(layer.whiteouts);
        }
        let names = self.budget.list(lower, path)?;
        let kept: HashSet<_> = layer.entries.into_iter().map(|(name, _)| name).collect();
        Ok(names.into_iter().filter(|name| !kept.contains(name)).collect())
    }

    /// The project's directory at a path, if it has one there.
    fn lower(&self, path: &[u8]) -> Result<Option<OwnedFd>, Failure> {
        match self.project.tree().directory(path) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(Failure::at("open", path)(errno)),
        }
    }

    /// Something that the layer has.
    fn entry(
        &mut self,
        path: RelativePath,
        meta: &Meta,
        lower: Option<&OwnedFd>,
        below: Below,
    ) -> Result<(), ChangesError> {
        self.stop.check().map_err(Failure::at("look at", path.as_bytes()))?;
        let target = match meta.kind {
            Kind::Symlink => self.upper.tree().target(&path).map_err(Failure::at("read", path.as_bytes()))?,
            _ => Vec::new(),
        };
        let was = match lower {
            Some(lower) => look(lower, &path)?,
            None => None,
        };
        let kind = match (meta.kind, &was) {
            (Kind::Fifo | Kind::Socket | Kind::Device, _) => Some(ChangeKind::Skipped),
            (_, None) => Some(ChangeKind::Added),
            (now, Some(was)) if now != was.kind => Some(ChangeKind::TypeChanged),
            (_, Some(was)) => self.difference(&path, meta, was, &target, lower)?,
        };
        if meta.kind == Kind::Directory {
            let below = if was.is_some_and(|was| was.kind == Kind::Directory) { below } else { Below::Nothing };
            self.waiting.push((path.as_bytes().to_vec(), below));
        }
        let Some(kind) = kind else { return Ok(()) };
        if kind == ChangeKind::TypeChanged && was.is_some_and(|was| was.kind == Kind::Directory) {
            self.emptied(&path)?;
        }
        // A file whose place a directory took is gone.
        let shown = if meta.kind == Kind::Directory { was.filter(|was| is_file(was.kind)).is_some() } else { true };
        let files = u64::from(shown && kind != ChangeKind::Skipped);
        self.found.push(Change { path, kind, node: Node::new(meta, target), files });
        Ok(())
    }

    /// How something differs from what it was, of the same kind.
    fn difference(
        &self,
        path: &RelativePath,
        now: &Meta,
        was: &Meta,
        target: &[u8],
        lower: Option<&OwnedFd>,
    ) -> Result<Option<ChangeKind>, Failure> {
        let failed = |action| Failure::at(action, path.as_bytes());
        let same = match (now.kind, lower) {
            (Kind::File, _) if now.size != was.size => false,
            (Kind::File, _) => {
                let ours = self.upper.tree().file(path).map_err(failed("open"))?;
                match self.project.tree().file(path) {
                    // Something is mounted there, which the sandbox did not see.
                    Err(Errno::XDEV) => false,
                    theirs => content::same(&ours, &theirs.map_err(failed("open"))?, now.size, self.stop)
                        .map_err(failed("read"))?,
                }
            }
            (Kind::Symlink, Some(lower)) => {
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

    /// A directory of the project that something else has taken the place of.
    fn emptied(&mut self, path: &RelativePath) -> Result<(), ChangesError> {
        let Some(lower) = self.lower(path.as_bytes())? else { return Ok(()) };
        for name in self.budget.list(&lower, path.as_bytes())? {
            let Ok(child) = RelativePath::below(path.as_bytes(), &name) else { continue };
            if let Some(meta) = look(&lower, &child)? {
                self.deleted(child, &meta, &lower)?;
            }
        }
        Ok(())
    }

    fn deleted(&mut self, path: RelativePath, was: &Meta, lower: &OwnedFd) -> Result<(), ChangesError> {
        let mut files = u64::from(was.kind != Kind::Directory);
        let mut target = Vec::new();
        match was.kind {
            Kind::Directory => walk::below(self.project.tree(), path.as_bytes(), &mut self.budget, |_, meta| {
                files += u64::from(meta.kind != Kind::Directory);
            })?,
            Kind::Symlink => {
                target = target_in(lower, path.name()).map_err(Failure::at("read", path.as_bytes()))?;
            }
            _ => {}
        }
        self.found.push(Change { path, kind: ChangeKind::Deleted, node: Node::new(was, target), files });
        Ok(())
    }

    /// Something that cannot be named: its directory stands for it.
    fn too_far(&mut self, directory: &[u8], bad: &BadPath) {
        let why = if matches!(bad, BadPath::TooDeep) { Skipped::TooDeep } else { Skipped::TooLong };
        let Ok(path) = RelativePath::new(directory) else { return };
        self.found.push(Change { path, kind: ChangeKind::Skipped, node: Node::Skipped(why), files: 0 });
    }
}

/// What the project has at a name of an open directory.
fn look(directory: &OwnedFd, path: &RelativePath) -> Result<Option<Meta>, Failure> {
    match meta_in(directory, path.name()) {
        Ok(meta) => Ok(Some(meta)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Failure::at("look at", path.as_bytes())(errno)),
    }
}

/// Whether it counts as a file.
fn is_file(kind: Kind) -> bool {
    matches!(kind, Kind::File | Kind::Symlink)
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.changes.looked
    #[test]
    fn more_files_than_are_looked_at_end_the_search() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["project/d/1", "project/d/2", "upper/a", "upper/b"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        // What is deleted counts as well.
        std::fs::write(dir.path().join("upper/d"), "").unwrap();
        let upper = Upper::new(std::fs::File::open(dir.path().join("upper")).unwrap().into(), 0, 0, 0);
        let project = Project::open(dir.path().join("project")).unwrap();
        assert_eq!(Changes::collect_within(&upper, &project, 5, &NEVER).unwrap().as_slice().len(), 5);
        for limit in 0..5 {
            let error = Changes::collect_within(&upper, &project, limit, &NEVER).unwrap_err();
            assert_eq!(error.to_string(), format!("there are more than {limit} files and directories"));
        }
    }
}
