//! Changes that are kept on disk: `changes.json` says what they are, `files/` has the contents, named by their digest.

mod record;
mod save;
mod store;

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

pub use self::save::{Keep, Limits};

use crate::change::Skipped;
use crate::collect::Changes;
use crate::content::Digest;
use crate::failure::Failure;
use crate::identity::ProjectIdentity;
use crate::name::ChangeName;
use crate::path::RelativePath;
use crate::project::{Project, ProjectError};
use crate::state::State;
use crate::tree::Tree;
use crate::walk::{TooMany, WalkError};

/// The record of kept changes.
const RECORD: &str = "changes.json";
/// The directory of their contents.
const FILES: &str = "files";

/// Changes that are kept on disk.
#[derive(Debug)]
pub struct Kept {
    name: ChangeName,
    files: Tree,
    record: Record,
}

/// What is remembered of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Where the project was.
    pub(crate) project: PathBuf,
    /// Which directory that was. Earlier releases did not record it.
    pub(crate) identity: Option<ProjectIdentity>,
    /// The id inside that stands for the owner of the project.
    pub(crate) user: u32,
    /// By path. Of a directory that was deleted, all that was in it.
    pub(crate) entries: Vec<Entry>,
    pub(crate) skipped: Vec<(RelativePath, Skipped)>,
}

/// A path that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: RelativePath,
    /// What the project had.
    pub(crate) before: State,
    /// What the sandbox had at the end.
    pub(crate) after: State,
    /// The user and group inside that it belongs to, if it is there.
    pub(crate) owner: Option<(u32, u32)>,
    /// The host changed it while the sandbox ran.
    pub(crate) disturbed: bool,
}

/// Changes that cannot be kept, or found again.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// There are changes of that name.
    #[error("changes named {0} are there already: take another name, or remove them with `carrel rm {0}`")]
    Exists(ChangeName),
    /// There are no changes of that name.
    #[error("there are no changes named {0}")]
    Unknown(ChangeName),
    /// They are more than is kept.
    #[error("the changes are too large to keep: {size} bytes of {what}, and at most {limit} are kept")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// How much there is, at least.
        size: u64,
        /// How much there may be.
        limit: u64,
    },
    /// There are more files than are looked at.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// What is on disk is not what was kept.
    #[error("the changes named {name} are damaged: {what}")]
    Damaged {
        /// Their name.
        name: ChangeName,
        /// What is wrong.
        what: String,
    },
    /// A newer release kept them.
    #[error("the changes named {name} are of version {version}, and this release reads version 1")]
    Version {
        /// Their name.
        name: ChangeName,
        /// The version of their record.
        version: u64,
    },
    /// The system did not let us.
    #[error(transparent)]
    System(#[from] Failure),
}

// === impl Kept ===

impl Kept {
    /// Keeps changes below a directory, which is made if it is not there. They are there in whole or not at all.
    pub fn save(directory: &Path, name: &ChangeName, what: &Keep<'_>) -> Result<Self, KeepError> {
        save::save(directory, name, what)
    }

    /// Finds changes that were kept.
    pub fn open(directory: &Path, name: &ChangeName) -> Result<Self, KeepError> {
        store::open(directory, name)
    }

    /// The names of all changes that are kept, in order.
    pub fn list(directory: &Path) -> Result<Vec<ChangeName>, KeepError> {
        store::list(directory)
    }

    /// Removes changes, even damaged ones.
    pub fn remove(directory: &Path, name: &ChangeName) -> Result<(), KeepError> {
        store::remove(directory, name)
    }

    /// Their name.
    pub fn name(&self) -> &ChangeName {
        &self.name
    }

    /// The project that they were made in.
    pub fn project(&self) -> &Path {
        &self.record.project
    }

    /// The changes, as they were found.
    pub fn changes(&self) -> Changes {
        self.record.changes()
    }

    /// Opens the project: the directory that the changes were made in, or the one that a person names instead.
    pub fn open_project(&self, named: Option<&Path>) -> Result<Project, ProjectError> {
        match named {
            Some(path) => Ok(Project::open(path)?),
            None => Project::reopen(&self.record.project, self.record.identity.as_ref()),
        }
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Opens a content. It is as long as is said; whether it is the right one is known once it is read.
    pub(crate) fn content(&self, digest: &Digest, size: u64) -> Result<File, KeepError> {
        let damaged = |what: &str| self.damaged(format!("the content {digest} {what}"));
        let path = RelativePath::new(digest.to_string()).map_err(|_| damaged("has no name"))?;
        match self.files.meta(&path) {
            Ok(meta) if meta.size == size => {}
            Ok(_) => return Err(damaged("has another length")),
            Err(Errno::NOENT) => return Err(damaged("is missing")),
            Err(errno) => return Err(Failure::at("look at", path.as_bytes())(errno).into()),
        }
        Ok(self.files.file(&path).map_err(Failure::at("open", path.as_bytes()))?)
    }

    pub(crate) fn damaged(&self, what: String) -> KeepError {
        KeepError::Damaged { name: self.name.clone(), what }
    }
}

// === impl KeepError ===

impl From<WalkError> for KeepError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::System(failure) => failure.into(),
            WalkError::TooMany(many) => many.into(),
        }
    }
}
