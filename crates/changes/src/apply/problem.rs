//! Problems that keep changes from being applied.

use std::fmt::{self, Write as _};

use crate::change::SkipReason;
use crate::escape::{CountedNoun, EscapedName};
use crate::path::RelativePath;

/// A problem with one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyProblem {
    /// The path of the change.
    pub path: RelativePath,
    /// A conflict, or a refusal.
    pub reason: ProblemReason,
}

/// Why a change cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemReason {
    /// Conflict: the project changed here since.
    Changed,
    /// Conflict: the host changed it while the sandbox ran.
    Disturbed,
    /// Conflict: a deleted directory has new content.
    Occupied(Vec<u8>),
    /// Conflict: its directory was deleted.
    NoDirectory,
    /// Conflict: its directory was replaced by something else.
    NotADirectory,
    /// A parent is a symlink of the project, so it would escape.
    BehindLink,
    /// A parent is on another file system.
    OtherFileSystem,
    /// It is a symlink that would escape.
    LinkLeaves(Vec<u8>),
    MountPoint,
    /// Its directory has another owner than the project, and the caller is root.
    ForeignDirectory,
    /// It is in a git repository, whose content git may execute on the host.
    Git(GitChanges),
    /// Git would run it or read it as configuration, because existing settings name it.
    GitNamed {
        /// The number of changes in it.
        changes: u64,
        /// What names it, as text.
        by: String,
    },
    /// A directory to delete that contains something skipped.
    Holds,
    /// Its type is not supported.
    Skipped(SkipReason),
}

/// Changes that git would act on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GitChanges {
    count: GitCount,
    /// The first few files.
    first: Vec<RelativePath>,
}

/// The number of changes that git would act on: files, or directories if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GitCount {
    files: u64,
    directories: u64,
}

/// The number of paths that a message names.
const NAMED: usize = 3;

// === impl GitCount ===

impl GitCount {
    /// Counts a change by its number of files.
    pub(crate) fn add(&mut self, files: u64) {
        self.files += files;
        self.directories += u64::from(files == 0);
    }

    pub(crate) fn get(self) -> u64 {
        if self.files > 0 { self.files } else { self.directories }
    }
}

// === impl GitChanges ===

impl GitChanges {
    pub(crate) fn add(&mut self, path: &RelativePath, files: u64) {
        self.count.add(files);
        if files > 0 && self.first.len() < NAMED {
            self.first.push(path.clone());
        }
    }

    /// The total.
    pub fn count(&self) -> u64 {
        self.count.get()
    }
}

impl fmt::Display for GitChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", CountedNoun(self.count(), "change", "changes"))?;
        for (number, path) in self.first.iter().enumerate() {
            write!(f, "{}{path}", if number == 0 { " (" } else { ", " })?;
        }
        let more = self.count().saturating_sub(u64::try_from(self.first.len()).unwrap_or(u64::MAX));
        match (self.first.is_empty(), more) {
            (true, _) => Ok(()),
            (false, 0) => f.write_str(")"),
            (false, more) => write!(f, " and {more} more)"),
        }
    }
}

// === impl ApplyProblem ===

impl fmt::Display for ApplyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

// === impl ProblemReason ===

impl ProblemReason {
    /// Whether it is refused in any project, as opposed to a conflict with what the host did.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Changed | Self::Disturbed | Self::Occupied(_) | Self::NoDirectory | Self::NotADirectory => false,
            Self::BehindLink
            | Self::OtherFileSystem
            | Self::LinkLeaves(_)
            | Self::MountPoint
            | Self::ForeignDirectory => true,
            Self::Git(_) | Self::GitNamed { .. } | Self::Holds | Self::Skipped(_) => true,
        }
    }
}

impl fmt::Display for ProblemReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => f.write_str("the project has changed here since"),
            Self::Disturbed => f.write_str("the project changed here while the sandbox ran"),
            Self::Occupied(name) => {
                write!(f, "is to be deleted, and the project has something new in it: {}", EscapedName(name))
            }
            Self::NoDirectory => f.write_str("its directory was deleted from the project"),
            Self::NotADirectory => f.write_str("its directory is no longer a directory"),
            Self::BehindLink => f.write_str("would leave the directory: a part of its path is a symbolic link"),
            Self::OtherFileSystem => {
                f.write_str("would leave the directory: a part of its path is on another file system")
            }
            Self::LinkLeaves(target) => {
                write!(f, "would leave the directory: it is a symbolic link to {}", EscapedName(target))
            }
            Self::MountPoint => f.write_str("would leave the directory: something is mounted here"),
            Self::ForeignDirectory => f.write_str("its directory belongs to another user than the project does"),
            Self::Git(changes) => {
                write!(f, "{changes}, by which git could be made to run anything here")
            }
            Self::GitNamed { by, .. } => write!(f, "git would run it or read it as configuration: {by}"),
            Self::Holds => f.write_str("is to be deleted, but something in it is left out"),
            Self::Skipped(why) => write!(f, "cannot be applied ({why})"),
        }
    }
}

/// All problems, one per line.
pub(super) fn summary(problems: &[ApplyProblem]) -> String {
    let git = problems.iter().filter_map(|problem| match &problem.reason {
        ProblemReason::Git(changes) => Some(changes.count()),
        ProblemReason::GitNamed { changes, .. } => Some(*changes),
        _ => None,
    });
    let (repositories, git) = (git.clone().count(), git.sum::<u64>());
    let conflicts = problems.iter().filter(|problem| !problem.reason.is_refusal()).count();
    let refused = problems.len() - conflicts - repositories;
    let counted =
        |count: usize, one, many| CountedNoun(u64::try_from(count).unwrap_or(u64::MAX), one, many).to_string();
    let mut parts = Vec::new();
    if conflicts > 0 {
        parts.push(counted(conflicts, "conflict", "conflicts"));
    }
    if refused > 0 {
        parts.push(counted(refused, "refusal", "refusals"));
    }
    if git > 0 {
        parts.push(format!("{} that git acts on", CountedNoun(git, "change", "changes")));
    }
    let mut text = format!("nothing was applied: {}", parts.join(", "));
    for problem in problems {
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {problem}");
    }
    text
}
