//! What a caller asked to be shown or shared, and cannot be.

/// Something of the caller's that cannot be shown: another source or another target may do. The host lacks nothing.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A source cannot be opened.
    #[error("{path}: {source}")]
    Source {
        /// Which.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A source, or something mounted in it, is on a file system that cannot show its files with other ids than are
    /// stored.
    #[error(
        "{path} cannot be shown with the ids of a sandbox ({source}); copy it to a disk of this host, or give it as a \
         read-only mount"
    )]
    Ids {
        /// Which.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A source is something that programs talk through, and is asked for read-only.
    #[error(
        "{path} is {kind}, which cannot be mounted read-only: whoever opens it talks to the host; mount it with `:rw` to allow that"
    )]
    SpecialFile {
        /// Which.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// The file system of a source cannot lie below an overlay, which keeps a read-only mount apart from the host.
    #[error(
        "the file system behind {target} cannot be mounted read-only without a connection to the host ({source}); mount a copy with `:copy`"
    )]
    OverlayUnsupported {
        /// Where it was to be.
        target: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// An image or a project is the whole host.
    #[error("{path} is all of this host, and neither an image nor a project: choose a directory below it")]
    WholeHost {
        /// Which.
        path: String,
    },
    /// There is no such user or group in any sandbox.
    #[error("no sandbox has a user or group {id}: the highest is {most}", most = crate::ids::COUNT - 1)]
    UnknownId {
        /// Who.
        id: u32,
    },
    /// There is no place for it inside.
    #[error("the mount point {target} {problem}")]
    Target {
        /// Where it was to be.
        target: String,
        /// What is wrong with that.
        problem: TargetProblem,
    },
}

/// Why a path inside is no place for a mount.
#[derive(Debug, thiserror::Error)]
pub enum TargetProblem {
    /// Something else is shown above it, which does not have it, and nothing is ever made there.
    #[error("does not exist in what is shown at {within}")]
    Absent {
        /// Where that is.
        within: String,
    },
    /// It is a directory, for something that is none.
    #[error("is a directory, and what is to be shown there is not")]
    Directory,
    /// It is not a directory, for one.
    #[error("is not a directory, and what is to be shown there is")]
    NotDirectory,
    /// It is a link, which is not followed.
    #[error("is a link")]
    Link,
    /// It is at or below `/dev`, `/proc` or `/sys`.
    #[error("is in what every sandbox has of its own")]
    Reserved,
    /// It was asked for more than once.
    #[error("is asked for twice")]
    Duplicate,
    /// It cannot be made.
    #[error("cannot be made: {0}")]
    Other(std::io::Error),
}

/// A network that no sandbox is put into.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The process that was to be found in it has ended.
    #[error("the process has ended")]
    Ended,
    /// Whose it is cannot be told.
    #[error("whose network it is cannot be told: {0}")]
    Unreadable(std::io::Error),
    /// It is the host's own, or that of other software.
    #[error("it is not the network of a sandbox")]
    Foreign,
}
