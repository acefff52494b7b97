//! Published ports: sockets of the host that the supervisor was given, and connections from there into the sandbox.
//!
//! A connection is one session of the agent, with a window in each direction: what the guest sends and the client does
//! not take waits here, within the window that was offered; what the client sends is read only as far as the agent
//! grants it. Without ports none of this takes memory.

mod connection;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use carrel_protocol::{Frame, Generation, codec};
use carrel_shim_client::messages::{FailureCode, PortsPublish, PublishedPort};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use self::connection::{Connection, FrameOutcome};
use crate::jobs::{Outgoing, Refusal};
use crate::poll::{Interest, Poller, Readiness, Token};

/// How many connections there are at one time, at most and in a sandbox of little memory. More wait to be accepted.
const MOST: (usize, usize) = (256, 16);
/// The memory of the sandbox for each connection: what its server does not read waits there, in buffers of the kernel.
const MEMORY_FOR_ONE: u64 = 2 * 1024 * 1024;
/// How many are accepted before those that are there have their turn.
const ACCEPTS_AT_A_TURN: usize = 16;
/// How much may wait on its way to the guest before clients are not read any more.
const UNSENT: usize = 512 * 1024;
/// How much may wait in the kernel on its way to a client, and from it.
const SOCKET_BUFFER: usize = 256 * 1024;
/// What may wait for all clients together, as far as each has a share, and the least and the most that waits for one.
const SHARED_WINDOW: u64 = 4 * 1024 * 1024;
const WINDOW: (u64, u64) = (32 * 1024, 512 * 1024);

/// The published ports of a sandbox, and the connections to them.
#[derive(Debug)]
pub(crate) struct Ports {
    /// How many connections there are at one time.
    most: usize,
    listeners: Vec<Listener>,
    connections: Vec<Option<Box<Connection>>>,
    /// The place of each connection, by the id of its session.
    by_channel: HashMap<u32, usize>,
    /// How many places are taken.
    taken: usize,
    /// There was no descriptor for one more connection.
    exhausted: bool,
    /// Room for a piece on its way to the guest.
    piece: Vec<u8>,
    outgoing: Outgoing,
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    port: PublishedPort,
    watched: bool,
}

/// What may wait for a client, when so many others are there. However they come and go, all of them together stay below
/// 20 MiB: the one that came as the n-th has no more than the n-th part of what they share, or the least.
fn window(others: usize) -> u64 {
    (SHARED_WINDOW / (others as u64 + 1)).clamp(WINDOW.0, WINDOW.1)
}

/// Whether something is a TCP socket that listens at a port.
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

// === impl Ports ===

