//! Files of the sandbox.

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
use self::handle::{LateHandle, OpenHandle};
pub use self::read::ReadStream;
pub use self::write::WriteStream;
use crate::cancel::Cancel;
use crate::client::AgentClient;
use crate::connection::Connection;
use crate::error::{Error, FileError, ProtocolViolation};
use crate::inbox::{Inbox, UNCREDITED};
use crate::link::Sink;
use crate::reply::Message;
use crate::session::Session;

/// Operations on files of the sandbox.
#[derive(Clone, Debug)]
pub struct Files {
    client: AgentClient,
    user: Option<String>,
    no_symlinks: bool,
}

// === impl AgentClient ===

impl AgentClient {
    /// Operations on files of the sandbox.
    pub fn files(&self) -> Files {
        Files { client: self.clone(), user: None, no_symlinks: false }
    }
}

// === impl Files ===

impl Files {
    /// The same operations, with everything that is created owned by a user.
    pub fn on_behalf_of(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The same operations, with no symbolic link followed in any path: only those that look at, open, make or remove one
    /// entry. An agent that is too old to do so fails with [`Error::FollowsSymlinks`], after it did it with links: ask it to
    /// look at something first.
    #[must_use]
    pub fn without_symlinks(mut self) -> Self {
        self.no_symlinks = true;
        self
    }

    /// The absolute path without symbolic links.
    pub async fn real_path(&self, path: impl Into<String>) -> Result<String, Error> {
        self.path_of(FsOp::RealPath(FsPath { path: path.into() })).await
    }

    /// What is known of a path; of the target of a symbolic link.
    pub async fn stat(&self, path: impl Into<String>) -> Result<FsEntry, Error> {
        self.entry_of(FsOp::Stat(FsStat { path: path.into(), follow_symlink: true })).await
    }

    /// What is known of a path; of a symbolic link itself.
    pub async fn lstat(&self, path: impl Into<String>) -> Result<FsEntry, Error> {
        self.entry_of(FsOp::Stat(FsStat { path: path.into(), follow_symlink: false })).await
    }

    /// Sets attributes of a path.
    pub async fn set_stat(
        &self,
        path: impl Into<String>,
        follow_symlink: bool,
        attrs: FsAttributes,
    ) -> Result<(), Error> {
        self.done(FsOp::SetStat(FsSetStat { path: path.into(), follow_symlink, attrs })).await
    }

    /// The entries of a directory, all at once; see [`Self::open_dir`] for large ones.
    pub async fn list(&self, path: impl Into<String>) -> Result<Vec<FsEntry>, Error> {
        let op = FsOp::List(FsPath { path: path.into() });
        self.call(op, |data| if let FsResult::List(entries) = data { Some(entries) } else { None }).await
    }

    /// What a symbolic link points to.
    pub async fn read_link(&self, path: impl Into<String>) -> Result<String, Error> {
        self.path_of(FsOp::ReadLink(FsPath { path: path.into() })).await
    }

    /// Makes a symbolic link at `link` that points to `target`.
    pub async fn symlink(&self, target: impl Into<String>, link: impl Into<String>) -> Result<(), Error> {
        let user = self.user.clone();
        self.done(FsOp::Symlink(FsSymlink { target: target.into(), link_path: link.into(), user })).await
    }

    /// Makes a directory with its parents.
    pub async fn mkdir(&self, path: impl Into<String>, mode: Option<u32>) -> Result<(), Error> {
        self.done(FsOp::Mkdir(FsMkdir { path: path.into(), mode, user: self.user.clone() })).await
    }

    /// Removes a file.
    pub async fn remove(&self, path: impl Into<String>) -> Result<(), Error> {
        self.done(FsOp::Remove(FsPath { path: path.into() })).await
    }

    /// Removes a directory: an empty one or, if so asked, with all that is in it.
    pub async fn remove_dir(&self, path: impl Into<String>, recursive: bool) -> Result<(), Error> {
        self.done(FsOp::RemoveDir(FsRemoveDir { path: path.into(), recursive })).await
    }

    /// Copies a file.
    pub async fn copy(&self, src: impl Into<String>, dst: impl Into<String>) -> Result<(), Error> {
        self.done(FsOp::Copy(FsFromTo { src: src.into(), dst: dst.into() })).await
    }

    /// Renames.
    pub async fn rename(&self, src: impl Into<String>, dst: impl Into<String>) -> Result<(), Error> {
        self.done(FsOp::Rename(FsFromTo { src: src.into(), dst: dst.into() })).await
    }

    /// Opens a file. It stays open, on its connection, until the [`File`] and every stream on it is dropped.
    pub async fn open(&self, path: impl Into<String>, options: FsOpenOptions) -> Result<File, Error> {
        let options = FsOpenOptions { user: options.user.or_else(|| self.user.clone()), ..options };
        self.handle_of(FsOp::OpenFile(FsOpenFile { path: path.into(), options })).await.map(File::new)
    }

    /// Opens a directory, to read its entries some at a time.
    pub async fn open_dir(&self, path: impl Into<String>) -> Result<Directory, Error> {
        self.handle_of(FsOp::OpenDir(FsPath { path: path.into() })).await.map(Directory::new)
    }

    async fn path_of(&self, op: FsOp) -> Result<String, Error> {
        self.call(op, |data| if let FsResult::Path(path) = data { Some(path) } else { None }).await
    }

    async fn entry_of(&self, op: FsOp) -> Result<FsEntry, Error> {
        self.call(op, entry).await
    }

    async fn handle_of(&self, op: FsOp) -> Result<OpenHandle, Error> {
        let operation = op.tag();
        self.client.ensure_version_compat(MessageType::FsRequest)?;
        let (connection, id) = self.client.reserve().await?;
        let sink = LateHandle::new(&connection.link);
        let session = connection.open(id, sink, &self.asked(op), Cancel::Nothing).await?;
        let handle = yielded(self.answer(&session, operation).await?, operation, |data| match data {
            FsResult::Handle(handle) => Some(handle),
            _ => None,
        })?;
        Ok(OpenHandle::new(&connection, handle))
    }

    async fn done(&self, op: FsOp) -> Result<(), Error> {
        let operation = op.tag();
        self.answer(&self.request(op).await?, operation).await.map(drop)
    }

    async fn call<T>(&self, op: FsOp, take: impl FnOnce(FsResult) -> Option<T>) -> Result<T, Error> {
        let operation = op.tag();
        yielded(self.answer(&self.request(op).await?, operation).await?, operation, take)
    }

    async fn request(&self, op: FsOp) -> Result<Session, Error> {
        self.client.open(Inbox::new(UNCREDITED), &self.asked(op), Cancel::Nothing).await
    }

    fn asked(&self, op: FsOp) -> FsRequest {
        FsRequest { op, bulk: None, no_symlinks: self.no_symlinks }
    }

    async fn answer<S: Sink>(&self, session: &Session<S>, operation: &'static str) -> Result<Option<FsResult>, Error> {
        let frame = session.next().await?;
        let response: FsResponse = Message::parse(&frame)?.expect()?;
        if self.no_symlinks && !response.no_symlinks {
            return Err(Error::FollowsSymlinks);
        }
        succeeded(response, operation)
    }
}

/// The one answer to an operation without a stream.
async fn answer<S: Sink>(session: &Session<S>, operation: &'static str) -> Result<Option<FsResult>, Error> {
    let frame = session.next().await?;
    succeeded(Message::parse(&frame)?.expect()?, operation)
}

/// An operation without a stream on something open, hence on its very connection.
async fn pinned(connection: &std::sync::Arc<Connection>, op: FsOp) -> Result<Option<FsResult>, Error> {
    let operation = op.tag();
    let request = FsRequest { op, bulk: None, no_symlinks: false };
    answer(&connection.open_pinned(UNCREDITED, &request, Cancel::Nothing).await?, operation).await
}

fn succeeded(response: FsResponse, operation: &'static str) -> Result<Option<FsResult>, Error> {
    let FsResponse { ok, error, data, errno_name, .. } = response;
    if ok {
        return Ok(data);
    }
    let message = error.unwrap_or_else(|| "failed without a reason".to_owned());
    Err(FileError { operation, message, errno_name }.into())
}

fn yielded<T>(
    data: Option<FsResult>,
    operation: &'static str,
    take: impl FnOnce(FsResult) -> Option<T>,
) -> Result<T, Error> {
    let found = data.as_ref().map_or("nothing", FsResult::tag);
    data.and_then(take).ok_or_else(|| ProtocolViolation::unexpected(operation, format!("result {found}")).into())
}

fn entry(data: FsResult) -> Option<FsEntry> {
    if let FsResult::Stat(entry) = data { Some(entry) } else { None }
}
