//! What waits to be read by a program.

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

/// How many bytes may wait.
const MOST: usize = 64 * 1024 * 1024;

/// The queue before a program's standard input.
#[derive(Debug)]
pub(super) struct Input {
    queue: Option<UnboundedSender<Bytes>>,
    waiting: Arc<AtomicUsize>,
    writer: JoinHandle<()>,
}

// === impl Input ===

impl Input {
    pub(super) fn new(pipe: pipe::Sender) -> Self {
        let (queue, lines) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let writer = tokio::spawn(write(pipe, lines, waiting.clone()));
        Self { queue: Some(queue), waiting, writer }
    }

    pub(super) fn send(&self, line: &[u8]) -> Result<(), ChildError> {
        let queue = self.queue.as_ref().ok_or(ChildError::Closed)?;
        let length = line.len() + 1;
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > 0 && waiting.saturating_add(length) > MOST {
            return Err(ChildError::Stuck(waiting));
        }
        let mut bytes = BytesMut::with_capacity(length);
        bytes.put_slice(line);
        bytes.put_u8(b'\n');
        self.waiting.fetch_add(length, Ordering::Relaxed);
        queue.send(bytes.freeze()).map_err(|_| ChildError::Closed)
    }

    /// Ends the input behind what waits.
    pub(super) fn close(&mut self) {
        self.queue = None;
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

async fn write(mut pipe: pipe::Sender, mut lines: UnboundedReceiver<Bytes>, waiting: Arc<AtomicUsize>) {
    while let Some(line) = lines.recv().await {
        // Whoever sends the next line learns of it: the queue is gone with this task.
        if pipe.write_all(&line).await.is_err() {
            return;
        }
        waiting.fetch_sub(line.len(), Ordering::Relaxed);
    }
}
