//! One change, and how it is counted and listed.

use std::fmt;

use crate::apply::GitCount;
use crate::git::GitGuard;
use crate::path::{DEEPEST, LONGEST, RelativePath};
use crate::tree::{Kind, Meta};
use crate::words::{Counted, caution};

/// What a sandbox did to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where, from the project's directory.
    pub path: RelativePath,
    /// What happened.
    pub kind: ChangeKind,
    /// What is there now, or what was there, if it was deleted.
    pub node: Node,
    /// How many files it stands for: those in a directory, if it was deleted; otherwise one, and none for a directory that did not
    /// take the place of a file.
    pub files: u64,
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there.
    Added,
    /// It has another content or points elsewhere.
    Modified,
    /// It is gone.
    Deleted,
    /// It has other permissions and is the same otherwise.
    ModeChanged,
    /// It was something else: a link, a file, a directory.
    TypeChanged,
    /// It is nothing that is taken over.
    Skipped,
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File {
        /// Its length.
        size: u64,
        /// Its permissions.
        mode: u32,
    },
    /// A directory.
    Directory {
        /// Its permissions.
        mode: u32,
    },
    /// A symbolic link.
    Symlink {
        /// What it points to.
        target: Vec<u8>,
    },
    /// Something that is not taken over.
    Skipped(Skipped),
}

/// Why something is not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// It is a named pipe.
    Fifo,
    /// It is a socket.
    Socket,
    /// It is a device.
    Device,
    /// Its path is too long to be named in one call.
    TooLong,
    /// It lies in too many directories.
    TooDeep,
}

/// How much changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files and links that were not there.
    pub added: u64,
    /// Files and links that are different.
    pub modified: u64,
    /// Files and links that are gone.
    pub deleted: u64,
    /// Directories that were made, removed or given other permissions.
    pub directories: u64,
    /// What is not taken over.
    pub skipped: u64,
    /// Files of all this that git would run or read as configuration, on the host; directories, if there are no files.
    pub git: u64,
    /// What of all this other tools run or follow by themselves.
    pub marked: u64,
    /// The length of all files that are new or different.
    pub bytes: u64,
}

// === impl Change ===

impl Change {
    /// The letter that it is listed by.
    fn letter(&self) -> char {
        match self.kind {
            ChangeKind::Added => 'A',
            ChangeKind::Modified | ChangeKind::ModeChanged => 'M',
            ChangeKind::Deleted => 'D',
            ChangeKind::TypeChanged => 'T',
            ChangeKind::Skipped => '!',
        }
    }
}

/// A line such as git's short status has.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.letter(), self.path)?;
        match (&self.node, self.kind) {
            (Node::Directory { .. }, ChangeKind::Deleted) => write!(f, "/ ({})", Counted(self.files, "file", "files")),
            (Node::Directory { .. }, _) => f.write_str("/"),
            (Node::Skipped(why), ChangeKind::Skipped) => write!(f, " ({why}, left out)"),
            _ => self.mark().map_or(Ok(()), |mark| write!(f, " ({})", mark.kind)),
        }
    }
}

// === impl Node ===

impl Node {
    /// What is known of a file, with the target of a link.
    pub(crate) fn new(meta: &Meta, target: Vec<u8>) -> Self {
        match meta.kind {
            Kind::File => Self::File { size: meta.size, mode: meta.permissions() },
            Kind::Directory => Self::Directory { mode: meta.permissions() },
            Kind::Symlink => Self::Symlink { target },
            Kind::Fifo => Self::Skipped(Skipped::Fifo),
            Kind::Socket => Self::Skipped(Skipped::Socket),
            Kind::Device => Self::Skipped(Skipped::Device),
        }
    }
}

// === impl Skipped ===

impl Skipped {
    pub(crate) const ALL: [Self; 5] = [Self::Fifo, Self::Socket, Self::Device, Self::TooLong, Self::TooDeep];

    /// The word for it in a record.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
            Self::TooLong => "too-long",
            Self::TooDeep => "too-deep",
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a path of more than {LONGEST} bytes"),
            Self::TooDeep => write!(f, "below more than {DEEPEST} directories"),
            other => f.write_str(other.word()),
        }
    }
}

// === impl Summary ===

impl Summary {
    pub(crate) fn of(changes: &[Change], guard: &GitGuard) -> Self {
        let (mut summary, mut git) = (Self::default(), GitCount::default());
        for change in changes {
            if guard.find(change).is_some() {
                git.add(change.files);
            }
            summary.marked += u64::from(change.mark().is_some());
            if matches!(change.node, Node::Directory { .. }) {
                summary.directories += 1;
            }
            match change.kind {
                ChangeKind::Added => summary.added += change.files,
                ChangeKind::Deleted => summary.deleted += change.files,
                ChangeKind::Skipped => summary.skipped += 1,
                ChangeKind::Modified | ChangeKind::ModeChanged | ChangeKind::TypeChanged => {
                    summary.modified += change.files;
                }
            }
            if let (Node::File { size, .. }, ChangeKind::Added | ChangeKind::Modified | ChangeKind::TypeChanged) =
                (&change.node, change.kind)
            {
                summary.bytes = summary.bytes.saturating_add(*size);
            }
        }
        summary.git = git.get();
        summary
    }

    /// Files and links that are not what they were.
    pub fn files(&self) -> u64 {
        self.added + self.modified + self.deleted
    }

    /// What is to be said about changes that git would act on, if there are some.
    pub fn caution(&self) -> Option<String> {
        (self.git > 0).then(|| caution(self.git))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.files(), self.directories) {
            (0, 0) => f.write_str("no changes")?,
            (0, directories) => write!(f, "{} changed", Counted(directories, "directory", "directories"))?,
            (files, _) => {
                write!(f, "{} changed: ", Counted(files, "file", "files"))?;
                let counts = [(self.added, "added"), (self.modified, "modified"), (self.deleted, "deleted")];
                for (number, (count, word)) in counts.iter().filter(|(count, _)| *count > 0).enumerate() {
                    write!(f, "{}{count} {word}", if number == 0 { "" } else { ", " })?;
                }
            }
        }
        if self.git > 0 {
            write!(f, "; {} that git acts on", self.git)?;
        }
        if self.marked > 0 {
            write!(f, "; {} that tools run", self.marked)?;
        }
        if self.skipped > 0 { write!(f, "; {} left out", self.skipped) } else { Ok(()) }
    }
}
