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
pub(crate) use self::streaming::unreadable_output;
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
    clients: Vec<Option<ControlClient>>,
    hello: Hello,
    /// A buffer for output on its way to a client.
    piece: Vec<u8>,
    /// Whether there may be something to send.
    pub(crate) stirred: bool,
}

// === impl ControlSocket ===

impl ControlSocket {
    pub(crate) fn new(listener: UnixListener, hello: Hello, poller: &Poller) -> Result<Self, Errno> {
        poller.add(&listener, DescriptorToken::ControlSocket, Interest::READ)?;
        Ok(Self { listener, listening: true, clients: Vec::new(), hello, piece: Vec::new(), stirred: false })
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
                    self.send(number, 0, &hello);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // Without free descriptors, no further client is accepted.
                Err(_) => return self.listen(poller, false),
            }
        }
    }

    /// Adds a client.
    pub(crate) fn admit(&mut self, client: ControlClient, poller: &Poller) -> Option<usize> {
        let number = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        if number >= MOST || poller.add(&client, DescriptorToken::ControlClient(number), Interest::READ).is_err() {
            return None;
        }
        match self.clients.get_mut(number) {
            Some(place) => *place = Some(client),
            None => self.clients.push(Some(client)),
        }
        Some(number)
    }

    /// Starts or stops accepting clients.
    pub(crate) fn listen(&mut self, poller: &Poller, listening: bool) {
        if self.listening != listening {
            let interest = Interest { read: listening, ..Interest::default() };
            let changed = poller.change(&self.listener, DescriptorToken::ControlSocket, interest);
            self.listening = listening == changed.is_ok();
        }
    }

    pub(crate) fn client(&mut self, number: usize) -> Option<&mut ControlClient> {
        self.clients.get_mut(number)?.as_mut()
    }

    /// Sends a message to every client.
    pub(crate) fn broadcast<'b, M: ShimMessage<'b>>(&mut self, message: &M) {
        self.clients.iter_mut().flatten().for_each(|client| client.send(0, message));
    }

    /// Sends a message to a client.
    pub(crate) fn send<'b, M: ShimMessage<'b>>(&mut self, number: usize, id: u32, message: &M) {
        if let Some(client) = self.client(number) {
            client.send(id, message);
        }
    }

    /// Completes a request with a response.
    pub(crate) fn answer<'b, M: ShimMessage<'b>>(&mut self, requester: RequestRef, message: &M) {
        // A request that was withdrawn, or whose client is gone, is not answered.
        let Some(client) = self.client(requester.connection) else { return };
        if client.finish(requester.request).is_some() {
            client.send(requester.request, message);
        }
    }

    /// Removes a disconnected client and its requests.
    pub(crate) fn disconnect_client(&mut self, number: usize, jobs: &mut Jobs, poller: &Poller) {
        let Some(client) = self.clients.get_mut(number).and_then(Option::take) else { return };
        // Another process may have a duplicate of the socket: closing ours would not shut it down.
        poller.remove(&client);
        for request in client.requests.into_values() {
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
        let disconnected = |(number, client): (usize, &mut Option<ControlClient>)| {
            let client = client.as_mut()?;
            (!client.flush()).then_some(number)
        };
        self.clients.iter_mut().enumerate().filter_map(disconnected).collect()
    }

    /// Whether any backlog is not empty.
    pub(crate) fn has_unsent(&self) -> bool {
        self.clients.iter().flatten().any(|client| client.has_unsent() || client.has_more())
    }

    /// Updates the poll interest of each client. If `patient` is false, no client is read.
    pub(crate) fn watch(&mut self, poller: &Poller, patient: bool) -> Result<(), Errno> {
        for (number, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            let interest = client.interest(patient);
            if interest != client.interest {
                poller.change(&*client, DescriptorToken::ControlClient(number), interest)?;
                client.interest = interest;
            }
        }
        Ok(())
    }

    /// Releases unused memory.
    pub(crate) fn release_memory(&mut self) {
        self.piece = Vec::new();
        self.clients.iter_mut().flatten().for_each(ControlClient::release_memory);
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
