//! The buffers of one peer.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use carrel_protocol::codec::FramePrefix;
use carrel_protocol::frame::{InvalidFrameLength, PREFIX_SIZE};
use carrel_protocol::{CorrelationIdRange, Frame, Generation, Header};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use crate::poll::retry;

/// Sessions produce data only while fewer bytes than this are queued.
const OUTGOING_ROOM: usize = 512 * 1024;
/// Requests are processed only while fewer bytes than this are queued: each may add a response.
const OUTGOING_LIMIT: usize = 1024 * 1024;
/// The read buffer while frames are small.
const READ_SIZE: usize = 64 * 1024;
/// The read buffer while frames are large.
const READ_SIZE_MAX: usize = 1024 * 1024;
/// The kernel's send buffer. A sender is woken when three quarters of it are empty: with the default size, the reader
/// would be idle by the time the sender runs.
const SEND_BUFFER: usize = 1024 * 1024;
/// The minimum free space for a read.
const READ_LEAST: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct PeerConnection {
    incoming: OwnedFd,
    outgoing: OwnedFd,
    /// The ids it may use.
    pub(crate) ids: CorrelationIdRange,
    /// The generation of the connection: the announced one, or a higher one after `carrel.hello`.
    pub(crate) generation: Generation,
    /// The generation of its last message, for responses to messages that cannot be parsed.
    pub(crate) peer: Generation,
    /// Whether it may be readable.
    pub(crate) readable: bool,
    /// Whether it may be writable.
    pub(crate) writable: bool,
    /// Whether the peer shut down sending.
    pub(crate) ended: bool,
    /// Whether the peer is disconnected.
    pub(crate) hung_up: bool,
    inbox: ReceiveBuffer,
    outbox: VecDeque<OutgoingChunk>,
    outgoing_bytes: usize,
}

/// Bytes to send, with space in front for the frame prefix.
#[derive(Debug)]
pub(crate) struct OutgoingChunk {
    bytes: Vec<u8>,
    start: usize,
}

/// Received bytes that are not yet consumed as frames.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
    read_size: usize,
}

// === impl OutgoingChunk ===

impl OutgoingChunk {
    /// A chunk with capacity for `limit` bytes of data.
    pub(crate) fn for_data(limit: usize) -> Self {
        let mut bytes = Vec::with_capacity(FramePrefix::MAX + limit);
        bytes.resize(FramePrefix::MAX, 0);
        Self { bytes, start: FramePrefix::MAX }
    }

    /// The buffer to read data into: its spare capacity is the limit.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The data without the prefix.
    pub(crate) fn data(&self) -> &[u8] {
        self.bytes.get(FramePrefix::MAX..).unwrap_or_default()
    }

    /// Writes the prefix directly before the data.
    pub(crate) fn set_prefix(&mut self, prefix: &FramePrefix) {
        let prefix = prefix.as_slice();
        let start = FramePrefix::MAX.saturating_sub(prefix.len());
        if let Some(room) = self.bytes.get_mut(start..FramePrefix::MAX) {
            room.copy_from_slice(prefix);
            self.start = start;
        }
    }

    /// The number of bytes to send.
    pub(crate) fn len(&self) -> usize {
        self.remaining().len()
    }

    fn remaining(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }
}

impl From<Vec<u8>> for OutgoingChunk {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }
}

// === impl PeerConnection ===

