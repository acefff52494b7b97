//! Where those come who talk to the supervisor itself: they ask, and are answered when there is something to say.
//!
//! A caller that does not read its answers is given no more of them and is not listened to; nobody else notices.

mod caller;
mod pump;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use carrel_shim_client::Message;
use carrel_shim_client::messages::{Hello, Peer};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};

pub(crate) use self::caller::{Caller, Follow, Request};
pub(crate) use self::pump::cannot_read;
use crate::jobs::{Asker, Jobs};
use crate::poll::{Interest, Poller, Token};

/// How many callers there may be.
const MOST: usize = 1024;
/// How many are let in before those who are there have their turn.
const ACCEPTS_AT_A_TURN: usize = 16;

/// All callers.
pub(crate) struct Desk {
    listener: UnixListener,
    listening: bool,
    callers: Vec<Option<Caller>>,
    hello: Hello,
    /// Room for a piece of output on its way to a caller.
    piece: Vec<u8>,
    /// Something may have to be told.
    pub(crate) stirred: bool,
}

// === impl Desk ===

impl Desk {
    pub(crate) fn new(listener: UnixListener, hello: Hello, poller: &Poller) -> Result<Self, Errno> {
        poller.add(&listener, Token::Desk, Interest::READ)?;
        Ok(Self { listener, listening: true, callers: Vec::new(), hello, piece: Vec::new(), stirred: false })
    }

    /// Lets in whoever waits.
    pub(crate) fn accept(&mut self, poller: &Poller) {
        for _ in 0..ACCEPTS_AT_A_TURN {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let peer = peer(&socket);
                    // Nobody else gets this far, unless somebody opened the directory.
                    if ![0, rustix::process::geteuid().as_raw()].contains(&peer.user) {
                        continue;
                    }
                    // One too many is closed without a word.
                    let Some(number) = self.admit(Caller::new(socket, peer), poller) else { continue };
                    let hello = self.hello.clone();
                    self.tell(number, 0, &hello);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // Without descriptors nobody else comes in until one is free.
                Err(_) => return self.listen(poller, false),
            }
        }
    }

    /// Takes a caller in.
    pub(crate) fn admit(&mut self, caller: Caller, poller: &Poller) -> Option<usize> {
        let number = self.callers.iter().position(Option::is_none).unwrap_or(self.callers.len());
        if number >= MOST || poller.add(&caller, Token::Caller(number), Interest::READ).is_err() {
            return None;
        }
        match self.callers.get_mut(number) {
            Some(place) => *place = Some(caller),
            None => self.callers.push(Some(caller)),
        }
        Some(number)
    }

    /// Lets callers in, or lets them wait.
    pub(crate) fn listen(&mut self, poller: &Poller, listening: bool) {
        if self.listening != listening {
            let interest = Interest { read: listening, ..Interest::default() };
            let changed = poller.change(&self.listener, Token::Desk, interest);
            self.listening = listening == changed.is_ok();
        }
    }

    pub(crate) fn caller(&mut self, number: usize) -> Option<&mut Caller> {
        self.callers.get_mut(number)?.as_mut()
    }

    /// Tells everybody something.
    pub(crate) fn tell_all<'b, M: Message<'b>>(&mut self, message: &M) {
        self.callers.iter_mut().flatten().for_each(|caller| caller.tell(0, message));
    }

    /// Tells a caller something.
    pub(crate) fn tell<'b, M: Message<'b>>(&mut self, number: usize, id: u32, message: &M) {
        if let Some(caller) = self.caller(number) {
            caller.tell(id, message);
        }
    }

    /// Ends the request of one who asked, with an answer.
    pub(crate) fn answer<'b, M: Message<'b>>(&mut self, asker: Asker, message: &M) {
        // One that was withdrawn, or whose caller is gone, is answered no further.
        let Some(caller) = self.caller(asker.connection) else { return };
        if caller.finish(asker.request).is_some() {
            caller.tell(asker.request, message);
        }
    }

    /// A caller is gone, and all that it asked for.
    pub(crate) fn dismiss(&mut self, number: usize, jobs: &mut Jobs, poller: &Poller) {
        let Some(caller) = self.callers.get_mut(number).and_then(Option::take) else { return };
        // Somebody else may have the same socket open: closing it here would not be the end of it.
        poller.remove(&caller);
        for request in caller.requests.into_values() {
            if let Request::Follow(follow) = request {
                jobs.watch(follow.key, false);
            }
        }
        jobs.forget(number);
        // Nobody has to wait for it any more.
        self.stirred = true;
        self.listen(poller, true);
    }

    /// Sends what waits, as far as there is room; returns who is gone.
    pub(crate) fn flush(&mut self) -> Vec<usize> {
        let gone = |(number, caller): (usize, &mut Option<Caller>)| {
            let caller = caller.as_mut()?;
            (!caller.flush()).then_some(number)
        };
        self.callers.iter_mut().enumerate().filter_map(gone).collect()
    }

    /// Whether something waits for somebody.
    pub(crate) fn has_unsent(&self) -> bool {
        self.callers.iter().flatten().any(|caller| caller.has_unsent() || caller.is_owed())
    }

    /// Watches each caller for what is needed of it now. While `patient` is false, nobody is listened to.
    pub(crate) fn watch(&mut self, poller: &Poller, patient: bool) -> Result<(), Errno> {
        for (number, caller) in self.callers.iter_mut().enumerate() {
            let Some(caller) = caller else { continue };
            let interest = caller.wanted(patient);
            if interest != caller.interest {
                poller.change(&*caller, Token::Caller(number), interest)?;
                caller.interest = interest;
            }
        }
        Ok(())
    }

    /// Gives back memory that is not needed.
    pub(crate) fn rest(&mut self) {
        self.piece = Vec::new();
        self.callers.iter_mut().flatten().for_each(Caller::rest);
    }
}

/// Who is at the other end, as the kernel says.
pub(crate) fn peer(socket: impl AsFd) -> Peer {
    match rustix::net::sockopt::socket_peercred(socket) {
        Ok(credentials) => Peer {
            pid: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
            user: credentials.uid.as_raw(),
            began: 0,
            command: String::new(),
        },
        Err(_) => Peer { pid: 0, user: u32::MAX, began: 0, command: String::new() },
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
