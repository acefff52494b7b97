//! What stands against changes, in words.

use std::fmt::{self, Write as _};

use crate::change::Skipped;
use crate::path::RelativePath;
use crate::words::{Counted, Shown};

/// Something that stands against a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub path: RelativePath,
    /// What.
    pub reason: Reason,
}

/// What stands against a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The project is not what it was when the changes were made.
    Changed,
    /// The host changed it while the sandbox ran.
    Disturbed,
    /// A directory is to go, and the project has something in it that the sandbox never saw.
    Occupied(Vec<u8>),
    /// The directory that it belongs in is gone.
    NoDirectory,
    /// Something else has taken the place of the directory that it belongs in.
    NotADirectory,
    /// A part of its path is a symbolic link of the project: it would leave the directory.
    BehindLink,
    /// A part of its path is on another file system: it would leave the directory.
    OtherFileSystem,
    /// It is a symbolic link that would leave the directory.
    LinkLeaves(Vec<u8>),
    /// Something is mounted there.
    MountPoint,
    /// The directory that it belongs in is of another user than the project is, and root is asked to write there.
    ForeignDirectory,
    /// It is a repository of git, and these changes are in it: git would run what they say, on the host.
    Git(GitChanges),
    /// Git would run it or read it as configuration, because something that is there already names it.
    GitNamed {
        /// How many changes are in it.
        changes: u64,
        /// What names it, in words.
        by: String,
    },
    /// It is to go, and something in it is left out.
    Holds,
    /// It is nothing that is taken over.
    Skipped(Skipped),
}

/// Changes that git would act on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GitChanges {
    count: GitCount,
    /// The first files of them.
    first: Vec<RelativePath>,
}

/// How many changes git would act on. Files count; without any, directories do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GitCount {
    files: u64,
    directories: u64,
}

/// How many paths of a repository are named.
const NAMED: usize = 3;

// === impl GitCount ===

impl GitCount {
    /// Counts a change, by the files that it stands for.
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

    /// How many they are.
    pub fn count(&self) -> u64 {
        self.count.get()
    }
}

impl fmt::Display for GitChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Counted(self.count(), "change", "changes"))?;
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

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

// === impl Reason ===

impl Reason {
    /// Whether it is refused whatever the project looks like, in contrast to a conflict with what the host did.
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

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => f.write_str("the project has changed here since"),
            Self::Disturbed => f.write_str("the project changed here while the sandbox ran"),
            Self::Occupied(name) => {
                write!(f, "is to be deleted, and the project has something new in it: {}", Shown(name))
            }
            Self::NoDirectory => f.write_str("its directory is gone from the project"),
            Self::NotADirectory => f.write_str("its directory is no directory any more"),
            Self::BehindLink => f.write_str("would leave the directory: a part of its path is a symbolic link"),
            Self::OtherFileSystem => {
                f.write_str("would leave the directory: a part of its path is on another file system")
            }
            Self::LinkLeaves(target) => {
                write!(f, "would leave the directory: it is a symbolic link to {}", Shown(target))
            }
            Self::MountPoint => f.write_str("would leave the directory: something is mounted here"),
            Self::ForeignDirectory => f.write_str("its directory belongs to another user than the project does"),
            Self::Git(changes) => {
                write!(f, "{changes}, by which git could be made to run anything here")
            }
            Self::GitNamed { by, .. } => write!(f, "git would run it or read it as configuration: {by}"),
            Self::Holds => f.write_str("is to be deleted, but something in it is left out"),
            Self::Skipped(why) => write!(f, "is not taken over ({why})"),
        }
    }
}

/// All that stands against changes, a line each.
pub(super) fn told(problems: &[Problem]) -> String {
    let git = problems.iter().filter_map(|problem| match &problem.reason {
        Reason::Git(changes) => Some(changes.count()),
        Reason::GitNamed { changes, .. } => Some(*changes),
        _ => None,
    });
    let (repositories, git) = (git.clone().count(), git.sum::<u64>());
    let conflicts = problems.iter().filter(|problem| !problem.reason.is_refusal()).count();
    let refused = problems.len() - conflicts - repositories;
    let counted = |count: usize, one, many| Counted(u64::try_from(count).unwrap_or(u64::MAX), one, many).to_string();
    let mut parts = Vec::new();
    if conflicts > 0 {
        parts.push(counted(conflicts, "conflict", "conflicts"));
    }
    if refused > 0 {
        parts.push(counted(refused, "refusal", "refusals"));
    }
    if git > 0 {
        parts.push(format!("{} that git acts on", Counted(git, "change", "changes")));
    }
    let mut text = format!("nothing was applied: {}", parts.join(", "));
    for problem in problems {
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {problem}");
    }
    text
}
