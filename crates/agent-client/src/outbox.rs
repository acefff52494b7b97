//! What is sent: written at once where the connection takes it, queued where it does not.
//!
//! A sender writes under the lock, so that a round trip costs no change of tasks. What the connection does not take is
//! left to the writing task. A frame is never torn: dropping a future cannot stop half of it.

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

/// While more than this is queued, senders of data wait.
const HIGH_WATER: usize = 512 * 1024;
/// More than this is queued only for a peer that makes us answer and does not read the answers.
const LIMIT: usize = 32 * 1024 * 1024;
/// How many pieces one system call writes.
const PIECES: usize = 16;

/// The sending side of a connection.
pub(crate) struct Outbox {
    state: Mutex<State>,
    work: Notify,
    room: Notify,
}

struct State {
    io: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    queue: VecDeque<Bytes>,
    queued: usize,
    unflushed: bool,
    lost: Option<ConnectionLost>,
    /// The writing task, while it waits for the connection to take more.
    writer: Option<Waker>,
}

// === impl Outbox ===

impl Outbox {
    pub(crate) fn new(io: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        let state =
            State { io: Some(io), queue: VecDeque::new(), queued: 0, unflushed: false, lost: None, writer: None };
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

    /// Sends one frame in two parts. Never waits: who sends data waits for [`Self::room`] first.
    pub(crate) fn push(&self, head: &[u8], payload: Bytes) -> Result<(), ConnectionLost> {
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let result = state.push(head, payload);
        if let Err(lost) = &result {
            state.lose(lost.clone());
        }
        if result.is_err() || !state.is_idle() {
            self.work.notify_one();
        }
        result
    }

    /// Takes no more frames. What is queued is still written when the client itself closed.
    pub(crate) fn close(&self, lost: ConnectionLost) {
        self.lock().lose(lost);
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Drops the connection with all that is queued.
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

    /// Writes what is queued, again and again, until no more may be sent; returns why.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("queued", &self.lock().queued).finish_non_exhaustive()
    }
}

// === impl State ===

impl State {
    fn lose(&mut self, lost: ConnectionLost) {
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
            // Nobody waits for the connection to become writable, so there is no waker to displace: when it does not
            // take everything now, the writing task asks again with its own.
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
    async fn frames_come_out_whole_and_in_order_however_little_the_connection_takes() {
        let (mut theirs, ours) = tokio::io::duplex(7);
        let outbox = Outbox::new(Box::new(ours));
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
    async fn senders_wait_while_much_is_queued_and_no_longer() {
        let (mut theirs, ours) = tokio::io::duplex(1024);
        let outbox = Outbox::new(Box::new(ours));
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
    async fn a_peer_that_makes_us_answer_and_never_reads_is_given_up() {
        let (_theirs, ours) = tokio::io::duplex(64);
        let outbox = Outbox::new(Box::new(ours));
        let answers = async {
            // The writing task waits for the connection by now.
            tokio::task::yield_now().await;
            let answer = Bytes::from(vec![0; 1 << 20]);
            while outbox.push(b"", answer.clone()).is_ok() {}
        };
        let (lost, ()) = tokio::join!(outbox.write_queued(), answers);
        assert!(matches!(lost, ConnectionLost::Unread), "{lost}");
    }
}
