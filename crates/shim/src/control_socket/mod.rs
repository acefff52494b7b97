//! The control socket: clients of the shim itself, their requests and responses.
//!
//! A client that does not read its responses gets no more of them and is not read; other clients are not affected.

mod client;
mod streaming;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use carrel_shim_client::ShimMessage;
use carrel_shim_client::messages::{Hello, PeerProcess};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};

pub(crate) use self::client::{ControlClient, ControlRequest, JobFollower};
pub(crate) use self::streaming::cannot_read;
use crate::jobs::{Jobs, RequestRef};
use crate::poll::{DescriptorToken, Interest, Poller};

/// The maximum number of clients.
const MOST: usize = 1024;
/// Accepted connections per iteration.
const ACCEPTS_AT_A_TURN: usize = 16;

/// The clients of the control socket.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    listening: bool,
    callers: Vec<Option<ControlClient>>,
    hello: Hello,
    /// A buffer for output on its way to a client.
    piece: Vec<u8>,
    /// Whether there may be something to send.
    pub(crate) stirred: bool,
}

// === impl ControlSocket ===

impl ControlSocket {
    pub(crate) fn new(listener: UnixListener, hello: Hello, poller: &Poller) -> Result<Self, Errno> {
        poller.add(&listener, DescriptorToken::Desk, Interest::READ)?;
        Ok(Self { listener, listening: true, callers: Vec::new(), hello, piece: Vec::new(), stirred: false })
    }

    /// Accepts waiting clients.
    pub(crate) fn accept(&mut self, poller: &Poller) {
        for _ in 0..ACCEPTS_AT_A_TURN {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let peer = peer(&socket);
                    // Other users can connect only if the directory was made accessible.
                    if ![0, rustix::process::geteuid().as_raw()].contains(&peer.user) {
                        continue;
                    }
                    // A client above the limit is disconnected without a message.
                    let Some(number) = self.admit(ControlClient::new(socket, peer), poller) else { continue };
                    let hello = self.hello.clone();
                    self.tell(number, 0, &hello);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // Without free descriptors, no further client is accepted.
                Err(_) => return self.listen(poller, false),
            }
        }
    }

    /// Adds a client.
    pub(crate) fn admit(&mut self, caller: ControlClient, poller: &Poller) -> Option<usize> {
        let number = self.callers.iter().position(Option::is_none).unwrap_or(self.callers.len());
        if number >= MOST || poller.add(&caller, DescriptorToken::Caller(number), Interest::READ).is_err() {
            return None;
        }
        match self.callers.get_mut(number) {
            Some(place) => *place = Some(caller),
            None => self.callers.push(Some(caller)),
        }
        Some(number)
    }

    /// Starts or stops accepting clients.
    pub(crate) fn listen(&mut self, poller: &Poller, listening: bool) {
        if self.listening != listening {
            let interest = Interest { read: listening, ..Interest::default() };
            let changed = poller.change(&self.listener, DescriptorToken::Desk, interest);
            self.listening = listening == changed.is_ok();
        }
    }

    pub(crate) fn caller(&mut self, number: usize) -> Option<&mut ControlClient> {
        self.callers.get_mut(number)?.as_mut()
    }

    /// Sends a message to every client.
    pub(crate) fn tell_all<'b, M: ShimMessage<'b>>(&mut self, message: &M) {
        self.callers.iter_mut().flatten().for_each(|caller| caller.tell(0, message));
    }

    /// Sends a message to a client.
    pub(crate) fn tell<'b, M: ShimMessage<'b>>(&mut self, number: usize, id: u32, message: &M) {
        if let Some(caller) = self.caller(number) {
            caller.tell(id, message);
        }
    }

    /// Completes a request with a response.
    pub(crate) fn answer<'b, M: ShimMessage<'b>>(&mut self, asker: RequestRef, message: &M) {
        // A request that was withdrawn, or whose client is gone, is not answered.
        let Some(caller) = self.caller(asker.connection) else { return };
        if caller.finish(asker.request).is_some() {
            caller.tell(asker.request, message);
        }
    }

    /// Removes a disconnected client and its requests.
    pub(crate) fn dismiss(&mut self, number: usize, jobs: &mut Jobs, poller: &Poller) {
        let Some(caller) = self.callers.get_mut(number).and_then(Option::take) else { return };
        // Another process may have a duplicate of the socket: closing ours would not shut it down.
        poller.remove(&caller);
        for request in caller.requests.into_values() {
            if let ControlRequest::Follow(follow) = request {
                jobs.watch(follow.key, false);
            }
        }
        jobs.forget(number);
        // No job has to wait for it any more.
        self.stirred = true;
        self.listen(poller, true);
    }

    /// Sends all backlogs until the sockets would block; returns the clients that are gone.
    pub(crate) fn flush(&mut self) -> Vec<usize> {
        let gone = |(number, caller): (usize, &mut Option<ControlClient>)| {
            let caller = caller.as_mut()?;
            (!caller.flush()).then_some(number)
        };
        self.callers.iter_mut().enumerate().filter_map(gone).collect()
    }

    /// Whether any backlog is not empty.
    pub(crate) fn has_unsent(&self) -> bool {
        self.callers.iter().flatten().any(|caller| caller.has_unsent() || caller.is_owed())
    }

    /// Updates the poll interest of each client. If `patient` is false, no client is read.
    pub(crate) fn watch(&mut self, poller: &Poller, patient: bool) -> Result<(), Errno> {
        for (number, caller) in self.callers.iter_mut().enumerate() {
            let Some(caller) = caller else { continue };
            let interest = caller.wanted(patient);
            if interest != caller.interest {
                poller.change(&*caller, DescriptorToken::Caller(number), interest)?;
                caller.interest = interest;
            }
        }
        Ok(())
    }

    /// Releases unused memory.
    pub(crate) fn rest(&mut self) {
        self.piece = Vec::new();
        self.callers.iter_mut().flatten().for_each(ControlClient::rest);
    }
}

/// The peer credentials of a socket.
pub(crate) fn peer(socket: impl AsFd) -> PeerProcess {
    match rustix::net::sockopt::socket_peercred(socket) {
        Ok(credentials) => PeerProcess {
            pid: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
            user: credentials.uid.as_raw(),
            began: 0,
            command: String::new(),
        },
        Err(_) => PeerProcess { pid: 0, user: u32::MAX, began: 0, command: String::new() },
    }
}

/// Sends bytes with a descriptor; all of them or none.
pub(crate) fn send_with(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let _heard =
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
