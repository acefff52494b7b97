//! Errors in what a caller requested: mounts and networks.

/// A requested mount is not possible; another source or target may be. The host lacks nothing.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A source cannot be opened.
    #[error("{path}: {source}")]
    Source {
        /// The path on the host.
        path: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A source, or a mount below it, is on a file system without support for id-mapped mounts.
    #[error(
        "the file system of {path} does not support id-mapped mounts ({source}); copy it to a local disk, or mount it \
         read-only"
    )]
    Ids {
        /// The path on the host.
        path: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A source is a socket, a FIFO or a device, and is requested read-only.
    #[error(
        "{path} is {kind}, which cannot be mounted read-only: opening it connects to the host; mount it with `:rw` to allow that"
    )]
    SpecialFile {
        /// The path on the host.
        path: String,
        /// The kind of file.
        kind: &'static str,
    },
    /// The file system of a source cannot be the lower layer of the overlay that isolates a read-only mount from the host.
    #[error(
        "the file system of {target} cannot be the lower layer of a read-only mount ({source}); mount a copy with `:copy`"
    )]
    OverlayUnsupported {
        /// The mount point.
        target: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// An image or a project is the root of the host.
    #[error("{path} is the root of the host, which can be neither an image nor a project; choose a directory below it")]
    WholeHost {
        /// The path on the host.
        path: String,
    },
    /// The id is outside the range of every sandbox.
    #[error("no sandbox has a user or group {id}: the highest is {most}", most = crate::ids::COUNT - 1)]
    UnknownId {
        /// The user or group id.
        id: u32,
    },
    /// The mount point cannot be used.
    #[error("the mount point {target} {problem}")]
    Target {
        /// The mount point.
        target: String,
        /// What is wrong with it.
        problem: TargetProblem,
    },
}

/// Why a path in the sandbox cannot be a mount point.
#[derive(Debug, thiserror::Error)]
pub enum TargetProblem {
    /// It is inside another mount, does not exist there, and is never created there.
    #[error("does not exist in the mount at {within}")]
    Absent {
        /// The other mount point.
        within: String,
    },
    /// It is a directory, and the source is not.
    #[error("is a directory, but the source is not")]
    Directory,
    /// It is not a directory, and the source is.
    #[error("is not a directory, but the source is")]
    NotDirectory,
    /// It is a symbolic link, which is not followed.
    #[error("is a symbolic link")]
    Link,
    /// It is at or below `/dev`, `/proc` or `/sys`.
    #[error("is reserved: every sandbox has its own /dev, /proc and /sys")]
    Reserved,
    /// It was requested more than once.
    #[error("is used twice")]
    Duplicate,
    /// It cannot be created.
    #[error("cannot be created: {0}")]
    Other(std::io::Error),
}

/// The network of a process cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The process has exited.
    #[error("the process has exited")]
    Ended,
    /// The owner of the network cannot be determined.
    #[error("cannot determine the owner of the network: {0}")]
    Unreadable(std::io::Error),
    /// It belongs to the host, or to other software.
    #[error("it is not the network of a sandbox")]
    Foreign,
}
