//! The sending side of a connection: writes directly if the connection is writable, otherwise queues.
//!
//! A sender writes under the lock, so that a round trip needs no task switch. The writing task sends the remainder.
//! Frames are never split: dropping a future cannot stop in the middle of one.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use crate::error::ConnectionLost;

/// The high-water mark: above it, senders of data wait.
const HIGH_WATER: usize = 512 * 1024;
/// The hard limit, exceeded only if a peer forces responses and does not read them.
const LIMIT: usize = 32 * 1024 * 1024;
/// The number of buffers per system call.
const PIECES: usize = 16;

/// The sending side of a connection.
pub(crate) struct FrameOutbox {
    state: Mutex<OutboxState>,
    work: Notify,
    room: Notify,
}

struct OutboxState {
    io: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    queue: VecDeque<Bytes>,
    queued: usize,
    unflushed: bool,
    lost: Option<ConnectionLost>,
    /// The waker of the writing task while it waits for the connection to become writable.
    writer: Option<Waker>,
}

// === impl FrameOutbox ===

impl FrameOutbox {
    pub(crate) fn new(io: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        let state =
            OutboxState { io: Some(io), queue: VecDeque::new(), queued: 0, unflushed: false, lost: None, writer: None };
        Self { state: Mutex::new(state), work: Notify::new(), room: Notify::new() }
    }

    /// Waits until data may be queued.
    pub(crate) async fn room(&self) {
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.lock().has_room() {
                return;
            }
            room.await;
        }
    }

    /// Sends one frame in two parts without waiting; senders of data wait for [`Self::room`] first.
    pub(crate) fn push(&self, head: &[u8], payload: Bytes) -> Result<(), ConnectionLost> {
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let result = state.push(head, payload);
        if let Err(lost) = &result {
            state.fail(lost.clone());
        }
        if result.is_err() || !state.is_idle() {
            self.work.notify_one();
        }
        result
    }

    /// Accepts no more frames. Queued frames are still written if the client itself closed.
    pub(crate) fn close(&self, lost: ConnectionLost) {
        self.lock().fail(lost);
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Closes the connection and drops its queue.
    pub(crate) fn abort(&self) {
        let mut state = self.lock();
        (state.io, state.queued) = (None, 0);
        state.queue.clear();
        drop(state);
        self.room.notify_waiters();
    }

    /// Whether nothing is queued.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().is_idle()
    }

    /// Writes queued frames until sending is over; returns the reason.
    pub(crate) async fn write_queued(&self) -> ConnectionLost {
        loop {
            if let Err(error) = std::future::poll_fn(|cx| self.poll_drain(cx)).await {
                return error.into();
            }
            if let Some(lost) = self.lock().lost.clone() {
                return lost;
            }
            self.work.notified().await;
        }
    }

    fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut state = self.lock();
            if state.lost.as_ref().is_some_and(|lost| !matches!(lost, ConnectionLost::Closed)) {
                return Poll::Ready(Ok(()));
            }
            state.writer = Some(cx.waker().clone());
            if state.queue.is_empty() {
                ready!(state.poll_flush(cx))?;
                return Poll::Ready(Ok(()));
            }
            ready!(state.poll_write_queue(cx))?;
            let has_room = state.has_room();
            drop(state);
            if has_room {
                self.room.notify_waiters();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for FrameOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameOutbox").field("queued", &self.lock().queued).finish_non_exhaustive()
    }
}

// === impl OutboxState ===

