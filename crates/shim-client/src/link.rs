//! A connection to a shim: sends and receives whole frames, with cancel-safe waits.

mod receiver;

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use carrel_protocol::frame::InvalidFrameLength;
use carrel_protocol::{DecodeError, EncodeError, Envelope, Frame};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;

pub(crate) use self::receiver::FrameReceiver;
use crate::messages::{PortsPublish, SandboxEnd, ShimFailure};
use crate::wire::{self, ShimMessage};

/// The connection. Frames are queued completely; the reader flushes the queue.
#[derive(Debug)]
pub(crate) struct ShimLink {
    stream: UnixStream,
    outbox: Mutex<LinkOutbox>,
    /// Notifies about newly queued frames.
    queued: Notify,
}

/// Why no further frame can be received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("connection is closed")]
    Closed,
    #[error(transparent)]
    Broken(#[from] InvalidFrameLength),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why a message with descriptors could not be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug, Default)]
struct LinkOutbox {
    bytes: Vec<u8>,
    sent: usize,
    /// Whether the peer no longer reads.
    refused: bool,
}

/// The id after `last`; 0 is reserved.
pub(crate) fn id_after(last: u32) -> u32 {
    last.wrapping_add(1).max(1)
}

/// The end of the sandbox, if this frame reports it.
pub(crate) fn decode_end(frame: &Frame<'_>) -> Result<Option<SandboxEnd>, DecodeError> {
    if frame.id != 0 {
        return Ok(None);
    }
    wire::decode(&Envelope::parse(frame.body)?).transpose()
}

/// The failure, if this response is one.
pub(crate) fn refusal(envelope: &Envelope<'_>) -> Result<Option<ShimFailure>, DecodeError> {
    wire::decode(envelope).transpose()
}

/// The error for an unexpected message.
pub(crate) fn unexpected(envelope: &Envelope<'_>) -> DecodeError {
    DecodeError::unknown("message", &envelope.type_name)
}

// === impl ShimLink ===

impl ShimLink {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, outbox: Mutex::default(), queued: Notify::new() }
    }

    /// Queues a message and flushes without blocking.
    pub(crate) fn send<'m, M: ShimMessage<'m>>(&self, version: u8, id: u32, message: &M) -> Result<(), EncodeError> {
        let mut outbox = self.lock();
        outbox.compact();
        wire::encode(&mut outbox.bytes, version, id, message)?;
        // Connection errors are reported by the reader, which retries.
        if !outbox.flush(&self.stream).unwrap_or(false) {
            self.queued.notify_one();
        }
        Ok(())
    }

    /// Sends a message after everything that is queued, with descriptors attached to its first byte.
    pub(crate) async fn send_with<'m, M: ShimMessage<'m>>(
        &self,
        version: u8,
        id: u32,
        message: &M,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), SendError> {
        let mut frame = Vec::new();
        wire::encode(&mut frame, version, id, message)?;
        loop {
            self.stream.writable().await?;
            let mut outbox = self.lock();
            if !outbox.flush(&self.stream)? {
                continue;
            }
            match self.stream.try_io(Interest::WRITABLE, || transmit(&self.stream, &frame, descriptors)) {
                Ok(sent) => {
                    outbox.bytes.extend_from_slice(frame.get(sent..).unwrap_or_default());
                    self.queued.notify_one();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Another handle of the connection.
    pub(crate) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.stream.as_fd().try_clone_to_owned()
    }

    /// Shuts the connection down for every holder.
    pub(crate) fn shut_down(&self) {
        let _closed = rustix::net::shutdown(&self.stream, Shutdown::Both);
    }

    /// Flushes without blocking; returns whether the queue is empty.
    fn flush(&self) -> io::Result<bool> {
        self.lock().flush(&self.stream)
    }

    /// Reads what is available, with descriptors if requested.
    fn read(&self, room: &mut [u8], descriptors: Option<&mut Vec<OwnedFd>>) -> io::Result<usize> {
        match descriptors {
            None => self.stream.try_read(room),
            Some(descriptors) => self.stream.try_io(Interest::READABLE, || receive(&self.stream, room, descriptors)),
        }
    }

    /// Waits until the connection may be readable or writable.
    async fn ready(&self, flushed: bool) -> io::Result<()> {
        let interest = if flushed { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
        let mut ready = pin!(self.stream.ready(interest));
        let mut queued = pin!(self.queued.notified());
        poll_fn(|cx| match ready.as_mut().poll(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map(drop)),
            Poll::Pending => queued.as_mut().poll(cx).map(Ok),
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, LinkOutbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl LinkOutbox ===

impl LinkOutbox {
    fn flush(&mut self, stream: &UnixStream) -> io::Result<bool> {
        while self.sent < self.bytes.len() && !self.refused {
            match stream.try_write(self.bytes.get(self.sent..).unwrap_or_default()) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // The peer may have sent a reason before it closed: that is still readable.
                Err(error) if is_disconnected(&error) => self.refused = true,
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Compacts the queue when most of it is sent, so that a queue that never empties does not grow.
    fn compact(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

fn is_disconnected(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected)
}

fn receive(stream: &UnixStream, room: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(room)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(received.bytes)
}

fn transmit(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PortsPublish::MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::messages::JobWrite;

    #[tokio::test]
    async fn a_queue_that_never_empties_keeps_its_order_and_does_not_grow() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        // Small reads, so that the queue is never empty.
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 8192).unwrap();
        let link = ShimLink::new(ours);
        let unsent = || {
            let outbox = link.lock();
            outbox.bytes.len() - outbox.sent
        };
        let sending = async {
            let mut peak_kept = 0;
            for id in 1..=300 {
                let message = JobWrite { job: "job".into(), data: vec![7; 30_000].into(), offset: None };
                link.send(1, id, &message).unwrap();
                peak_kept = peak_kept.max(link.lock().bytes.len());
                while unsent() > 100_000 {
                    link.stream.writable().await.unwrap();
                    link.flush().unwrap();
                }
            }
            while !link.flush().unwrap() {
                link.stream.writable().await.unwrap();
            }
            link.shut_down();
            peak_kept
        };
        let mut arrived = Vec::new();
        let (peak_kept, read) = tokio::join!(sending, theirs.read_to_end(&mut arrived));
        read.unwrap();
        assert!(peak_kept < 500_000, "{peak_kept}");
        let mut rest = &*arrived;
        for id in 1..=300 {
            let (frame, behind) = Frame::split(rest).unwrap().unwrap();
            assert_eq!(frame.id, id);
            Envelope::parse(frame.body).unwrap();
            rest = behind;
        }
        assert!(rest.is_empty());
    }
}
