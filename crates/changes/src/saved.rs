//! Saved changes on disk: `changes.json` describes them, `files/` has the contents, named by digest.

mod record;
mod save;
mod store;

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

pub use self::save::{SaveLimits, SaveRequest};

use crate::change::SkipReason;
use crate::collect::Changes;
use crate::confined_tree::ConfinedTree;
use crate::content::ContentDigest;
use crate::file_state::FileState;
use crate::identity::ProjectIdentity;
use crate::name::ChangeName;
use crate::path::RelativePath;
use crate::path_error::PathError;
use crate::project::{Project, ProjectError};
use crate::walk::{TooManyFiles, WalkError};

/// The record of saved changes.
const RECORD: &str = "changes.json";
/// The directory of their contents.
const FILES: &str = "files";

/// Changes that are saved on disk.
#[derive(Debug)]
pub struct SavedChanges {
    name: ChangeName,
    files: ConfinedTree,
    record: ChangesRecord,
}

/// The content of `changes.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangesRecord {
    pub(crate) project: PathBuf,
    /// The identity of that directory. Earlier releases did not record it.
    pub(crate) identity: Option<ProjectIdentity>,
    /// The user ID inside that stands for the owner of the project.
    pub(crate) user: u32,
    /// Sorted by path. For a deleted directory, everything that was in it.
    pub(crate) entries: Vec<ChangeEntry>,
    pub(crate) skipped: Vec<(RelativePath, SkipReason)>,
}

/// A path that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeEntry {
    pub(crate) path: RelativePath,
    /// The state in the project.
    pub(crate) before: FileState,
    /// The final state in the sandbox.
    pub(crate) after: FileState,
    /// The user and group inside, if it exists.
    pub(crate) owner: Option<(u32, u32)>,
    /// The host changed it while the sandbox ran.
    pub(crate) disturbed: bool,
}

/// Changes that could not be saved or opened.
#[derive(Debug, thiserror::Error)]
pub enum SavedChangesError {
    /// The name is taken.
    #[error("changes named {0} already exist: choose another name, or run `carrel rm {0}`")]
    Exists(ChangeName),
    /// The name does not exist.
    #[error("no such changes: {0}")]
    Unknown(ChangeName),
    /// A limit is exceeded.
    #[error("the changes are too large to save: {size} bytes of {what}; the limit is {limit}")]
    TooLarge {
        /// What is limited.
        what: &'static str,
        /// The actual amount, at least.
        size: u64,
        limit: u64,
    },
    /// The limit of files is exceeded.
    #[error(transparent)]
    TooMany(#[from] TooManyFiles),
    /// The files on disk are not what was saved.
    #[error("the changes named {name} are damaged: {what}")]
    Damaged {
        name: ChangeName,
        /// What is wrong with them.
        what: String,
    },
    /// A newer release saved them.
    #[error("the changes named {name} have version {version}, but this release reads version 1")]
    Version {
        name: ChangeName,
        /// The version of the record.
        version: u64,
    },
    /// A system call failed.
    #[error(transparent)]
    System(#[from] PathError),
}

// === impl SavedChanges ===

impl SavedChanges {
    /// Saves changes atomically in a directory, which is created if needed.
    pub fn save(directory: &Path, name: &ChangeName, what: &SaveRequest<'_>) -> Result<Self, SavedChangesError> {
        save::save(directory, name, what)
    }

    pub fn open(directory: &Path, name: &ChangeName) -> Result<Self, SavedChangesError> {
        store::open(directory, name)
    }

    /// The sorted names of all saved changes.
    pub fn list(directory: &Path) -> Result<Vec<ChangeName>, SavedChangesError> {
        store::list(directory)
    }

    /// Removes saved changes, even damaged ones.
    pub fn remove(directory: &Path, name: &ChangeName) -> Result<(), SavedChangesError> {
        store::remove(directory, name)
    }

    /// The name they were saved under.
    pub fn name(&self) -> &ChangeName {
        &self.name
    }

    /// The project's path at the time.
    pub fn project(&self) -> &Path {
        &self.record.project
    }

    /// The changes as collected.
    pub fn changes(&self) -> Changes {
        self.record.changes()
    }

    /// Opens the project: the recorded directory, or another one that the user names.
    pub fn open_project(&self, named: Option<&Path>) -> Result<Project, ProjectError> {
        match named {
            Some(path) => Ok(Project::open(path)?),
            None => Project::reopen(&self.record.project, self.record.identity.as_ref()),
        }
    }

    pub(crate) fn record(&self) -> &ChangesRecord {
        &self.record
    }

    /// Opens a content and checks its size; its digest is verified while it is read.
    pub(crate) fn content(&self, digest: &ContentDigest, size: u64) -> Result<File, SavedChangesError> {
        let damaged = |what: &str| self.damaged(format!("the content {digest} {what}"));
        let path = RelativePath::new(digest.to_string()).map_err(|_| damaged("has no name"))?;
        match self.files.meta(&path) {
            Ok(meta) if meta.size == size => {}
            Ok(_) => return Err(damaged("has another length")),
            Err(Errno::NOENT) => return Err(damaged("is missing")),
            Err(errno) => return Err(PathError::at("look at", path.as_bytes())(errno).into()),
        }
        Ok(self.files.file(&path).map_err(PathError::at("open", path.as_bytes()))?)
    }

    pub(crate) fn damaged(&self, what: String) -> SavedChangesError {
        SavedChangesError::Damaged { name: self.name.clone(), what }
    }
}

// === impl SavedChangesError ===

impl From<WalkError> for SavedChangesError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::System(failure) => failure.into(),
            WalkError::TooMany(many) => many.into(),
        }
    }
}
