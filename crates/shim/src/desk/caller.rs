//! One caller: what it asked for and has not been answered.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use carrel_protocol::Frame;
use carrel_protocol::frame::InvalidFrameLength;
use carrel_shim_client::messages::{Peer, PortsPublish, VERSION};
use carrel_shim_client::{Message, encode};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::jobs::{JobCursor, Key};
use crate::poll::Interest;
use crate::relay::Outbox;
use crate::serve::send;

/// How much may wait for a caller before it is told no more.
pub(crate) const ROOM: usize = 128 * 1024;
/// How much is read at once.
const READ: usize = 16 * 1024;
/// How much input of a caller may be unanswered before it is not listened to.
const UNANSWERED: usize = 512 * 1024;
/// How many requests a caller may have under way.
pub(crate) const MOST_REQUESTS: usize = 256;

/// One caller.
#[derive(Debug)]
pub(crate) struct Caller {
    socket: OwnedFd,
    pub(crate) interest: Interest,
    arrived: Vec<u8>,
    /// Descriptors that came with it, for the request that they belong to.
    descriptors: Vec<OwnedFd>,
    outbox: Outbox,
    /// What both sides speak: what it said last.
    pub(crate) version: u8,
    pub(crate) peer: Peer,
    pub(crate) requests: BTreeMap<u32, Request>,
    unanswered: usize,
    /// There was more to tell than there was room for.
    pub(crate) starved: bool,
    /// It is told nothing more.
    broken: bool,
}

/// Something that was asked for and takes time.
#[derive(Debug)]
pub(crate) enum Request {
    /// To be told what a job writes.
    Follow(Follow),
    /// To be told when a job has ended.
    Wait(Key),
    /// To be told what happened, from a sequence on, and whether to go on.
    Journal { next: u64, follow: bool },
    /// To be told of all jobs.
    List(JobCursor),
    /// To be told that so many bytes of input were accepted.
    Write(usize),
}

/// One who follows a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follow {
    pub(crate) key: Key,
    /// How far it has come in both outputs.
    pub(crate) at: [Option<u64>; 2],
    /// The job has to wait for it.
    pub(crate) hold: bool,
}

// === impl Caller ===

impl Caller {
    pub(crate) fn new(socket: OwnedFd, peer: Peer) -> Self {
        Self {
            socket,
            interest: Interest::READ,
            arrived: Vec::new(),
            descriptors: Vec::new(),
            outbox: Outbox::default(),
            version: VERSION,
            peer,
            requests: BTreeMap::new(),
            unanswered: 0,
            starved: false,
            broken: false,
        }
    }

    /// One of whom something has arrived already.
    pub(crate) fn with(socket: OwnedFd, peer: Peer, arrived: Vec<u8>) -> Self {
        Self { arrived, ..Self::new(socket, peer) }
    }

    /// Reads what has arrived. `Ok(false)` when the caller is gone.
    pub(crate) fn read(&mut self) -> Result<bool, Errno> {
        let (mut bytes, mut space) =
            ([0; READ], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PortsPublish::MAX))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                // One more than there may be is as good as any number.
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

    /// The descriptors that came so far.
    pub(crate) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Closes descriptors that no request wanted, once none is under way.
    pub(crate) fn forget_descriptors(&mut self) {
        if self.arrived.is_empty() {
            self.descriptors = Vec::new();
        }
    }

    /// The next thing that was said: its id and its body.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Vec<u8>)>, InvalidFrameLength> {
        let Some((frame, rest)) = Frame::split(&self.arrived)? else { return Ok(None) };
        let said = (frame.id, frame.body.to_vec());
        let taken = self.arrived.len() - rest.len();
        self.arrived.drain(..taken);
        Ok(Some(said))
    }

    pub(crate) fn tell<'b, M: Message<'b>>(&mut self, id: u32, message: &M) {
        let version = self.version;
        if M::SINCE <= version {
            // What is too large to be sent is not sent: nothing of ours is.
            self.outbox.write(|bytes| encode(bytes, version, id, message).is_ok());
        }
    }

    /// Remembers a request; `false` if there are too many, or one of that id.
    pub(crate) fn begin(&mut self, id: u32, request: Request) -> bool {
        if self.requests.len() >= MOST_REQUESTS || self.requests.contains_key(&id) {
            return false;
        }
        if let Request::Write(bytes) = request {
            self.unanswered += bytes;
        }
        self.requests.insert(id, request);
        true
    }

    /// Forgets a request.
    pub(crate) fn finish(&mut self, id: u32) -> Option<Request> {
        let request = self.requests.remove(&id);
        if let Some(Request::Write(bytes)) = request {
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

    /// Whether something that was said whole was not heard yet.
    pub(crate) fn has_unheard(&self) -> bool {
        matches!(Frame::split(&self.arrived), Ok(Some(_)) | Err(_))
    }

    /// Whether there was more to tell than there was room for.
    pub(crate) fn is_owed(&self) -> bool {
        self.starved && !self.broken
    }

    /// Sends what waits, as far as there is room. Whether the caller is still there.
    pub(crate) fn flush(&mut self) -> bool {
        while self.has_unsent() {
            match send(&self.socket, self.outbox.rest()) {
                Ok(0) => break,
                Ok(sent) => self.outbox.took(sent),
                Err(_) => self.broken = true,
            }
        }
        !self.broken
    }

    /// What it is watched for. One that does not read its answers, or whose input nobody takes, is not asked for more.
    pub(crate) fn wanted(&self, patient: bool) -> Interest {
        let read = patient && self.has_room() && self.unanswered < UNANSWERED;
        // Whoever could be told more is told it as soon as there is room, though nothing waits by then.
        let write = self.has_unsent() || self.is_owed() || (patient && self.has_unheard());
        Interest { read, write, urgent: false }
    }

    pub(crate) fn rest(&mut self) {
        self.outbox.rest_idle();
        self.arrived.shrink_to_fit();
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
