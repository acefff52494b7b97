//! File operations.

mod handle;
mod local;
mod read;
mod transfer;
mod write;

use carrel_protocol::MessageType;
use carrel_protocol::payload::{
    FsAttributes, FsEntry, FsFromTo, FsMkdir, FsOp, FsOpenFile, FsOpenOptions, FsPath, FsRemoveDir, FsRequest,
    FsResponse, FsResult, FsSetStat, FsStat, FsSymlink,
};

pub use self::handle::{Directory, File};
use self::handle::{OpenHandle, PendingFileOpen};
pub use self::read::ReadStream;
pub use self::write::WriteStream;
use crate::cancel::CancelMessage;
use crate::client::AgentClient;
use crate::connection::AgentConnection;
use crate::error::{AgentClientError, FileError, ProtocolViolation};
use crate::inbox::{FrameInbox, UNCREDITED};
use crate::link::FrameHandler;
use crate::reply::ParsedFrame;
use crate::session::ProtocolSession;

/// File operations in the sandbox.
#[derive(Clone, Debug)]
pub struct Files {
    client: AgentClient,
    user: Option<String>,
    no_symlinks: bool,
}

// === impl AgentClient ===

impl AgentClient {
    /// File operations in the sandbox.
    pub fn files(&self) -> Files {
        Files { client: self.clone(), user: None, no_symlinks: false }
    }
}

// === impl Files ===