impl OutboxState {
    fn fail(&mut self, lost: ConnectionLost) {
        self.lost.get_or_insert(lost);
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    fn has_room(&self) -> bool {
        self.queued < HIGH_WATER || self.lost.is_some()
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.unflushed
    }

    fn push(&mut self, mut head: &[u8], mut payload: Bytes) -> Result<(), ConnectionLost> {
        if self.is_idle() {
            // The writing task is not waiting for the connection here, so no waker is displaced: if not everything is
            // written now, the writing task registers its own.
            let cx = &mut Context::from_waker(Waker::noop());
            while !(head.is_empty() && payload.is_empty()) {
                match self.poll_write(cx, &[IoSlice::new(head), IoSlice::new(&payload)]) {
                    Poll::Ready(written) => {
                        let written = written?;
                        let of_head = written.min(head.len());
                        head.advance(of_head);
                        payload.advance(written - of_head);
                    }
                    Poll::Pending => break,
                }
            }
            if head.is_empty() && payload.is_empty() {
                self.unflushed = true;
                if let Poll::Ready(flushed) = self.poll_flush(cx) {
                    flushed?;
                }
                return Ok(());
            }
        }
        for part in [Bytes::copy_from_slice(head), payload] {
            if !part.is_empty() {
                self.queued += part.len();
                self.queue.push_back(part);
            }
        }
        if self.queued > LIMIT { Err(ConnectionLost::Unread) } else { Ok(()) }
    }

    fn poll_write_queue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let queue = std::mem::take(&mut self.queue);
        let mut slices = [IoSlice::new(&[]); PIECES];
        let count = slices.iter_mut().zip(&queue).map(|(slot, part)| *slot = IoSlice::new(part)).count();
        let written = self.poll_write(cx, slices.get(..count).unwrap_or_default());
        self.queue = queue;
        let mut written = ready!(written)?;
        self.queued = self.queued.saturating_sub(written);
        while let Some(part) = self.queue.front_mut() {
            if written < part.len() {
                part.advance(written);
                break;
            }
            written -= part.len();
            self.queue.pop_front();
        }
        self.unflushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let io = self.io.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        match ready!(Pin::new(io).poll_write_vectored(cx, slices))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let (true, Some(io)) = (self.unflushed, &mut self.io) {
            ready!(Pin::new(io).poll_flush(cx))?;
        }
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn frames_are_written_completely_and_in_order_with_short_writes() {
        let (mut theirs, ours) = tokio::io::duplex(7);
        let outbox = FrameOutbox::new(Box::new(ours));
        let mut expected = Vec::new();
        for byte in 0..100u8 {
            let payload = vec![byte; usize::from(byte) * 3];
            expected.extend([&b"head"[..], &payload].concat());
            outbox.push(b"head", payload.into()).unwrap();
        }
        outbox.close(ConnectionLost::Closed);
        assert!(matches!(outbox.push(b"late", Bytes::new()), Err(ConnectionLost::Closed)));
        let write = async {
            assert!(matches!(outbox.write_queued().await, ConnectionLost::Closed));
            outbox.abort();
        };
        let mut received = Vec::new();
        let (read, ()) = tokio::join!(theirs.read_to_end(&mut received), write);
        read.unwrap();
        assert_eq!(received, expected);
    }

    #[tokio::test]
    async fn senders_wait_while_the_queue_is_above_the_high_water_mark() {
        let (mut theirs, ours) = tokio::io::duplex(1024);
        let outbox = FrameOutbox::new(Box::new(ours));
        outbox.room().await;
        outbox.push(b"", vec![0; HIGH_WATER + 1024].into()).unwrap();
        let waits = pin!(outbox.room()).poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert!(waits);
        let mut buffer = [0; 1024];
        let read = async {
            theirs.read_exact(&mut buffer).await.unwrap();
            outbox.room().await;
            outbox.close(ConnectionLost::Ended);
        };
        let (lost, ()) = tokio::join!(outbox.write_queued(), read);
        assert!(matches!(lost, ConnectionLost::Ended), "{lost}");
    }

    #[tokio::test]
    async fn a_peer_that_forces_responses_and_never_reads_is_disconnected() {
        let (_theirs, ours) = tokio::io::duplex(64);
        let outbox = FrameOutbox::new(Box::new(ours));
        let answers = async {
            // By now the writing task waits for the connection.
            tokio::task::yield_now().await;
            let answer = Bytes::from(vec![0; 1 << 20]);
            while outbox.push(b"", answer.clone()).is_ok() {}
        };
        let (lost, ()) = tokio::join!(outbox.write_queued(), answers);
        assert!(matches!(lost, ConnectionLost::Unread), "{lost}");
    }
}
