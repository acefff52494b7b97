//! The owner of the sandbox, at the other end of standard input.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use carrel_protocol::frame::BrokenLength;
use carrel_protocol::{DecodeError, Envelope, Frame};
use carrel_shim_client::messages::{Create, Failed};
use carrel_shim_client::{Message, decode, encode};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// The connection to the owner.
#[derive(Debug)]
pub(crate) struct Owner {
    stream: UnixStream,
    arrived: Vec<u8>,
}

/// What an owner says.
pub(crate) struct Said {
    pub(crate) id: u32,
    pub(crate) body: Vec<u8>,
}

/// An owner that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnerFault {
    #[error("the owner left before it said what it wants")]
    Gone,
    #[error("the owner says something else than what it wants")]
    Unexpected,
    #[error(transparent)]
    Broken(#[from] BrokenLength),
    #[error(transparent)]
    Unreadable(#[from] DecodeError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

// === impl Owner ===

impl Owner {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, arrived: Vec::new() }
    }

    /// Waits for what is wanted.
    pub(crate) fn create(&mut self) -> Result<Create, OwnerFault> {
        let said = loop {
            if let Some(said) = self.next()? {
                break said;
            }
            let mut bytes = [0; 64 * 1024];
            match self.stream.read(&mut bytes)? {
                0 => return Err(OwnerFault::Gone),
                count => self.arrived.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            }
        };
        let envelope = Envelope::parse(&said.body)?;
        decode::<Create>(&envelope).ok_or(OwnerFault::Unexpected)?.map_err(OwnerFault::Unreadable)
    }

    /// Reads what has arrived. `Ok(false)` when the owner is gone.
    pub(crate) fn read(&mut self) -> Result<bool, OwnerFault> {
        let mut bytes = [0; 4096];
        match rustix::net::recv(&self.stream, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(false),
            Ok((count, _)) => {
                self.arrived.extend_from_slice(bytes.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(true),
            Err(errno) => Err(OwnerFault::Io(errno.into())),
        }
    }

    /// The next thing that was said.
    pub(crate) fn next(&mut self) -> Result<Option<Said>, OwnerFault> {
        let Some((frame, rest)) = Frame::split(&self.arrived)? else { return Ok(None) };
        let said = Said { id: frame.id, body: frame.body.to_vec() };
        let taken = self.arrived.len() - rest.len();
        self.arrived.drain(..taken);
        Ok(Some(said))
    }

    /// Tells the owner something. One that does not listen any more is told nothing.
    pub(crate) fn tell<M: Message>(&self, id: u32, message: &M) {
        self.tell_with(id, message, None);
    }

    /// Tells the owner something, and hands it a descriptor.
    pub(crate) fn tell_with<M: Message>(&self, id: u32, message: &M, descriptor: Option<BorrowedFd<'_>>) {
        let mut frame = Vec::new();
        if encode(&mut frame, id, message).is_err() {
            return;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        // Answers are few and small; an owner that lets them pile up misses them.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _heard = rustix::net::sendmsg(&self.stream, &[IoSlice::new(&frame)], &mut control, flags);
    }

    pub(crate) fn fail(&self, failed: &Failed) {
        self.tell(0, failed);
    }
}

impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