impl PeerConnection {
    pub(crate) fn new(incoming: OwnedFd, outgoing: OwnedFd, ids: CorrelationIdRange, announced: Generation) -> Self {
        // A pipe rejects it and keeps its size; without privileges, the system-wide maximum applies.
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&outgoing, SEND_BUFFER).is_err() {
            let _most = rustix::net::sockopt::set_socket_send_buffer_size(&outgoing, SEND_BUFFER);
        }
        Self {
            incoming,
            outgoing,
            ids,
            generation: announced,
            peer: announced,
            readable: true,
            writable: true,
            ended: false,
            hung_up: false,
            inbox: ReceiveBuffer::default(),
            outbox: VecDeque::new(),
            outgoing_bytes: 0,
        }
    }

    pub(crate) fn incoming(&self) -> impl AsFd + '_ {
        self.incoming.as_fd()
    }

    pub(crate) fn outgoing(&self) -> impl AsFd + '_ {
        self.outgoing.as_fd()
    }

    /// Whether sessions may produce data for it.
    pub(crate) fn has_room(&self) -> bool {
        self.outgoing_bytes < OUTGOING_ROOM
    }

    /// Whether requests may be processed from it.
    pub(crate) fn takes_requests(&self) -> bool {
        self.outgoing_bytes < OUTGOING_LIMIT
    }

    /// Whether nothing is queued.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Queues bytes.
    pub(crate) fn push(&mut self, chunk: OutgoingChunk) {
        self.outgoing_bytes += chunk.remaining().len();
        self.outbox.push_back(chunk);
    }

    /// Sends queued bytes until the connection would block.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        while self.writable && !self.outbox.is_empty() {
            let slices: Vec<_> = self.outbox.iter().take(16).map(|chunk| IoSlice::new(chunk.remaining())).collect();
            match retry(|| rustix::io::writev(&self.outgoing, &slices)) {
                Ok(sent) => self.sent(sent),
                Err(Errno::AGAIN) => self.writable = false,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sent(&mut self, mut sent: usize) {
        self.outgoing_bytes = self.outgoing_bytes.saturating_sub(sent);
        while let Some(first) = self.outbox.front_mut() {
            let rest = first.remaining().len();
            if rest > sent {
                first.start += sent;
                return;
            }
            sent -= rest;
            self.outbox.pop_front();
        }
    }

    /// Reads once. `Ok(false)` if nothing is available, now or ever.
    pub(crate) fn read(&mut self) -> Result<bool, Errno> {
        match self.inbox.read(&self.incoming) {
            Ok(0) => {
                (self.readable, self.ended) = (false, true);
                Ok(false)
            }
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => {
                self.readable = false;
                self.inbox.release_memory();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a complete or an invalid frame is buffered.
    pub(crate) fn holds_frame(&self) -> bool {
        !matches!(self.inbox.next(), Ok(None))
    }

    /// Takes the receive buffer out, so that its frames can be borrowed while they are processed.
    pub(crate) fn take_inbox(&mut self) -> ReceiveBuffer {
        std::mem::take(&mut self.inbox)
    }

    /// Puts it back.
    pub(crate) fn put_inbox(&mut self, inbox: ReceiveBuffer) {
        self.inbox = inbox;
    }
}

// === impl ReceiveBuffer ===

impl ReceiveBuffer {
    fn read(&mut self, from: &OwnedFd) -> Result<usize, Errno> {
        let arrived = self.bytes.len() - self.start;
        let missing = self.missing(arrived);
        if arrived == 0 {
            self.bytes.clear();
            self.start = 0;
        }
        // Data is moved only if there is no space left after it: moving costs as much as reading.
        if self.bytes.capacity() - self.bytes.len() < missing.max(READ_LEAST) {
            self.bytes.drain(..self.start);
            self.start = 0;
            self.bytes.reserve(missing.max(self.read_size.max(READ_SIZE)));
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let count = retry(|| rustix::io::read(from, spare_capacity(&mut self.bytes)))?;
        // A buffer that was filled will be filled again.
        if count == room {
            self.read_size = (self.read_size.max(READ_SIZE) * 2).min(READ_SIZE_MAX);
        }
        Ok(count)
    }

    /// The number of bytes that the current frame still lacks. Its length was checked when it began.
    fn missing(&self, arrived: usize) -> usize {
        match self.bytes.get(self.start..).and_then(<[u8]>::first_chunk) {
            Some(prefix) => {
                Header::parse(prefix).map_or(0, |header| (PREFIX_SIZE + header.body_len).saturating_sub(arrived))
            }
            None => 0,
        }
    }

    /// Releases the buffer if it is empty.
    fn release_memory(&mut self) {
        if self.start == self.bytes.len() {
            *self = Self::default();
        }
    }

    /// The next frame and its length on the wire; consumed by [`Self::advance`].
    pub(crate) fn next(&self) -> Result<Option<(Frame<'_>, usize)>, InvalidFrameLength> {
        let bytes = self.bytes.get(self.start..).unwrap_or_default();
        Ok(Frame::split(bytes)?.map(|(frame, rest)| (frame, bytes.len() - rest.len())))
    }

    pub(crate) fn advance(&mut self, length: usize) {
        self.start = self.bytes.len().min(self.start + length);
    }
}

#[cfg(test)]
mod tests {
    use carrel_protocol::MessageType;

    use super::*;

    fn pair() -> (OwnedFd, PeerConnection) {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        let outgoing = ours.try_clone().unwrap();
        (theirs, PeerConnection::new(ours, outgoing, CorrelationIdRange::WHOLE, Generation::PUBLISHED))
    }

    #[test]
    fn a_prefix_joins_its_data() {
        let mut chunk = OutgoingChunk::for_data(8);
        chunk.buffer().extend_from_slice(b"hi");
        chunk.set_prefix(&FramePrefix::of_data(MessageType::ExecStdout, Generation::PUBLISHED, 6, 2).unwrap());
        let (frame, rest) = Frame::split(chunk.remaining()).unwrap().unwrap();
        assert_eq!((frame.id, rest.len(), chunk.data()), (6, 0, &b"hi"[..]));
    }

    #[test]
    fn an_idle_connection_holds_no_buffer() {
        let (peer, mut connection) = pair();
        rustix::io::write(&peer, b"\0\0\0\x05\0\0\0\x01\0").unwrap();
        assert!(connection.read().unwrap());
        let mut inbox = connection.take_inbox();
        let (frame, length) = inbox.next().unwrap().unwrap();
        assert_eq!(frame.id, 1);
        inbox.advance(length);
        connection.put_inbox(inbox);
        assert!(!connection.read().unwrap());
        assert_eq!(connection.inbox.bytes.capacity(), 0);
    }

    #[test]
    fn frames_are_parsed_from_reads_of_any_size() {
        let (peer, mut connection) = pair();
        let body = vec![7; 300_000];
        let mut wire = Vec::new();
        for id in 1..=3 {
            carrel_protocol::codec::encode_raw(&mut wire, id, carrel_protocol::Flags::NONE, &body).unwrap();
        }
        let (mut sent, mut observed) = (0, Vec::new());
        while observed.len() < 3 {
            sent += rustix::io::write(&peer, &wire[sent..wire.len().min(sent + 10_007)]).unwrap_or(0);
            while connection.read().unwrap() {}
            let mut inbox = connection.take_inbox();
            while let Some((frame, length)) = inbox.next().unwrap() {
                assert_eq!(frame.body, body);
                observed.push(frame.id);
                inbox.advance(length);
            }
            connection.put_inbox(inbox);
        }
        assert_eq!(observed, [1, 2, 3]);
    }

    #[test]
    fn queued_bytes_are_bounded_and_sent_in_order() {
        let (peer, mut connection) = pair();
        let mut pushed = 0u32;
        while connection.has_room() {
            connection.push(pushed.to_be_bytes().repeat(1000).into());
            pushed += 1;
        }
        assert!(connection.outgoing_bytes < OUTGOING_ROOM + 4000);
        let mut received = Vec::new();
        while received.len() < pushed as usize * 4000 {
            connection.writable = true;
            connection.flush().unwrap();
            received.reserve(100_000);
            rustix::io::read(&peer, spare_capacity(&mut received)).unwrap();
        }
        for (number, chunk) in (0..pushed).zip(received.chunks(4000)) {
            assert_eq!(chunk, number.to_be_bytes().repeat(1000));
        }
        assert!(connection.is_flushed());
    }
}
