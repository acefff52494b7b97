//! The queue of lines for a program's standard input.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::JoinHandle,
};

use super::ChildError;

/// How many bytes may be queued.
const MAX_QUEUED: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct ChildInput {
    queue: Option<UnboundedSender<Bytes>>,
    queued: Arc<AtomicUsize>,
    writer: JoinHandle<()>,
}

// === impl ChildInput ===

impl ChildInput {
    pub(super) fn new(pipe: pipe::Sender) -> Self {
        let (queue, lines) = mpsc::unbounded_channel();
        let queued = Arc::<AtomicUsize>::default();
        let writer = tokio::spawn(write(pipe, lines, queued.clone()));
        Self { queue: Some(queue), queued, writer }
    }

    pub(super) fn send(&self, line: &[u8]) -> Result<(), ChildError> {
        let queue = self.queue.as_ref().ok_or(ChildError::Closed)?;
        let length = line.len() + 1;
        let queued = self.queued.load(Ordering::Relaxed);
        if queued > 0 && queued.saturating_add(length) > MAX_QUEUED {
            return Err(ChildError::InputFull(queued));
        }
        let mut bytes = BytesMut::with_capacity(length);
        bytes.put_slice(line);
        bytes.put_u8(b'\n');
        self.queued.fetch_add(length, Ordering::Relaxed);
        queue.send(bytes.freeze()).map_err(|_| ChildError::Closed)
    }

    /// Closes the input after everything queued is written.
    pub(super) fn close(&mut self) {
        self.queue = None;
    }
}

impl Drop for ChildInput {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

async fn write(mut pipe: pipe::Sender, mut lines: UnboundedReceiver<Bytes>, queued: Arc<AtomicUsize>) {
    while let Some(line) = lines.recv().await {
        // The queue closes with this task, so the next sender gets an error.
        if pipe.write_all(&line).await.is_err() {
            return;
        }
        queued.fetch_sub(line.len(), Ordering::Relaxed);
    }
}
