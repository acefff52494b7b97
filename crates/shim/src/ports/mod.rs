//! Published ports: listening sockets passed to the shim, and connections from there into the sandbox.
//!
//! A connection is one session of the agent, with a window in each direction: data of the agent is buffered within the
//! offered window; the client is read only within the agent's credit. Without ports none of this uses memory.

mod connection;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use carrel_protocol::{Frame, Generation, codec};
use carrel_shim_client::messages::{FailureCode, PortsPublish, PublishedPort};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use self::connection::{FrameOutcome, PortConnection};
use crate::jobs::{AgentFrames, RequestRejection};
use crate::poll::{DescriptorToken, Interest, Poller, Readiness};

/// The maximum number of connections, and that of a sandbox with little memory. More wait to be accepted.
const MOST: (usize, usize) = (256, 16);
/// The sandbox memory per connection, for kernel buffers of data that its server does not read.
const MEMORY_FOR_ONE: u64 = 2 * 1024 * 1024;
/// Accepted connections per iteration.
const ACCEPTS_AT_A_TURN: usize = 16;
/// The queue to the agent above which clients are not read.
const UNSENT: usize = 512 * 1024;
/// The kernel's buffers of a client's socket.
const SOCKET_BUFFER: usize = 256 * 1024;
/// The budget for all windows together, and the minimum and maximum of one.
const SHARED_WINDOW: u64 = 4 * 1024 * 1024;
const WINDOW: (u64, u64) = (32 * 1024, 512 * 1024);

/// The published ports of a sandbox, and the connections to them.
#[derive(Debug)]
pub(crate) struct PublishedPorts {
    /// The maximum number of connections.
    most: usize,
    listeners: Vec<PortListener>,
    connections: Vec<Option<Box<PortConnection>>>,
    /// The slot of each connection, by the id of its session.
    by_channel: HashMap<u32, usize>,
    /// The number of used slots.
    taken: usize,
    /// Whether accepting failed for lack of descriptors.
    exhausted: bool,
    /// A buffer for data on its way to the agent.
    piece: Vec<u8>,
    outgoing: AgentFrames,
}

#[derive(Debug)]
struct PortListener {
    socket: OwnedFd,
    port: PublishedPort,
    watched: bool,
}

/// The window of a client, given the number of others. However they come and go, all together stay below 20 MiB: the
/// n-th gets at most the n-th part of the budget, or the minimum.
fn window(others: usize) -> u64 {
    (SHARED_WINDOW / (others as u64 + 1)).clamp(WINDOW.0, WINDOW.1)
}

/// Whether a descriptor is a TCP socket that listens on a port.
fn listens_at(socket: &OwnedFd, port: u16) -> Result<bool, Errno> {
    let is_tcp = [AddressFamily::INET, AddressFamily::INET6].contains(&sockopt::socket_domain(socket)?)
        && sockopt::socket_type(socket)? == SocketType::STREAM
        && sockopt::socket_protocol(socket)? == Some(ipproto::TCP);
    if !is_tcp || !sockopt::socket_acceptconn(socket)? {
        return Ok(false);
    }
    let address = std::net::SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    Ok(address.port() == port)
}

// === impl PublishedPorts ===

impl PublishedPorts {
    /// The ports of a sandbox with so much memory; `None` is unlimited.
    pub(crate) fn new(memory: Option<u64>) -> Self {
        let (most, least) = MOST;
        let fit = memory.map_or(most, |bytes| usize::try_from(bytes / MEMORY_FOR_ONE).unwrap_or(most));
        Self {
            most: fit.clamp(least, most),
            listeners: Vec::new(),
            connections: Vec::new(),
            by_channel: HashMap::new(),
            taken: 0,
            exhausted: false,
            piece: Vec::new(),
            outgoing: AgentFrames::default(),
        }
    }

    /// The served ports.
    pub(crate) fn published(&self) -> Vec<PublishedPort> {
        self.listeners.iter().map(|listener| listener.port).collect()
    }

