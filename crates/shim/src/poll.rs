//! Polling: one epoll instance, with the interest of each descriptor.

use std::os::fd::AsFd;
use std::time::Instant;

use carrel_poll::{Event, EventFlags, Token};
use rustix::io::Errno;

use crate::relay::Slot;

/// Identifies what a descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorToken {
    Guest,
    Listener,
    ControlSocket,
    Process,
    /// OOM notifications of the kernel.
    Memory,
    /// `SIGTERM`.
    Termination,
    Client(Slot),
    ControlClient(usize),
    /// A published port.
    Port(usize),
    /// A connection of a published port.
    Connection(usize),
}

/// What a descriptor is polled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Out-of-band data.
    pub(crate) urgent: bool,
}

/// A readiness event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(crate) token: DescriptorToken,
    pub(crate) readable: bool,
    /// The peer is gone, polled for or not.
    pub(crate) hangup: bool,
}

/// An epoll instance, level-triggered.
pub(crate) struct Poller(carrel_poll::Poller<DescriptorToken>);

// === impl Poller ===

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        carrel_poll::Poller::new().map(Self)
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: DescriptorToken, interest: Interest) -> Result<(), Errno> {
        self.0.add(fd, token, interest.flags())
    }

    pub(crate) fn change(&self, fd: impl AsFd, token: DescriptorToken, interest: Interest) -> Result<(), Errno> {
        self.0.modify(fd, token, interest.flags())
    }

    /// Deregisters a descriptor.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        self.0.remove(fd);
    }

    /// Waits for readiness or the deadline.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Result<Vec<Readiness>, Errno> {
        let readiness = |event: Event<DescriptorToken>| Readiness {
            token: event.token,
            readable: event.flags.contains(EventFlags::IN),
            hangup: event.flags.intersects(EventFlags::HUP | EventFlags::ERR),
        };
        Ok(self.0.wait(until)?.map(readiness).collect())
    }
}

// === impl Interest ===

impl Interest {
    pub(crate) const READ: Self = Self { read: true, write: false, urgent: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags.set(EventFlags::PRI, self.urgent);
        flags
    }
}

// === impl DescriptorToken ===

impl DescriptorToken {
    const CLIENTS: u64 = 16;
    const CONTROL_CLIENTS: u64 = 1024;
    const PORTS: u64 = 4096;
    const CONNECTIONS: u64 = 8192;
}

impl Token for DescriptorToken {
    fn pack(self) -> u64 {
        match self {
            Self::Guest => 0,
            Self::Listener => 1,
            Self::ControlSocket => 2,
            Self::Process => 3,
            Self::Memory => 4,
            Self::Termination => 5,
            Self::Client(slot) => Self::CLIENTS + slot as u64,
            Self::ControlClient(number) => Self::CONTROL_CLIENTS + number as u64,
            Self::Port(number) => Self::PORTS + number as u64,
            Self::Connection(slot) => Self::CONNECTIONS + slot as u64,
        }
    }

    fn unpack(data: u64) -> Option<Self> {
        Some(match data {
            0 => Self::Guest,
            1 => Self::Listener,
            2 => Self::ControlSocket,
            3 => Self::Process,
            4 => Self::Memory,
            5 => Self::Termination,
            Self::CONNECTIONS.. => Self::Connection(usize::try_from(data - Self::CONNECTIONS).ok()?),
            Self::PORTS.. => Self::Port(usize::try_from(data - Self::PORTS).ok()?),
            Self::CONTROL_CLIENTS.. => Self::ControlClient(usize::try_from(data - Self::CONTROL_CLIENTS).ok()?),
            _ => Self::Client(usize::try_from(data.checked_sub(Self::CLIENTS)?).ok()?),
        })
    }
}
