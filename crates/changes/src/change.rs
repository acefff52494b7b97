//! One change, and how it is counted and listed.

use std::fmt;

use crate::apply::GitCount;
use crate::confined_tree::{FileKind, FileMetadata};
use crate::escape::{CountedNoun, caution};
use crate::git::GitGuard;
use crate::path::{MAX_DEPTH, MAX_PATH_LENGTH, RelativePath};

/// What a sandbox did to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// Relative to the project's directory.
    pub path: RelativePath,
    /// Compared with the project.
    pub kind: ChangeKind,
    /// The file after the change, or before it if it was deleted.
    pub node: Node,
    /// The number of files it stands for: those in a deleted directory; otherwise one, and none for a directory that did
    /// not replace a file.
    pub files: u64,
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The project has nothing there.
    Added,
    /// Its content or target differs.
    Modified,
    /// The sandbox deleted it.
    Deleted,
    /// Only its permissions differ.
    ModeChanged,
    /// It was another type of file.
    TypeChanged,
    /// Its type is not supported.
    Skipped,
}

/// The type of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File {
        /// In bytes.
        size: u64,
        /// The permission bits.
        mode: u32,
    },
    Directory {
        /// The permission bits.
        mode: u32,
    },
    Symlink {
        /// Not followed.
        target: Vec<u8>,
    },
    /// Not supported.
    Skipped(SkipReason),
}

/// Why a file is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A block or character device.
    Device,
    /// Its path exceeds the kernel's limit.
    TooLong,
    /// Its nesting exceeds the limit.
    TooDeep,
}

/// Totals of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeSummary {
    /// Added files and symlinks.
    pub added: u64,
    /// Modified files and symlinks.
    pub modified: u64,
    /// Deleted files and symlinks.
    pub deleted: u64,
    /// Directories that were added, deleted or got other permissions.
    pub directories: u64,
    /// Files that are not supported.
    pub skipped: u64,
    /// Files that git would run or read as configuration; directories, if there are no files.
    pub git: u64,
    /// Files that other tools run or load automatically.
    pub marked: u64,
    /// The total size of added and modified files.
    pub bytes: u64,
}

// === impl FileChange ===

impl FileChange {
    /// Its letter in a list.
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

/// A line in the style of `git status --short`.
impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.letter(), self.path)?;
        match (&self.node, self.kind) {
            (Node::Directory { .. }, ChangeKind::Deleted) => {
                write!(f, "/ ({})", CountedNoun(self.files, "file", "files"))
            }
            (Node::Directory { .. }, _) => f.write_str("/"),
            (Node::Skipped(why), ChangeKind::Skipped) => write!(f, " ({why}, left out)"),
            _ => self.mark().map_or(Ok(()), |mark| write!(f, " ({})", mark.kind)),
        }
    }
}

// === impl Node ===

impl Node {
    /// The node for a `stat` result, with the target of a symlink.
    pub(crate) fn new(meta: &FileMetadata, target: Vec<u8>) -> Self {
        match meta.kind {
            FileKind::File => Self::File { size: meta.size, mode: meta.permissions() },
            FileKind::Directory => Self::Directory { mode: meta.permissions() },
            FileKind::Symlink => Self::Symlink { target },
            FileKind::Fifo => Self::Skipped(SkipReason::Fifo),
            FileKind::Socket => Self::Skipped(SkipReason::Socket),
            FileKind::Device => Self::Skipped(SkipReason::Device),
        }
    }
}

// === impl SkipReason ===

impl SkipReason {
    pub(crate) const ALL: [Self; 5] = [Self::Fifo, Self::Socket, Self::Device, Self::TooLong, Self::TooDeep];

    /// Its word in a record.
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

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a path of more than {MAX_PATH_LENGTH} bytes"),
            Self::TooDeep => write!(f, "below more than {MAX_DEPTH} directories"),
            other => f.write_str(other.word()),
        }
    }
}

// === impl ChangeSummary ===

impl ChangeSummary {
    pub(crate) fn of(changes: &[FileChange], guard: &GitGuard) -> Self {
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

    /// Added, modified and deleted files.
    pub fn files(&self) -> u64 {
        self.added + self.modified + self.deleted
    }

    /// The warning about changes that git would act on, if there are some.
    pub fn caution(&self) -> Option<String> {
        (self.git > 0).then(|| caution(self.git))
    }
}

impl fmt::Display for ChangeSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.files(), self.directories) {
            (0, 0) => f.write_str("no changes")?,
            (0, directories) => write!(f, "{} changed", CountedNoun(directories, "directory", "directories"))?,
            (files, _) => {
                write!(f, "{} changed: ", CountedNoun(files, "file", "files"))?;
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
