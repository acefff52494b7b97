//! Open files and directories.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use carrel_protocol::payload::{
    FsAttributes, FsEntry, FsFSetStat, FsHandle, FsOp, FsReadDir, FsRequest, FsResponse, FsResult,
};

use super::{ReadStream, WriteStream, entry, expect_result, pinned};
use crate::bulk;
use crate::connection::AgentConnection;
use crate::error::AgentClientError;
use crate::inbox::{FrameInbox, UNCREDITED};
use crate::link::{AgentLink, FrameHandler};
use crate::raw::RawFrame;
use crate::reply::ParsedFrame;

/// An open file. On drop it is closed once its streams are dropped too.
#[derive(Debug)]
pub struct File {
    open: Arc<OpenHandle>,
}

/// An open directory, closed on drop.
#[derive(Debug)]
pub struct Directory {
    open: OpenHandle,
}

/// A handle of the agent. It belongs to the connection on which it was opened.
#[derive(Debug)]
pub(super) struct OpenHandle {
    pub(super) connection: Arc<AgentConnection>,
    pub(super) handle: u64,
    closed: AtomicBool,
}

/// Waits for the response to an open request. If it is dropped first, the handle is closed when the response arrives.
#[derive(Debug)]
pub(super) struct PendingFileOpen {
    inbox: FrameInbox,
    link: Weak<AgentLink>,
    abandoned: AtomicBool,
}

// === impl File ===

impl File {
    pub(super) fn new(open: OpenHandle) -> Self {
        Self { open: Arc::new(open) }
    }

    /// Reads `len` bytes from `offset`, or to the end.
    pub async fn read(&self, offset: u64, len: Option<u64>) -> Result<ReadStream, AgentClientError> {
        ReadStream::open(Arc::clone(&self.open), offset, len, bulk::OFFER).await
    }

    /// Reads with a smaller window than the default, which bounds the memory of the transfer and its throughput.
    pub async fn read_within(
        &self,
        window: u32,
        offset: u64,
        len: Option<u64>,
    ) -> Result<ReadStream, AgentClientError> {
        ReadStream::open(Arc::clone(&self.open), offset, len, bulk::offer_with_window(window)).await
    }

    /// Writes from `offset` on.
    pub async fn write(&self, offset: u64) -> Result<WriteStream, AgentClientError> {
        WriteStream::open(Arc::clone(&self.open), offset).await
    }

    /// The metadata of the file.
    pub async fn stat(&self) -> Result<FsEntry, AgentClientError> {
        self.open.stat().await
    }

    /// Sets attributes of the file.
    pub async fn set_stat(&self, attrs: FsAttributes) -> Result<(), AgentClientError> {
        self.open.set_stat(attrs).await
    }

    /// Closes the file and waits for the response. Streams that are still open fail.
    pub async fn close(self) -> Result<(), AgentClientError> {
        self.open.close().await
    }
}

// === impl Directory ===

impl Directory {
    pub(super) fn new(open: OpenHandle) -> Self {
        Self { open }
    }

    /// The next entries, at most `limit`; empty at the end.
    pub async fn read(&self, limit: Option<u32>) -> Result<Vec<FsEntry>, AgentClientError> {
        let op = FsOp::ReadDir(FsReadDir { handle: self.open.handle, limit });
        let operation = op.tag();
        let data = pinned(&self.open.connection, op).await?;
        expect_result(data, operation, |data| if let FsResult::List(entries) = data { Some(entries) } else { None })
    }

    /// The metadata of the directory.
    pub async fn stat(&self) -> Result<FsEntry, AgentClientError> {
        self.open.stat().await
    }

    /// Sets attributes of the directory.
    pub async fn set_stat(&self, attrs: FsAttributes) -> Result<(), AgentClientError> {
        self.open.set_stat(attrs).await
    }

    /// Closes the directory and waits for the response.
    pub async fn close(self) -> Result<(), AgentClientError> {
        self.open.close().await
    }
}

// === impl OpenHandle ===

impl OpenHandle {
    pub(super) fn new(connection: &Arc<AgentConnection>, handle: u64) -> Self {
        Self { connection: Arc::clone(connection), handle, closed: AtomicBool::new(false) }
    }

    async fn stat(&self) -> Result<FsEntry, AgentClientError> {
        let op = FsOp::FStat(FsHandle { handle: self.handle });
        let operation = op.tag();
        expect_result(pinned(&self.connection, op).await?, operation, entry)
    }

    async fn set_stat(&self, attrs: FsAttributes) -> Result<(), AgentClientError> {
        pinned(&self.connection, FsOp::FSetStat(FsFSetStat { handle: self.handle, attrs })).await.map(drop)
    }

    async fn close(&self) -> Result<(), AgentClientError> {
        self.closed.store(true, Ordering::Relaxed);
        pinned(&self.connection, FsOp::CloseHandle(FsHandle { handle: self.handle })).await.map(drop)
    }
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        if !*self.closed.get_mut() {
            close_orphaned(&self.connection.link, self.handle);
        }
    }
}

/// Closes a handle without waiting for the response. Best effort: the agent closes the handles of a lost connection.
fn close_orphaned(link: &AgentLink, handle: u64) {
    if let Some(id) = link.allocate(0) {
        let op = FsOp::CloseHandle(FsHandle { handle });
        let _sent = link.send(id, &FsRequest { op, bulk: None, no_symlinks: false });
    }
}

// === impl PendingFileOpen ===

impl PendingFileOpen {
    pub(super) fn new(link: &Arc<AgentLink>) -> Self {
        Self { inbox: FrameInbox::new(UNCREDITED), link: Arc::downgrade(link), abandoned: AtomicBool::new(false) }
    }
}

impl FrameHandler for PendingFileOpen {
    fn inbox(&self) -> &FrameInbox {
        &self.inbox
    }

    fn deliver(&self, _: &AgentLink, frame: RawFrame) {
        if frame.is_terminal() || !self.abandoned.load(Ordering::Relaxed) {
            self.inbox.push(frame);
        }
    }

    fn abandon(&self, _: &AgentLink) -> bool {
        self.abandoned.store(true, Ordering::Relaxed);
        true
    }
}

impl Drop for PendingFileOpen {
    fn drop(&mut self) {
        let Some(link) = self.link.upgrade() else { return };
        while let Some(Ok(frame)) = self.inbox.try_pop() {
            let response = ParsedFrame::parse(&frame).ok().and_then(|message| message.payload::<FsResponse>().ok());
            if let Some(FsResponse { ok: true, data: Some(FsResult::Handle(handle)), .. }) = response {
                close_orphaned(&link, handle);
            }
        }
    }
}
