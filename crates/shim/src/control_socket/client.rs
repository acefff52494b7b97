//! One client of the control socket: its buffers and pending requests.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use carrel_protocol::Frame;
use carrel_protocol::frame::InvalidFrameLength;
use carrel_shim_client::messages::{PeerProcess, PortsPublish, VERSION};
use carrel_shim_client::{ShimMessage, encode};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::jobs::{JobCursor, JobKey};
use crate::poll::Interest;
use crate::relay::ClientOutbox;
use crate::serve::send;

/// The send backlog above which a client gets no further output.
pub(crate) const ROOM: usize = 128 * 1024;
/// The read size.
const READ: usize = 16 * 1024;
/// The unacknowledged input above which a client is not read.
const UNANSWERED: usize = 512 * 1024;
/// The maximum number of pending requests of a client.
pub(crate) const MAX_REQUESTS: usize = 256;

#[derive(Debug)]
pub(crate) struct ControlClient {
    socket: OwnedFd,
    pub(crate) interest: Interest,
    arrived: Vec<u8>,
    /// Received descriptors, for the request that they belong to.
    descriptors: Vec<OwnedFd>,
    outbox: ClientOutbox,
    /// The version of its last message.
    pub(crate) version: u8,
    pub(crate) peer: PeerProcess,
    pub(crate) requests: BTreeMap<u32, ControlRequest>,
    unanswered: usize,
    /// Whether there was more to send than its backlog permits.
    pub(crate) starved: bool,
    /// Whether nothing more is sent to it.
    broken: bool,
}

/// A pending request.
#[derive(Debug)]
pub(crate) enum ControlRequest {
    /// Stream the output of a job.
    Follow(JobFollower),
    /// Wait until a job has ended.
    Wait(JobKey),
    /// Read facts from a sequence on, and whether to continue.
    Journal { next: u64, follow: bool },
    /// List all jobs.
    List(JobCursor),
    /// Acknowledge input.
    Write(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct JobFollower {
    pub(crate) key: JobKey,
    /// Its offsets in both outputs.
    pub(crate) at: [Option<u64>; 2],
    /// Whether the job has to wait for it.
    pub(crate) hold: bool,
}

// === impl ControlClient ===

impl ControlClient {
    pub(crate) fn new(socket: OwnedFd, peer: PeerProcess) -> Self {
        Self {
            socket,
            interest: Interest::READ,
            arrived: Vec::new(),
            descriptors: Vec::new(),
            outbox: ClientOutbox::default(),
            version: VERSION,
            peer,
            requests: BTreeMap::new(),
            unanswered: 0,
            starved: false,
            broken: false,
        }
    }

    /// A client with bytes that were already received.
    pub(crate) fn with(socket: OwnedFd, peer: PeerProcess, arrived: Vec<u8>) -> Self {
        Self { arrived, ..Self::new(socket, peer) }
    }

    /// Reads what is available. `Ok(false)` if the client is disconnected.
    pub(crate) fn read(&mut self) -> Result<bool, Errno> {
        let (mut bytes, mut space) =
            ([0; READ], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PortsPublish::MAX))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                // One descriptor above the limit is enough to detect an excess.
                self.descriptors.extend(descriptors);
                self.descriptors.truncate(PortsPublish::MAX + 1);
            }
        }
        match received {
            Ok(received) if received.bytes == 0 => Ok(false),
            Ok(received) => {
                self.arrived.extend_from_slice(bytes.get(..received.bytes).unwrap_or_default());
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// The descriptors received so far.
    pub(crate) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Closes descriptors that no request used, once none is pending.
    pub(crate) fn forget_descriptors(&mut self) {
        if self.arrived.is_empty() {
            self.descriptors = Vec::new();
        }
    }

    /// The next message: its id and its body.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Vec<u8>)>, InvalidFrameLength> {
        let Some((frame, rest)) = Frame::split(&self.arrived)? else { return Ok(None) };
        let message = (frame.id, frame.body.to_vec());
        let taken = self.arrived.len() - rest.len();
        self.arrived.drain(..taken);
        Ok(Some(message))
    }

    pub(crate) fn send<'b, M: ShimMessage<'b>>(&mut self, id: u32, message: &M) {
        let version = self.version;
        if M::SINCE <= version {
            // No message of the shim is too large to be encoded.
            self.outbox.write(|bytes| encode(bytes, version, id, message).is_ok());
        }
    }

    /// Adds a pending request; `false` if there are too many, or one with that id.
    pub(crate) fn begin(&mut self, id: u32, request: ControlRequest) -> bool {
        if self.requests.len() >= MAX_REQUESTS || self.requests.contains_key(&id) {
            return false;
        }
        if let ControlRequest::Write(bytes) = request {
            self.unanswered += bytes;
        }
        self.requests.insert(id, request);
        true
    }

    /// Removes a pending request.
    pub(crate) fn finish(&mut self, id: u32) -> Option<ControlRequest> {
        let request = self.requests.remove(&id);
        if let Some(ControlRequest::Write(bytes)) = request {
            self.unanswered = self.unanswered.saturating_sub(bytes);
        }
        request
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.broken && self.outbox.len() < ROOM
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.broken && !self.outbox.is_empty()
    }

    /// Whether a complete message is buffered.
    pub(crate) fn has_buffered_message(&self) -> bool {
        matches!(Frame::split(&self.arrived), Ok(Some(_)) | Err(_))
    }

    /// Whether there was more to send than its backlog permits.
    pub(crate) fn has_more(&self) -> bool {
        self.starved && !self.broken
    }

    /// Sends the backlog until the socket would block. Returns whether the client is still connected.
    pub(crate) fn flush(&mut self) -> bool {
        while self.has_unsent() {
            match send(&self.socket, self.outbox.remaining()) {
                Ok(0) => break,
                Ok(sent) => self.outbox.advance(sent),
                Err(_) => self.broken = true,
            }
        }
        !self.broken
    }

    /// Its poll interest. A client that does not read its responses, or whose input is not accepted, is not read.
    pub(crate) fn interest(&self, patient: bool) -> Interest {
        let read = patient && self.has_room() && self.unanswered < UNANSWERED;
        // A client with more to send is continued as soon as it is writable, even with an empty backlog.
        let write = self.has_unsent() || self.has_more() || (patient && self.has_buffered_message());
        Interest { read, write, urgent: false }
    }

    pub(crate) fn release_memory(&mut self) {
        self.outbox.release_memory();
        self.arrived.shrink_to_fit();
    }
}

impl AsFd for ControlClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