impl Ports {
    /// Those of a sandbox with so much memory; none is no limit.
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
            outgoing: Outgoing::default(),
        }
    }

    /// The ports that are served.
    pub(crate) fn published(&self) -> Vec<PublishedPort> {
        self.listeners.iter().map(|listener| listener.port).collect()
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.connections.iter().flatten().filter(|connection| connection.is_open()).count()
    }

    /// Serves ports, all of them or none. Whatever is no socket that listens at its port is refused.
    pub(crate) fn publish(&mut self, ports: &[PublishedPort], sockets: Vec<OwnedFd>) -> Result<(), Refusal> {
        let refused = |words: String| Err(Refusal::new(FailureCode::InvalidRequest, words));
        if sockets.len() != ports.len() {
            return refused(format!("{} sockets came with {} ports", sockets.len(), ports.len()));
        }
        if self.listeners.len() + ports.len() > PortsPublish::MAX {
            return refused(format!("a sandbox has {} published ports at most", PortsPublish::MAX));
        }
        for (port, socket) in ports.iter().zip(&sockets) {
            if self.listeners.iter().any(|listener| listener.port.host == port.host) {
                return refused(format!("port {} is published already", port.host));
            }
            if !listens_at(socket, port.host).unwrap_or(false) {
                return refused(format!("what came for port {} is no TCP socket that listens there", port.host));
            }
            // Nobody else has to wait for a connection that is gone when it is accepted.
            if rustix::io::ioctl_fionbio(socket, true).is_err() {
                return refused(format!("the socket of port {} cannot be used", port.host));
            }
        }
        let listeners =
            ports.iter().zip(sockets).map(|(port, socket)| Listener { socket, port: *port, watched: false });
        self.listeners.extend(listeners);
        Ok(())
    }

    /// Accepts connections to a port; `open` gives each the id of its session.
    pub(crate) fn accept(&mut self, number: usize, mut open: impl FnMut() -> u32) {
        for _ in 0..ACCEPTS_AT_A_TURN {
            let Some(listener) = self.listeners.get(number).filter(|_| self.taken < self.most) else { return };
            match rustix::net::accept_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    // Small pieces of a conversation are not to wait for each other.
                    let _at_once = sockopt::set_tcp_nodelay(&socket, true);
                    // The kernel would let megabytes wait for a client that takes nothing.
                    let _bounded = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
                    let _bounded = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER);
                    let inside = listener.port.inside;
                    self.connect(socket, inside, open());
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // Without descriptors nobody else comes in until one is free.
                Err(_) => {
                    self.exhausted = true;
                    return;
                }
            }
        }
    }

    fn connect(&mut self, socket: OwnedFd, inside: u16, channel: u32) {
        let connection = Box::new(Connection::new(socket, channel, window(self.taken)));
        self.outgoing.words.extend_from_slice(&connection.request(inside));
        let slot = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        match self.connections.get_mut(slot) {
            Some(place) => *place = Some(connection),
            None => self.connections.push(Some(connection)),
        }
        self.by_channel.insert(channel, slot);
        self.taken += 1;
    }

    /// There may be descriptors again.
    pub(crate) fn accept_again(&mut self) {
        self.exhausted = false;
    }

    // --- from the guest

    /// Whether a session is one of a connection.
    pub(crate) fn owns(&self, channel: u32) -> bool {
        self.by_channel.contains_key(&channel)
    }

    /// Takes a frame of the guest; says whether it made sense.
    pub(crate) fn hear(&mut self, frame: Frame<'_>) -> bool {
        let Some(slot) = self.by_channel.get(&frame.id).copied() else { return false };
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return false };
        match connection.hear(frame, &mut self.outgoing) {
            FrameOutcome::Sense => {}
            FrameOutcome::Nonsense => return false,
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

    /// Serves a client that is ready, when so many bytes wait on their way to the guest.
    pub(crate) fn serve(&mut self, slot: usize, readiness: Readiness, unsent: usize) {
        let room = self.may_read(unsent);
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        connection.unblock();
        if readiness.readable && connection.wants_input() {
            if room {
                connection.read(&mut self.piece, &mut self.outgoing);
            }
        } else if readiness.gone {
            connection.break_off(&mut self.outgoing);
        }
    }

    fn may_read(&self, unsent: usize) -> bool {
        unsent + self.outgoing.data.len() < UNSENT
    }

    /// Sends clients what waits for them, as far as they take it.
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

    /// Watches each descriptor for what it is needed for now.
    pub(crate) fn watch(&mut self, poller: &Poller, unsent: usize) -> Result<(), Errno> {
        let accepts = self.taken < self.most && !self.exhausted;
        for (number, listener) in self.listeners.iter_mut().enumerate() {
            if listener.watched != accepts {
                watch(
                    poller,
                    &listener.socket,
                    Token::Port(number),
                    listener.watched,
                    Interest { read: accepts, ..Interest::default() },
                )?;
                listener.watched = accepts;
            }
        }
        let room = self.may_read(unsent);
        for (slot, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection {
                connection.watch(poller, Token::Connection(slot), room)?;
            }
        }
        Ok(())
    }

    /// Closes all ports and connections. Those that have not come to their end are reset: that is not to look like one.
    pub(crate) fn close(&mut self, poller: &Poller) {
        self.flush();
        // Whoever gave us a socket may have it open as well: closing it here would not be the end of it.
        self.listeners.iter().filter(|listener| listener.watched).for_each(|listener| poller.remove(&listener.socket));
        let mut unsaid = Outgoing::default();
        self.connections.iter_mut().flatten().for_each(|connection| connection.break_off(&mut unsaid));
        *self = Self { most: self.most, ..Self::new(None) };
    }

    /// What is to be said to the guest.
    pub(crate) fn take_outgoing(&mut self) -> Outgoing {
        std::mem::take(&mut self.outgoing)
    }

    /// Gives back memory that is not needed.
    pub(crate) fn rest(&mut self) {
        self.piece = Vec::new();
        self.connections.iter_mut().flatten().for_each(|connection| connection.rest());
        while self.connections.last().is_some_and(Option::is_none) {
            self.connections.pop();
        }
        self.connections.shrink_to_fit();
    }
}

/// Changes what a descriptor is watched for. One that is watched for nothing is not watched at all: it would be told to be
/// ready when its peer is gone, again and again.
fn watch(poller: &Poller, socket: impl AsFd, token: Token, watched: bool, interest: Interest) -> Result<(), Errno> {
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

/// Appends a message to the guest.
fn say<'b, P: carrel_protocol::Payload<'b>>(out: &mut Vec<u8>, channel: u32, payload: &P) {
    // They are small and always fit.
    let _fits = codec::encode(out, Generation::CURRENT, channel, payload);
}
