//! Files of a sandbox that a copy writes.

use carrel_agent_client::protocol::payload::{FsAttributes, FsOpenOptions};
use carrel_agent_client::{AgentClientError, File, Files};
use carrel_image::accounts::UidGid;

use super::inside;
use crate::failure::Failure;

/// Files of a sandbox that are written with the rights of its root, and given to a user.
///
/// No symbolic link in a path is followed: one that anybody else in there made must not direct a copy.
#[derive(Clone, Debug)]
pub(super) struct GuestFiles {
    pub(super) files: Files,
    /// Who gets what is created; none if the agent acts as the user itself.
    owner: Option<UidGid>,
    /// The sandbox, for hints.
    pub(super) sandbox: String,
}

// === impl GuestFiles ===

impl GuestFiles {
    pub(super) fn new(files: &Files, owner: Option<UidGid>, sandbox: &str) -> Self {
        Self { files: files.clone().without_symlinks(), owner, sandbox: sandbox.to_owned() }
    }

    /// Opens an empty file, and says what it is to keep. One that was there keeps its owner.
    pub(super) async fn create(&self, target: &str, kept: FsAttributes) -> Result<(File, FsAttributes), Failure> {
        let there = |error: AgentClientError| inside(target, &error);
        let truncate = FsOpenOptions { write: true, create: true, truncate: true, ..FsOpenOptions::default() };
        let truncate = FsOpenOptions { mode: Some(0o600), ..truncate };
        if self.owner.is_none() {
            return Ok((self.files.open(target, truncate).await.map_err(there)?, kept));
        }
        let new = FsOpenOptions { create_new: true, ..truncate.clone() };
        match self.files.open(target, new).await {
            Err(error) if is_there(&error) => Ok((self.files.open(target, truncate).await.map_err(there)?, kept)),
            opened => Ok((opened.map_err(there)?, self.owned(kept))),
        }
    }

    /// Makes a directory, and says what it is to keep. One that was there keeps its owner and its mode.
    pub(super) async fn mkdir(&self, target: &str, kept: FsAttributes) -> Result<FsAttributes, Failure> {
        let is_new = self.files.lstat(target).await.is_err();
        self.files.mkdir(target, Some(0o700)).await.map_err(|error| inside(target, &error))?;
        Ok(if is_new { self.owned(kept) } else { FsAttributes { mode: None, ..kept } })
    }

    /// Sets what a directory keeps, once everything is in it.
    pub(super) async fn settle(&self, target: &str, kept: FsAttributes) -> Result<(), Failure> {
        let directory = self.files.open_dir(target).await.map_err(|error| inside(target, &error))?;
        directory.set_stat(kept).await.map_err(|error| inside(target, &error))
    }

    /// Makes a symbolic link, in place of a file or a link.
    pub(super) async fn symlink(&self, leads_to: &str, target: &str, modified: i64) -> Result<(), Failure> {
        let there = |error: AgentClientError| inside(target, &error);
        match self.files.symlink(leads_to, target).await {
            Err(error) if is_there(&error) => {
                self.files.remove(target).await.map_err(there)?;
                self.files.symlink(leads_to, target).await.map_err(there)?;
            }
            made => made.map_err(there)?,
        }
        let kept = self.owned(FsAttributes { mtime: Some(modified), ..FsAttributes::default() });
        self.files.set_stat(target, false, kept).await.map_err(there)
    }

    fn owned(&self, kept: FsAttributes) -> FsAttributes {
        match self.owner {
            Some(UidGid { user, group }) => FsAttributes { uid: Some(user), gid: Some(group), ..kept },
            None => kept,
        }
    }
}

fn is_there(error: &AgentClientError) -> bool {
    matches!(error, AgentClientError::File(error) if error.errno_name.as_deref() == Some("EEXIST"))
}