    /// The number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.iter().flatten().filter(|connection| connection.is_open()).count()
    }

    /// Serves ports, all of them or none. Rejects what is not a socket that listens on its port.
    pub(crate) fn publish(&mut self, ports: &[PublishedPort], sockets: Vec<OwnedFd>) -> Result<(), RequestRejection> {
        let refused = |message: String| Err(RequestRejection::new(FailureCode::InvalidRequest, message));
        if sockets.len() != ports.len() {
            return refused(format!("{} sockets were passed for {} ports", sockets.len(), ports.len()));
        }
        if self.listeners.len() + ports.len() > PortsPublish::MAX {
            return refused(format!("a sandbox can have at most {} published ports", PortsPublish::MAX));
        }
        for (port, socket) in ports.iter().zip(&sockets) {
            if self.listeners.iter().any(|listener| listener.port.host == port.host) {
                return refused(format!("port {} is already published", port.host));
            }
            if !listens_at(socket, port.host).unwrap_or(false) {
                return refused(format!("descriptor for port {} is not a TCP socket that listens on it", port.host));
            }
            // Non-blocking: a connection may be closed before it is accepted.
            if rustix::io::ioctl_fionbio(socket, true).is_err() {
                return refused(format!("the socket of port {} cannot be used", port.host));
            }
        }
        let listeners =
            ports.iter().zip(sockets).map(|(port, socket)| PortListener { socket, port: *port, watched: false });
        self.listeners.extend(listeners);
        Ok(())
    }

    /// Accepts connections to a port; `open` allocates the id of each session.
    pub(crate) fn accept(&mut self, number: usize, mut open: impl FnMut() -> u32) {
        for _ in 0..ACCEPTS_AT_A_TURN {
            let Some(listener) = self.listeners.get(number).filter(|_| self.taken < self.most) else { return };
            match rustix::net::accept_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    // Disable Nagle's algorithm for small messages.
                    let _at_once = sockopt::set_tcp_nodelay(&socket, true);
                    // The kernel would buffer megabytes for a client that does not read.
                    let _bounded = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
                    let _bounded = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER);
                    let inside = listener.port.inside;
                    self.connect(socket, inside, open());
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // Without free descriptors, no further connection is accepted.
                Err(_) => {
                    self.exhausted = true;
                    return;
                }
            }
        }
    }

    fn connect(&mut self, socket: OwnedFd, inside: u16, channel: u32) {
        let connection = Box::new(PortConnection::new(socket, channel, window(self.taken)));
        self.outgoing.control.extend_from_slice(&connection.request(inside));
        let slot = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        match self.connections.get_mut(slot) {
            Some(place) => *place = Some(connection),
            None => self.connections.push(Some(connection)),
        }
        self.by_channel.insert(channel, slot);
        self.taken += 1;
    }

    /// A descriptor may be free again.
    pub(crate) fn accept_again(&mut self) {
        self.exhausted = false;
    }

    // --- from the agent

    /// Whether an id is the session of a connection.
    pub(crate) fn owns(&self, channel: u32) -> bool {
        self.by_channel.contains_key(&channel)
    }

    /// Handles a frame of the agent; returns whether it is valid.
    pub(crate) fn handle_frame(&mut self, frame: Frame<'_>) -> bool {
        let Some(slot) = self.by_channel.get(&frame.id).copied() else { return false };
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return false };
        match connection.handle_frame(frame, &mut self.outgoing) {
            FrameOutcome::Valid => {}
            FrameOutcome::Invalid => return false,
            FrameOutcome::SessionOver => {
                self.by_channel.remove(&frame.id);
                self.outgoing.closed.push(frame.id);
                if connection.is_done() {
                    self.free(slot);
                }
            }
        }
        true
    }

    // --- from clients

    /// Handles readiness of a client, given the length of the queue to the agent.
    pub(crate) fn serve(&mut self, slot: usize, readiness: Readiness, unsent: usize) {
        let room = self.may_read(unsent);
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        connection.unblock();
        if readiness.readable && connection.wants_input() {
            if room {
                connection.read(&mut self.piece, &mut self.outgoing);
            }
        } else if readiness.hangup {
            connection.abort(&mut self.outgoing);
        }
    }

    fn may_read(&self, unsent: usize) -> bool {
        unsent + self.outgoing.data.len() < UNSENT
    }

    /// Writes pending data to clients until their sockets would block.
    pub(crate) fn flush(&mut self) {
        for slot in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { continue };
            connection.flush(&mut self.outgoing);
            if connection.is_done() {
                self.free(slot);
            }
        }
    }

    fn free(&mut self, slot: usize) {
        if self.connections.get_mut(slot).and_then(Option::take).is_some() {
            self.taken -= 1;
        }
    }

    /// Updates the poll interest of each descriptor.
    pub(crate) fn watch(&mut self, poller: &Poller, unsent: usize) -> Result<(), Errno> {
        let accepts = self.taken < self.most && !self.exhausted;
        for (number, listener) in self.listeners.iter_mut().enumerate() {
            if listener.watched != accepts {
                watch(
                    poller,
                    &listener.socket,
                    DescriptorToken::Port(number),
                    listener.watched,
                    Interest { read: accepts, ..Interest::default() },
                )?;
                listener.watched = accepts;
            }
        }
        let room = self.may_read(unsent);
        for (slot, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection {
                connection.watch(poller, DescriptorToken::Connection(slot), room)?;
            }
        }
        Ok(())
    }

    /// Closes all ports and connections. Unfinished connections are reset, so that they do not look complete.
    pub(crate) fn close(&mut self, poller: &Poller) {
        self.flush();
        // Another process may have a duplicate of the socket: closing ours would not stop it.
        self.listeners.iter().filter(|listener| listener.watched).for_each(|listener| poller.remove(&listener.socket));
        let mut unsaid = AgentFrames::default();
        self.connections.iter_mut().flatten().for_each(|connection| connection.abort(&mut unsaid));
        *self = Self { most: self.most, ..Self::new(None) };
    }

    /// Takes the frames for the agent.
    pub(crate) fn take_outgoing(&mut self) -> AgentFrames {
        std::mem::take(&mut self.outgoing)
    }

    /// Releases unused memory.
    pub(crate) fn release_memory(&mut self) {
        self.piece = Vec::new();
        self.connections.iter_mut().flatten().for_each(|connection| connection.release_memory());
        while self.connections.last().is_some_and(Option::is_none) {
            self.connections.pop();
        }
        self.connections.shrink_to_fit();
    }
}

/// Changes the interest of a descriptor. Without interest it is deregistered: a hangup would be reported repeatedly.
fn watch(
    poller: &Poller,
    socket: impl AsFd,
    token: DescriptorToken,
    watched: bool,
    interest: Interest,
) -> Result<(), Errno> {
    match (watched, interest == Interest::default()) {
        (true, true) => {
            poller.remove(socket);
            Ok(())
        }
        (true, false) => poller.change(socket, token, interest),
        (false, true) => Ok(()),
        (false, false) => poller.add(socket, token, interest),
    }
}

/// Appends a frame for the agent.
fn queue_message<'b, P: carrel_protocol::Payload<'b>>(out: &mut Vec<u8>, channel: u32, payload: &P) {
    // They are small and always fit.
    let _fits = codec::encode(out, Generation::CURRENT, channel, payload);
}
