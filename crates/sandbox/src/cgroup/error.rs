//! Errors of cgroup operations: one variant for each step, with the file that failed.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::host::Controller;
use super::missing_controller::UnenforceableLimits;

/// Why an operation on a cgroup failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The name is not a plain directory name.
    #[error("{0:?} is not a valid cgroup name: use letters, digits and dashes, at most {most}", most = super::name::LONGEST)]
    Name(String),
    /// The host cannot enforce the limits.
    #[error(transparent)]
    Unenforceable(#[from] UnenforceableLimits),
    /// The kernel's list of cgroups cannot be read.
    #[error("cannot read {file}: {errno}", file = .file.display())]
    Detect {
        /// The list.
        file: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// A hierarchy or a group could not be opened.
    #[error("cannot open {path}: {errno}", path = .path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// The group exists already.
    #[error("{path} exists already", path = .path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// No hierarchy has such a group.
    #[error("no such cgroup: {name}")]
    NotFound { name: String },
    /// The directory could not be created.
    #[error("cannot create {path}: {errno}", path = .path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// A controller could not be enabled for children.
    #[error("cannot enable {value} in {file}: {errno}", file = .file.display())]
    Enable {
        /// The `cgroup.subtree_control` file.
        file: PathBuf,
        /// The value that was written.
        value: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// A limit could not be set.
    #[error("cannot write {value} to {file}: {errno}", file = .file.display())]
    Limit {
        /// The file of the limit.
        file: PathBuf,
        /// The value that was written.
        value: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// A process could not be moved.
    #[error("cannot move process {pid} to {file}: {errno}", file = .file.display())]
    Join {
        /// The list of the group's processes.
        file: PathBuf,
        /// The process.
        pid: i32,
        /// The kernel's error.
        errno: Errno,
    },
    /// A file of the group could not be read.
    #[error("cannot read {file}: {errno}", file = .file.display())]
    Read {
        file: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// A file of the group has unexpected content.
    #[error("unexpected content of {file}: {text:?}", file = .file.display())]
    Malformed {
        file: PathBuf,
        /// Its content.
        text: String,
    },
    /// The operation needs a controller that this group does not have.
    #[error("the cgroup has no {0:?} controller on this host")]
    Absent(Controller),
    /// The group could not be frozen or thawed.
    #[error("cannot write {value} to {file}: {errno}", file = .file.display())]
    Freeze {
        /// The freezer file.
        file: PathBuf,
        /// The requested state.
        value: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// The processes could not be killed.
    #[error("cannot kill the processes of {file}: {errno}", file = .file.display())]
    Kill {
        /// The file that kills or lists them.
        file: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel could not be asked for notifications.
    #[error("cannot wait for {file}: {errno}", file = .file.display())]
    Wait {
        /// The file to watch.
        file: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// The expected state was not reached in time.
    #[error("timed out after {seconds} s: {file} does not contain {expected}", file = .file.display())]
    Late {
        /// The file that was watched.
        file: PathBuf,
        /// The expected content.
        expected: String,
        /// The time limit.
        seconds: u64,
    },
    /// The directory could not be removed.
    #[error("cannot remove {path}: {errno}", path = .path.display())]
    Remove {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// The groups could not be listed.
    #[error("cannot list {path}: {errno}", path = .path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
}

// === impl CgroupError ===

impl CgroupError {
    pub(super) fn detect(file: &str, error: &std::io::Error) -> Self {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Self::Detect { file: Path::new(file).to_owned(), errno }
    }
}