impl Files {
    /// The same operations, where opening a file and creating one, a directory or a symlink are done as the given user: with
    /// that user's permissions, and owned by that user. The protocol has no user for other operations: the agent does them
    /// as itself.
    pub fn on_behalf_of(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The same operations without following symlinks in any component of a path. Applies to operations that stat,
    /// open, create or remove one entry. An agent that is too old fails with [`AgentClientError::FollowsSymlinks`] after it has
    /// executed the operation with links followed: probe it with a stat first.
    #[must_use]
    pub fn without_symlinks(mut self) -> Self {
        self.no_symlinks = true;
        self
    }

    /// Resolves a path to an absolute one without symlinks.
    pub async fn real_path(&self, path: impl Into<String>) -> Result<String, AgentClientError> {
        self.path_of(FsOp::RealPath(FsPath { path: path.into() })).await
    }

    /// The metadata of a path; follows symlinks.
    pub async fn stat(&self, path: impl Into<String>) -> Result<FsEntry, AgentClientError> {
        self.entry_of(FsOp::Stat(FsStat { path: path.into(), follow_symlink: true })).await
    }

    /// The metadata of a path; does not follow a symlink.
    pub async fn lstat(&self, path: impl Into<String>) -> Result<FsEntry, AgentClientError> {
        self.entry_of(FsOp::Stat(FsStat { path: path.into(), follow_symlink: false })).await
    }

    /// Sets attributes of a path.
    pub async fn set_stat(
        &self,
        path: impl Into<String>,
        follow_symlink: bool,
        attrs: FsAttributes,
    ) -> Result<(), AgentClientError> {
        self.done(FsOp::SetStat(FsSetStat { path: path.into(), follow_symlink, attrs })).await
    }

    /// The entries of a directory in one list; see [`Self::open_dir`] for large directories.
    pub async fn list(&self, path: impl Into<String>) -> Result<Vec<FsEntry>, AgentClientError> {
        let op = FsOp::List(FsPath { path: path.into() });
        self.call(op, |data| if let FsResult::List(entries) = data { Some(entries) } else { None }).await
    }

    /// The target of a symlink.
    pub async fn read_link(&self, path: impl Into<String>) -> Result<String, AgentClientError> {
        self.path_of(FsOp::ReadLink(FsPath { path: path.into() })).await
    }

    /// Creates a symlink at `link` that points to `target`.
    pub async fn symlink(&self, target: impl Into<String>, link: impl Into<String>) -> Result<(), AgentClientError> {
        let user = self.user.clone();
        self.done(FsOp::Symlink(FsSymlink { target: target.into(), link_path: link.into(), user })).await
    }

    /// Creates a directory with its parents.
    pub async fn mkdir(&self, path: impl Into<String>, mode: Option<u32>) -> Result<(), AgentClientError> {
        self.done(FsOp::Mkdir(FsMkdir { path: path.into(), mode, user: self.user.clone() })).await
    }

    /// Removes a file.
    pub async fn remove(&self, path: impl Into<String>) -> Result<(), AgentClientError> {
        self.done(FsOp::Remove(FsPath { path: path.into() })).await
    }

    /// Removes a directory: an empty one or, with `recursive`, with its content.
    pub async fn remove_dir(&self, path: impl Into<String>, recursive: bool) -> Result<(), AgentClientError> {
        self.done(FsOp::RemoveDir(FsRemoveDir { path: path.into(), recursive })).await
    }

    /// Copies a file.
    pub async fn copy(&self, src: impl Into<String>, dst: impl Into<String>) -> Result<(), AgentClientError> {
        self.done(FsOp::Copy(FsFromTo { src: src.into(), dst: dst.into() })).await
    }

    /// Renames a file or a directory.
    pub async fn rename(&self, src: impl Into<String>, dst: impl Into<String>) -> Result<(), AgentClientError> {
        self.done(FsOp::Rename(FsFromTo { src: src.into(), dst: dst.into() })).await
    }

    /// Opens a file. It stays open, on its connection, until the [`File`] and all its streams are dropped.
    pub async fn open(&self, path: impl Into<String>, options: FsOpenOptions) -> Result<File, AgentClientError> {
        let options = FsOpenOptions { user: options.user.or_else(|| self.user.clone()), ..options };
        self.handle_of(FsOp::OpenFile(FsOpenFile { path: path.into(), options })).await.map(File::new)
    }

    /// Opens a directory, to read its entries in batches.
    pub async fn open_dir(&self, path: impl Into<String>) -> Result<Directory, AgentClientError> {
        self.handle_of(FsOp::OpenDir(FsPath { path: path.into() })).await.map(Directory::new)
    }

    async fn path_of(&self, op: FsOp) -> Result<String, AgentClientError> {
        self.call(op, |data| if let FsResult::Path(path) = data { Some(path) } else { None }).await
    }

    async fn entry_of(&self, op: FsOp) -> Result<FsEntry, AgentClientError> {
        self.call(op, entry).await
    }

    async fn handle_of(&self, op: FsOp) -> Result<OpenHandle, AgentClientError> {
        let operation = op.tag();
        self.client.ensure_version_compat(MessageType::FsRequest)?;
        let (connection, id) = self.client.reserve().await?;
        let handler = PendingFileOpen::new(&connection.link);
        let session = connection.open(id, handler, &self.message(op), CancelMessage::Nothing).await?;
        let handle = expect_result(self.answer(&session, operation).await?, operation, |data| match data {
            FsResult::Handle(handle) => Some(handle),
            _ => None,
        })?;
        Ok(OpenHandle::new(&connection, handle))
    }

    async fn done(&self, op: FsOp) -> Result<(), AgentClientError> {
        let operation = op.tag();
        self.answer(&self.send(op).await?, operation).await.map(drop)
    }

    async fn call<T>(&self, op: FsOp, take: impl FnOnce(FsResult) -> Option<T>) -> Result<T, AgentClientError> {
        let operation = op.tag();
        expect_result(self.answer(&self.send(op).await?, operation).await?, operation, take)
    }

    async fn send(&self, op: FsOp) -> Result<ProtocolSession, AgentClientError> {
        self.client.open(FrameInbox::new(UNCREDITED), &self.message(op), CancelMessage::Nothing).await
    }

    fn message(&self, op: FsOp) -> FsRequest {
        FsRequest { op, bulk: None, no_symlinks: self.no_symlinks }
    }

    async fn answer<S: FrameHandler>(
        &self,
        session: &ProtocolSession<S>,
        operation: &'static str,
    ) -> Result<Option<FsResult>, AgentClientError> {
        let frame = session.next().await?;
        let response: FsResponse = ParsedFrame::parse(&frame)?.expect()?;
        if self.no_symlinks && !response.no_symlinks {
            return Err(AgentClientError::FollowsSymlinks);
        }
        succeeded(response, operation)
    }
}

/// The response to an operation without a stream.
async fn answer<S: FrameHandler>(
    session: &ProtocolSession<S>,
    operation: &'static str,
) -> Result<Option<FsResult>, AgentClientError> {
    let frame = session.next().await?;
    succeeded(ParsedFrame::parse(&frame)?.expect()?, operation)
}

/// An operation without a stream on a handle, hence on the connection of the handle.
async fn pinned(connection: &std::sync::Arc<AgentConnection>, op: FsOp) -> Result<Option<FsResult>, AgentClientError> {
    let operation = op.tag();
    let request = FsRequest { op, bulk: None, no_symlinks: false };
    answer(&connection.open_pinned(UNCREDITED, &request, CancelMessage::Nothing).await?, operation).await
}

fn succeeded(response: FsResponse, operation: &'static str) -> Result<Option<FsResult>, AgentClientError> {
    let FsResponse { ok, error, data, errno_name, .. } = response;
    if ok {
        return Ok(data);
    }
    let message = error.unwrap_or_else(|| "failed without an error message".to_owned());
    Err(FileError { operation, message, errno_name }.into())
}

fn expect_result<T>(
    data: Option<FsResult>,
    operation: &'static str,
    take: impl FnOnce(FsResult) -> Option<T>,
) -> Result<T, AgentClientError> {
    let found = data.as_ref().map_or("nothing", FsResult::tag);
    data.and_then(take).ok_or_else(|| ProtocolViolation::unexpected(operation, format!("result {found}")).into())
}

fn entry(data: FsResult) -> Option<FsEntry> {
    if let FsResult::Stat(entry) = data { Some(entry) } else { None }
}
