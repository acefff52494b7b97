//! What can fail, one variant for each step, each with the file it failed on.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::host::Controller;
use super::missing_controller::UnenforceableLimits;

/// Why an operation on a control group failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A name that could mean something else than one directory.
    #[error("{0:?} is not a name for a control group: letters, digits and dashes, at most {most}", most = super::name::LONGEST)]
    Name(String),
    /// CgroupLimits that this host cannot enforce.
    #[error(transparent)]
    Unenforceable(#[from] UnenforceableLimits),
    /// The kernel's own list could not be read.
    #[error("cannot read {file}: {errno}", file = .file.display())]
    Detect {
        /// The list.
        file: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// A hierarchy or a group could not be opened.
    #[error("cannot open {path}: {errno}", path = .path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The group exists already.
    #[error("{path} exists already", path = .path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// No hierarchy has such a group.
    #[error("there is no control group {name}")]
    NotFound {
        /// Its name.
        name: String,
    },
    /// The directory could not be made.
    #[error("cannot make {path}: {errno}", path = .path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// A controller could not be handed down to children.
    #[error("cannot enable {value} in {file}: {errno}", file = .file.display())]
    Enable {
        /// The file that hands controllers down.
        file: PathBuf,
        /// What was written.
        value: String,
        /// Why.
        errno: Errno,
    },
    /// A limit could not be set.
    #[error("cannot write {value} to {file}: {errno}", file = .file.display())]
    Limit {
        /// The file of the limit.
        file: PathBuf,
        /// What was written.
        value: String,
        /// Why.
        errno: Errno,
    },
    /// A process could not be moved.
    #[error("cannot move process {pid} by {file}: {errno}", file = .file.display())]
    Join {
        /// The list of the group's processes.
        file: PathBuf,
        /// The process.
        pid: i32,
        /// Why.
        errno: Errno,
    },
    /// A file of the group could not be read.
    #[error("cannot read {file}: {errno}", file = .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// A file of the group says something that we do not understand.
    #[error("{file} says {text:?}", file = .file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What it says.
        text: String,
    },
    /// What was asked for needs a controller that this group does not have.
    #[error("the control group has no {0:?} controller on this host")]
    Absent(Controller),
    /// The group could not be frozen or thawed.
    #[error("cannot write {value} to {file}: {errno}", file = .file.display())]
    Freeze {
        /// The file of the state.
        file: PathBuf,
        /// The state that was asked for.
        value: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The processes could not be ended.
    #[error("cannot end the processes of {file}: {errno}", file = .file.display())]
    Kill {
        /// The file that ends or lists them.
        file: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The kernel could not be asked to tell about a change.
    #[error("cannot wait for {file}: {errno}", file = .file.display())]
    Wait {
        /// The file whose change was waited for.
        file: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// What was asked for did not happen in time.
    #[error("{file} still does not say {wanted} after {seconds} s", file = .file.display())]
    Late {
        /// The file whose change was waited for.
        file: PathBuf,
        /// What it was to say.
        wanted: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The directory could not be removed.
    #[error("cannot remove {path}: {errno}", path = .path.display())]
    Remove {
        /// The directory.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The groups could not be listed.
    #[error("cannot list {path}: {errno}", path = .path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// Why.
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
