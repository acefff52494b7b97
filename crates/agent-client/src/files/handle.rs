//! Open files and directories.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use carrel_protocol::payload::{
    FsAttributes, FsEntry, FsFSetStat, FsHandle, FsOp, FsReadDir, FsRequest, FsResponse, FsResult,
};

use super::{ReadStream, WriteStream, entry, pinned, yielded};
use crate::bulk;
use crate::connection::Connection;
use crate::error::Error;
use crate::inbox::{Inbox, UNCREDITED};
use crate::link::{Link, Sink};
use crate::raw::RawFrame;
use crate::reply::Message;

/// An open file. Dropped, it is closed once the streams on it are gone too.
#[derive(Debug)]
pub struct File {
    open: Arc<OpenHandle>,
}

/// An open directory. Dropped, it is closed.
#[derive(Debug)]
pub struct Directory {
    open: OpenHandle,
}

/// What an agent has open for this client. It belongs to the connection on which it was opened.
#[derive(Debug)]
pub(super) struct OpenHandle {
    pub(super) connection: Arc<Connection>,
    pub(super) handle: u64,
    closed: AtomicBool,
}

/// Waits for something to be opened. What nobody took when this is dropped, in whatever order things happened, is
/// closed again.
#[derive(Debug)]
pub(super) struct LateHandle {
    inbox: Inbox,
    link: Weak<Link>,
    abandoned: AtomicBool,
}

// === impl File ===

impl File {
    pub(super) fn new(open: OpenHandle) -> Self {
        Self { open: Arc::new(open) }
    }

    /// Reads from `offset`, `len` bytes or to the end.
    pub async fn read(&self, offset: u64, len: Option<u64>) -> Result<ReadStream, Error> {
        ReadStream::open(Arc::clone(&self.open), offset, len, bulk::OFFER).await
    }

    /// The same, with no more than a window waiting here for whoever reads; slower than with the usual one.
    pub async fn read_within(&self, window: u32, offset: u64, len: Option<u64>) -> Result<ReadStream, Error> {
        ReadStream::open(Arc::clone(&self.open), offset, len, bulk::offer_within(window)).await
    }

    /// Writes from `offset` on.
    pub async fn write(&self, offset: u64) -> Result<WriteStream, Error> {
        WriteStream::open(Arc::clone(&self.open), offset).await
    }

    /// What is known of the file.
    pub async fn stat(&self) -> Result<FsEntry, Error> {
        self.open.stat().await
    }

    /// Sets attributes of the file.
    pub async fn set_stat(&self, attrs: FsAttributes) -> Result<(), Error> {
        self.open.set_stat(attrs).await
    }

    /// Closes the file and waits until it is closed. A stream that is still read or written fails.
    pub async fn close(self) -> Result<(), Error> {
        self.open.close().await
    }
}

// === impl Directory ===

impl Directory {
    pub(super) fn new(open: OpenHandle) -> Self {
        Self { open }
    }

    /// The next entries, at most `limit` of them; none at the end.
    pub async fn read(&self, limit: Option<u32>) -> Result<Vec<FsEntry>, Error> {
        let op = FsOp::ReadDir(FsReadDir { handle: self.open.handle, limit });
        let operation = op.tag();
        let data = pinned(&self.open.connection, op).await?;
        yielded(data, operation, |data| if let FsResult::List(entries) = data { Some(entries) } else { None })
    }

    /// What is known of the directory.
    pub async fn stat(&self) -> Result<FsEntry, Error> {
        self.open.stat().await
    }

    /// Sets attributes of the directory.
    pub async fn set_stat(&self, attrs: FsAttributes) -> Result<(), Error> {
        self.open.set_stat(attrs).await
    }

    /// Closes the directory and waits until it is closed.
    pub async fn close(self) -> Result<(), Error> {
        self.open.close().await
    }
}

// === impl OpenHandle ===

impl OpenHandle {
    pub(super) fn new(connection: &Arc<Connection>, handle: u64) -> Self {
        Self { connection: Arc::clone(connection), handle, closed: AtomicBool::new(false) }
    }

    async fn stat(&self) -> Result<FsEntry, Error> {
        let op = FsOp::FStat(FsHandle { handle: self.handle });
        let operation = op.tag();
        yielded(pinned(&self.connection, op).await?, operation, entry)
    }

    async fn set_stat(&self, attrs: FsAttributes) -> Result<(), Error> {
        pinned(&self.connection, FsOp::FSetStat(FsFSetStat { handle: self.handle, attrs })).await.map(drop)
    }

    async fn close(&self) -> Result<(), Error> {
        self.closed.store(true, Ordering::Relaxed);
        pinned(&self.connection, FsOp::CloseHandle(FsHandle { handle: self.handle })).await.map(drop)
    }
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        if !*self.closed.get_mut() {
            close_unasked(&self.connection.link, self.handle);
        }
    }
}

/// Closes a handle without waiting for the answer. Best effort: the agent closes what a connection leaves open.
fn close_unasked(link: &Link, handle: u64) {
    if let Some(id) = link.allocate(0) {
        let op = FsOp::CloseHandle(FsHandle { handle });
        let _sent = link.send(id, &FsRequest { op, bulk: None, no_symlinks: false });
    }
}

// === impl LateHandle ===

impl LateHandle {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self { inbox: Inbox::new(UNCREDITED), link: Arc::downgrade(link), abandoned: AtomicBool::new(false) }
    }
}

impl Sink for LateHandle {
    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn deliver(&self, _: &Link, frame: RawFrame) {
        if frame.is_terminal() || !self.abandoned.load(Ordering::Relaxed) {
            self.inbox.push(frame);
        }
    }

    fn abandon(&self, _: &Link) -> bool {
        self.abandoned.store(true, Ordering::Relaxed);
        true
    }
}

impl Drop for LateHandle {
    fn drop(&mut self) {
        let Some(link) = self.link.upgrade() else { return };
        while let Some(Ok(frame)) = self.inbox.try_pop() {
            let response = Message::parse(&frame).ok().and_then(|message| message.payload::<FsResponse>().ok());
            if let Some(FsResponse { ok: true, data: Some(FsResult::Handle(handle)), .. }) = response {
                close_unasked(&link, handle);
            }
        }
    }
}
