//! Polling: one epoll instance, with the interest of each descriptor.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::relay::Slot;

/// Identifies what a descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorToken {
    Guest,
    Listener,
    /// The control socket.
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

/// An epoll instance.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

// === impl Poller ===

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, events: Vec::with_capacity(64) })
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: DescriptorToken, interest: Interest) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, token.data(), interest.flags())
    }

    pub(crate) fn change(&self, fd: impl AsFd, token: DescriptorToken, interest: Interest) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, token.data(), interest.flags())
    }

    /// Deregisters a descriptor.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // An unregistered descriptor need not be removed.
        let _watched = epoll::delete(&self.epoll, fd);
    }

    /// Waits for readiness or the deadline.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Result<Vec<Readiness>, Errno> {
        let timeout = until.map(|instant| {
            let left = instant.saturating_duration_since(Instant::now());
            // Rounded up to a millisecond, so that a timer is due when the wait for it ends.
            let left = if left.is_zero() { left } else { left + Duration::from_micros(999) };
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
        });
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let hangup = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let ready = |event: &epoll::Event| {
            let flags = event.flags;
            Some(Readiness {
                token: DescriptorToken::from_data(event.data.u64())?,
                readable: flags.contains(epoll::EventFlags::IN),
                hangup: flags.intersects(hangup),
            })
        };
        Ok(self.events.iter().filter_map(ready).collect())
    }
}

// === impl Interest ===

impl Interest {
    pub(crate) const READ: Self = Self { read: true, write: false, urgent: false };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags.set(epoll::EventFlags::PRI, self.urgent);
        flags
    }
}

// === impl DescriptorToken ===

impl DescriptorToken {
    const CLIENTS: u64 = 16;
    const CONTROL_CLIENTS: u64 = 1024;
    const PORTS: u64 = 4096;
    const CONNECTIONS: u64 = 8192;

    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
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
        })
    }

    fn from_data(data: u64) -> Option<Self> {
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
