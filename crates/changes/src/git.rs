//! Detects changes that git would run or read as configuration; they are refused by default.
//!
//! Names are not enough. A directory with `HEAD`, `objects` and `refs` is a repository under any name; a `.git` file
//! points to one; and existing settings name hooks, filters and further settings in the work tree.

mod command;
mod config;
mod discover;
mod environment;
mod host_path;
mod names;
mod programs;
mod settings;
mod shell;
mod unanchored_names;

use std::collections::{BTreeMap, HashMap, HashSet};

pub(crate) use self::names::is_git;

use crate::change::{ChangeKind, FileChange, Node};
use crate::path::{RelativePath, join};
use crate::path_error::PathError;
use crate::project::Project;

/// Decides which changes git would act on.
#[derive(Debug, Default)]
pub(crate) struct GitGuard {
    /// Existing git directories.
    directories: HashSet<Vec<u8>>,
    /// Directories that the changes would turn into git directories.
    planted: HashSet<Vec<u8>>,
    /// Paths that existing settings name.
    named: BTreeMap<Vec<u8>, NamedPath>,
    /// Names that they refer to at any path.
    unanchored: unanchored_names::UnanchoredNames,
}

/// Something that git's settings name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedPath {
    /// What names it, as text.
    by: String,
    extent: NamedExtent,
}

/// How much a named path covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NamedExtent {
    /// The file itself.
    Only,
    /// The file, also with an extension; or the directory.
    Module,
    /// Everything below it as well.
    Whole,
}

/// Why git would act on a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GitRefusal {
    /// It is in a repository, or the repository itself.
    Repository(RelativePath),
    /// A setting names it.
    Named { path: RelativePath, by: String },
}

/// The parts that make a directory a git directory.
#[derive(Clone, Copy, Debug, Default)]
struct RepositoryParts(u8);

// === impl GitGuard ===

impl GitGuard {
    /// Considers only the changes.
    pub(crate) fn of_changes(changes: &[FileChange]) -> Self {
        let mut guard = Self::default();
        guard.detect_new_repositories(changes, |_| false);
        guard
    }

    /// Considers the changes and the project.
    pub(crate) fn of(project: &Project, changes: &[FileChange]) -> Result<Self, PathError> {
        let discover::GitSettingsScan { directories, named, unanchored } = discover::discover(project)?;
        let mut guard = Self { directories, named, unanchored, planted: HashSet::new() };
        // What cannot be read counts as present.
        guard.detect_new_repositories(changes, |path| project.find(path).map_or(true, |found| found.is_some()));
        Ok(guard)
    }

    fn detect_new_repositories(&mut self, changes: &[FileChange], has: impl Fn(&RelativePath) -> bool) {
        let mut places: HashMap<&[u8], RepositoryParts> = HashMap::new();
        for change in changes.iter().filter(|change| change.is_there()) {
            if RepositoryParts::is_one(change.path.name()) {
                places.entry(change.path.directory()).or_default().add(change.path.name());
            }
        }
        for (directory, mut pieces) in places {
            for piece in RepositoryParts::NAMES {
                if RelativePath::below(directory, piece.as_bytes()).is_ok_and(|path| has(&path)) {
                    pieces.add(piece.as_bytes());
                }
            }
            if pieces.is_git_directory() {
                self.planted.insert(fold(directory));
            }
        }
    }

    /// Whether git would act on a change, and why.
    pub(crate) fn find(&self, change: &FileChange) -> Option<GitRefusal> {
        let path = &change.path;
        if let Some(repository) = path.repository() {
            return Some(GitRefusal::Repository(repository));
        }
        let folded = fold(path.as_bytes());
        let directory = matches!(change.node, Node::Directory { .. });
        let ends = folded.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in std::iter::once(0).chain(ends).chain([folded.len()]) {
            let (above, rest) = (folded.get(..end)?, folded.get(end..)?);
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            let next = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
            if self.directories.contains(above) || (self.planted.contains(above) && names::is_own(next)) {
                return Some(GitRefusal::Repository(top(path, end)));
            }
            if let Some(NamedPath { by, extent }) = self.named.get(above)
                && (*extent > NamedExtent::Only || (rest.is_empty() && !directory))
            {
                return Some(GitRefusal::Named { path: top(path, end), by: by.clone() });
            }
        }
        if !directory {
            let place = fold(path.directory());
            for stem in unanchored_names::stems(&fold(path.name())) {
                if let Some(NamedPath { by, extent: NamedExtent::Module }) = self.named.get(&join(&place, stem)) {
                    return Some(GitRefusal::Named { path: path.clone(), by: by.clone() });
                }
            }
        }
        if let Some((end, by)) = self.unanchored.find(change) {
            return Some(GitRefusal::Named { path: top(path, end), by: by.to_owned() });
        }
        // A directory that is replaced by a link may refer to another one in it.
        if !directory && change.is_there() {
            let below = join(&folded, b"");
            let (named, NamedPath { by, .. }) = self.named.range(below.clone()..).next()?;
            return named.starts_with(&below).then(|| GitRefusal::Named { path: path.clone(), by: by.clone() });
        }
        None
    }
}

// === impl GitRefusal ===

impl GitRefusal {
    pub(crate) fn path(&self) -> &RelativePath {
        match self {
            Self::Repository(path) | Self::Named { path, .. } => path,
        }
    }
}

// === impl RepositoryParts ===

impl RepositoryParts {
    const NAMES: [&'static str; 4] = ["HEAD", "objects", "refs", "commondir"];

    fn is_one(name: &[u8]) -> bool {
        Self::NAMES.iter().any(|piece| name.eq_ignore_ascii_case(piece.as_bytes()))
    }

    fn add(&mut self, name: &[u8]) {
        for (number, piece) in Self::NAMES.iter().enumerate() {
            self.0 |= u8::from(name.eq_ignore_ascii_case(piece.as_bytes())) << number;
        }
    }

    /// Git's own criteria, except for the content of `HEAD`.
    fn is_git_directory(self) -> bool {
        let [head, objects, refs, common] = [1, 2, 4, 8].map(|bit| self.0 & bit != 0);
        head && ((objects && refs) || common)
    }
}

/// A path on a case-insensitive file system.
fn fold(path: &[u8]) -> Vec<u8> {
    path.to_ascii_lowercase()
}

/// A prefix of a path; for the project itself, its first component.
fn top(path: &RelativePath, end: usize) -> RelativePath {
    let bytes = path.as_bytes();
    let end = if end == 0 { bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len()) } else { end };
    bytes.get(..end).and_then(|bytes| RelativePath::new(bytes).ok()).unwrap_or_else(|| path.clone())
}

// === impl FileChange ===

impl FileChange {
    /// Whether a file exists at its path afterwards.
    fn is_there(&self) -> bool {
        !matches!(self.kind, ChangeKind::Deleted | ChangeKind::Skipped)
    }
}
