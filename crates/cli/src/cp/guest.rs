//! Writes files in a sandbox.

use carrel_agent_client::protocol::payload::{FsAttributes, FsOpenOptions};
use carrel_agent_client::{AgentClientError, File, Files};
use carrel_image::accounts::UidGid;

use super::sandbox_failure;
use crate::failure::Failure;

/// Files of a sandbox, written as its root and given to a user.
///
/// No symbolic link in a path is followed, because another user of the sandbox may have created it.
#[derive(Clone, Debug)]
pub(super) struct GuestFiles {
    pub(super) files: Files,
    /// The owner of new files; none if the agent acts as the user itself.
    owner: Option<UidGid>,
    /// The name of the sandbox, for hints.
    pub(super) sandbox: String,
}

// === impl GuestFiles ===

impl GuestFiles {
    pub(super) fn new(files: &Files, owner: Option<UidGid>, sandbox: &str) -> Self {
        Self { files: files.clone().without_symlinks(), owner, sandbox: sandbox.to_owned() }
    }

    /// Creates or truncates a file; returns the attributes to set later. An existing file keeps its owner.
    pub(super) async fn create(&self, target: &str, attributes: FsAttributes) -> Result<(File, FsAttributes), Failure> {
        let to_failure = |error: AgentClientError| sandbox_failure(target, &error);
        let truncate = FsOpenOptions { write: true, create: true, truncate: true, ..FsOpenOptions::default() };
        let truncate = FsOpenOptions { mode: Some(0o600), ..truncate };
        if self.owner.is_none() {
            return Ok((self.files.open(target, truncate).await.map_err(to_failure)?, attributes));
        }
        let new = FsOpenOptions { create_new: true, ..truncate.clone() };
        match self.files.open(target, new).await {
            Err(error) if exists(&error) => {
                Ok((self.files.open(target, truncate).await.map_err(to_failure)?, attributes))
            }
            opened => Ok((opened.map_err(to_failure)?, self.owned(attributes))),
        }
    }

    /// Creates a directory; returns the attributes to set later. An existing one keeps its owner and mode.
    pub(super) async fn mkdir(&self, target: &str, attributes: FsAttributes) -> Result<FsAttributes, Failure> {
        let is_new = self.files.lstat(target).await.is_err();
        self.files.mkdir(target, Some(0o700)).await.map_err(|error| sandbox_failure(target, &error))?;
        Ok(if is_new { self.owned(attributes) } else { FsAttributes { mode: None, ..attributes } })
    }

    /// Sets the attributes of a directory, once its contents are complete.
    pub(super) async fn set_attributes(&self, target: &str, attributes: FsAttributes) -> Result<(), Failure> {
        let directory = self.files.open_dir(target).await.map_err(|error| sandbox_failure(target, &error))?;
        directory.set_stat(attributes).await.map_err(|error| sandbox_failure(target, &error))
    }

    /// Creates a symbolic link, replacing a file or link.
    pub(super) async fn symlink(&self, link_target: &str, target: &str, modified: i64) -> Result<(), Failure> {
        let to_failure = |error: AgentClientError| sandbox_failure(target, &error);
        match self.files.symlink(link_target, target).await {
            Err(error) if exists(&error) => {
                self.files.remove(target).await.map_err(to_failure)?;
                self.files.symlink(link_target, target).await.map_err(to_failure)?;
            }
            made => made.map_err(to_failure)?,
        }
        let attributes = self.owned(FsAttributes { mtime: Some(modified), ..FsAttributes::default() });
        self.files.set_stat(target, false, attributes).await.map_err(to_failure)
    }

    fn owned(&self, attributes: FsAttributes) -> FsAttributes {
        match self.owner {
            Some(UidGid { user, group }) => FsAttributes { uid: Some(user), gid: Some(group), ..attributes },
            None => attributes,
        }
    }
}

fn exists(error: &AgentClientError) -> bool {
    matches!(error, AgentClientError::File(error) if error.errno_name.as_deref() == Some("EEXIST"))
}
