//! The owner of the sandbox, at the other end of standard input.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use carrel_protocol::frame::InvalidFrameLength;
use carrel_protocol::{DecodeError, Envelope, Frame};
use carrel_shim_client::messages::{Create, Failed, Peer, VERSION};
use carrel_shim_client::{Message, decode, encode};

/// How much of a command is remembered.
const LONGEST_COMMAND: u64 = 256;

/// The connection to the owner.
#[derive(Debug)]
pub(crate) struct Owner {
    stream: UnixStream,
    arrived: Vec<u8>,
}

/// What an owner says.
struct Said {
    body: Vec<u8>,
}

/// An owner that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnerFault {
    #[error("the owner left before it said what it wants")]
    Gone,
    #[error("the owner says something else than what it wants")]
    Unexpected,
    #[error(transparent)]
    Broken(#[from] InvalidFrameLength),
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

    /// The next thing that was said.
    fn next(&mut self) -> Result<Option<Said>, OwnerFault> {
        let Some((frame, rest)) = Frame::split(&self.arrived)? else { return Ok(None) };
        let said = Said { body: frame.body.to_vec() };
        let taken = self.arrived.len() - rest.len();
        self.arrived.drain(..taken);
        Ok(Some(said))
    }

    /// Tells the owner something. One that does not listen any more is told nothing.
    pub(crate) fn tell<M: for<'b> Message<'b>>(&self, id: u32, message: &M) {
        self.tell_with(id, message, None);
    }

    /// Tells the owner something, and hands it a descriptor.
    pub(crate) fn tell_with<M: for<'b> Message<'b>>(&self, id: u32, message: &M, descriptor: Option<BorrowedFd<'_>>) {
        let mut frame = Vec::new();
        if encode(&mut frame, VERSION, id, message).is_err() {
            return;
        }
        // Answers are few and small; an owner that lets them pile up misses them.
        crate::desk::send_with(&self.stream, &frame, descriptor);
    }

    /// Who it is, as the kernel says, and as long as it is there to be looked at.
    pub(crate) fn peer(&self) -> Peer {
        let peer = crate::desk::peer(self.stream.as_fd());
        let began = carrel_shim_client::began(peer.pid).unwrap_or(0);
        Peer { began, command: command(peer.pid), ..peer }
    }

    /// What is left of it when it is a caller like others: its socket, who it is, and what it has said.
    pub(crate) fn into_parts(self) -> (OwnedFd, Peer, Vec<u8>) {
        let peer = crate::desk::peer(self.stream.as_fd());
        // One that could still be waited for is not read: it answers at once, or not at all.
        let _nonblocking = self.stream.set_nonblocking(true);
        (self.stream.into(), peer, self.arrived)
    }

    pub(crate) fn fail(&self, failed: &Failed) {
        self.tell(0, failed);
    }
}

/// The command of a process, for people: on one line, and not too long.
fn command(pid: u32) -> String {
    let mut words = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/cmdline"));
    let _read = file.and_then(|file| file.take(LONGEST_COMMAND).read_to_end(&mut words));
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    text.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
