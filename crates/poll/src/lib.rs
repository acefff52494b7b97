//! Polling: one epoll instance, with a typed token for each descriptor.

#![forbid(unsafe_code)]

use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

pub use rustix::event::epoll::EventFlags;

/// The events that one wait returns at most.
const BATCH: usize = 64;

/// Identifies what a descriptor belongs to, in the 64 bits that the kernel keeps with it.
pub trait Token: Sized {
    /// The token as a number.
    fn pack(self) -> u64;
    /// The token of a number; `None` for a number that no token has.
    fn unpack(packed: u64) -> Option<Self>;
}

/// A descriptor is ready.
#[derive(Clone, Copy, Debug)]
pub struct Event<T> {
    /// The token it was registered with.
    pub token: T,
    /// What it is ready for.
    pub flags: EventFlags,
}

/// An epoll instance.
pub struct Poller<T> {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    token: PhantomData<fn(T) -> T>,
}

// === impl Poller ===

impl<T: Token> Poller<T> {
    /// Creates an instance without descriptors.
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(BATCH), token: PhantomData })
    }

    /// Registers a descriptor.
    pub fn add(&self, fd: impl AsFd, token: T, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token.pack()), flags)
    }

    /// Changes the token and the flags of a registered descriptor.
    pub fn modify(&self, fd: impl AsFd, token: T, flags: EventFlags) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token.pack()), flags)
    }

    /// Deregisters a descriptor, if it is registered. Closing it does the same only if no duplicate of it is open.
    pub fn remove(&self, fd: impl AsFd) {
        let _not_registered = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events or the deadline. A signal ends the wait early.
    pub fn wait(&mut self, until: Option<Instant>) -> Result<impl Iterator<Item = Event<T>>, Errno> {
        let timeout = until.map(timeout);
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let typed = |event: &epoll::Event| Some(Event { token: T::unpack(event.data.u64())?, flags: event.flags });
        Ok(self.events.iter().filter_map(typed))
    }
}

/// The time until a deadline, rounded up to a millisecond, so that a timer is due when the wait for it ends.
fn timeout(until: Instant) -> Timespec {
    let left = until.saturating_duration_since(Instant::now());
    let left = if left.is_zero() { left } else { left + Duration::from_micros(999) };
    Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Number(u64);

    impl Token for Number {
        fn pack(self) -> u64 {
            self.0
        }

        fn unpack(packed: u64) -> Option<Self> {
            (packed != 0).then_some(Self(packed))
        }
    }

    fn ready(poller: &mut Poller<Number>) -> Vec<(u64, EventFlags)> {
        poller.wait(Some(Instant::now())).unwrap().map(|event| (event.token.0, event.flags)).collect()
    }

    #[test]
    fn an_event_has_the_token_of_its_descriptor() {
        let mut poller = Poller::new().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        poller.add(&reader, Number(7), EventFlags::IN).unwrap();
        assert_eq!(ready(&mut poller), []);
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(ready(&mut poller), [(7, EventFlags::IN)]);
        poller.modify(&reader, Number(u64::MAX), EventFlags::IN).unwrap();
        assert_eq!(ready(&mut poller), [(u64::MAX, EventFlags::IN)]);
        poller.modify(&reader, Number(0), EventFlags::IN).unwrap();
        assert_eq!(ready(&mut poller), [], "an unknown token");
        poller.remove(&reader);
        poller.remove(&reader);
        assert_eq!(ready(&mut poller), []);
    }

    #[test]
    fn a_deadline_in_the_past_does_not_wait_and_others_are_rounded_up() {
        let past = timeout(Instant::now() - Duration::from_secs(1));
        assert_eq!((past.tv_sec, past.tv_nsec), (0, 0));
        let soon = timeout(Instant::now() + Duration::from_micros(100));
        assert!(soon.tv_nsec > 900_000, "{}", soon.tv_nsec);
    }
}
