//! Polling: one edge-triggered epoll instance, with a token for each descriptor.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use carrel_poll::{Event, EventFlags, Token};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use crate::session::SessionKey;

/// Identifies what a descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollToken {
    /// The listening socket.
    Listener,
    Signals,
    /// The incoming side of a connection.
    Incoming(u16),
    /// The outgoing side of a connection.
    Outgoing(u16),
    /// One of a session's descriptors.
    Session(SessionKey, SessionFd),
    /// An orphaned pipe of a finished command.
    OrphanedPipe(u32),
}

/// Identifies a session's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionFd {
    /// Standard output, a terminal, a socket or a file.
    Primary,
    Stderr,
    /// What the session writes to: standard input, or a file.
    Stdin,
    /// The pipe on which a new process reports a failed start.
    SpawnStatus,
}

/// A descriptor with its readiness. Edges set the flags; `EAGAIN` clears them.
#[derive(Debug)]
pub(crate) struct PollSource {
    pub(crate) fd: OwnedFd,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// A readiness event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(crate) token: PollToken,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Both directions are closed.
    pub(crate) hung_up: bool,
}

/// An epoll instance, edge-triggered.
pub(crate) struct Poller(carrel_poll::Poller<PollToken>);

// === impl Poller ===

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        carrel_poll::Poller::new().map(Self)
    }

    /// Registers a descriptor for both directions. One that cannot be polled is always ready.
    pub(crate) fn add(&self, fd: impl AsFd, token: PollToken) -> Result<(), Errno> {
        match self.0.add(fd, token, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET) {
            Err(Errno::PERM) => Ok(()),
            outcome => outcome,
        }
    }

    /// Changes a registered descriptor to another token, level-triggered and for reading only.
    pub(crate) fn reassign(&self, fd: impl AsFd, token: PollToken) -> Result<(), Errno> {
        self.0.modify(fd, token, EventFlags::IN)
    }

    /// Deregisters a descriptor whose file stays open through a duplicate: closing it would not deregister it.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        self.0.remove(fd);
    }

    /// Disables or enables a descriptor.
    pub(crate) fn rest(&self, fd: impl AsFd, token: PollToken, resting: bool) {
        let flags = if resting { EventFlags::empty() } else { EventFlags::IN };
        let _watched = self.0.modify(fd, token, flags);
    }

    /// Registers a descriptor for a session. It starts as ready; the first attempt finds out.
    pub(crate) fn source(&self, fd: OwnedFd, key: SessionKey, channel: SessionFd) -> Result<PollSource, Errno> {
        self.add(&fd, PollToken::Session(key, channel))?;
        Ok(PollSource { fd, readable: true, writable: true })
    }

    /// Waits for readiness or the deadline.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Result<Vec<Readiness>, Errno> {
        let ended = EventFlags::HUP | EventFlags::ERR;
        let readiness = |event: Event<PollToken>| Readiness {
            token: event.token,
            readable: event.flags.intersects(EventFlags::IN | EventFlags::RDHUP | ended),
            writable: event.flags.intersects(EventFlags::OUT | ended),
            hung_up: event.flags.intersects(ended),
        };
        Ok(self.0.wait(until)?.map(readiness).collect())
    }
}

// === impl PollToken ===

impl Token for PollToken {
    /// `kind u8 | channel u8 | connection u16 | id u32`.
    fn pack(self) -> u64 {
        let (kind, channel, connection, id) = match self {
            Self::Listener => (0, 0, 0, 0),
            Self::Signals => (1, 0, 0, 0),
            Self::Incoming(connection) => (2, 0, connection, 0),
            Self::Outgoing(connection) => (3, 0, connection, 0),
            Self::Session(key, channel) => (4, channel as u64, key.connection, key.id),
            Self::OrphanedPipe(number) => (5, 0, 0, number),
        };
        kind << 56 | channel << 48 | u64::from(connection) << 32 | u64::from(id)
    }

    fn unpack(packed: u64) -> Option<Self> {
        let [kind, channel, c1, c0, i3, i2, i1, i0] = packed.to_be_bytes();
        let (connection, id) = (u16::from_be_bytes([c1, c0]), u32::from_be_bytes([i3, i2, i1, i0]));
        Some(match kind {
            0 => Self::Listener,
            1 => Self::Signals,
            2 => Self::Incoming(connection),
            3 => Self::Outgoing(connection),
            4 => Self::Session(
                SessionKey { connection, id },
                [SessionFd::Primary, SessionFd::Stderr, SessionFd::Stdin, SessionFd::SpawnStatus]
                    .into_iter()
                    .nth(channel.into())?,
            ),
            5 => Self::OrphanedPipe(id),
            _ => return None,
        })
    }
}

// === impl PollSource ===

impl PollSource {
    /// Records an edge.
    pub(crate) fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.writable |= readiness.writable;
    }

    /// Reads; clears readability on `EAGAIN`.
    pub(crate) fn read(&mut self, into: &mut Vec<u8>) -> Result<usize, Errno> {
        let outcome = retry(|| rustix::io::read(&self.fd, spare_capacity(into)));
        if outcome == Err(Errno::AGAIN) {
            self.readable = false;
        }
        outcome
    }

    /// Writes; clears writability on `EAGAIN`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let outcome = retry(|| rustix::io::write(&self.fd, bytes));
        if outcome == Err(Errno::AGAIN) {
            self.writable = false;
        }
        outcome
    }
}

/// Retries a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_round_trips_through_epoll_data() {
        let key = SessionKey { connection: 0xabcd, id: 0xdead_beef };
        for token in [
            PollToken::Listener,
            PollToken::Signals,
            PollToken::Incoming(u16::MAX),
            PollToken::Outgoing(7),
            PollToken::Session(key, SessionFd::Primary),
            PollToken::Session(key, SessionFd::SpawnStatus),
            PollToken::OrphanedPipe(u32::MAX),
        ] {
            assert_eq!(PollToken::unpack(token.pack()), Some(token));
        }
        assert_eq!(PollToken::unpack(u64::MAX), None);
    }
}
