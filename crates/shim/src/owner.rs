//! The owner of the sandbox, at the other end of standard input.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use carrel_protocol::frame::InvalidFrameLength;
use carrel_protocol::{DecodeError, Envelope, Frame};
use carrel_shim_client::messages::{Create, PeerProcess, ShimFailure, VERSION};
use carrel_shim_client::{ShimMessage, decode, encode};

/// The maximum length of a recorded command.
const LONGEST_COMMAND: u64 = 256;

/// The connection to the owner.
#[derive(Debug)]
pub(crate) struct Owner {
    stream: UnixStream,
    arrived: Vec<u8>,
}

struct OwnerMessage {
    body: Vec<u8>,
}

/// An invalid message of the owner.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnerError {
    #[error("owner disconnected before its create request")]
    Disconnected,
    #[error("owner did not send a create request")]
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

    /// Waits for the create request.
    pub(crate) fn create(&mut self) -> Result<Create, OwnerError> {
        let message = loop {
            if let Some(message) = self.next()? {
                break message;
            }
            let mut bytes = [0; 64 * 1024];
            match self.stream.read(&mut bytes)? {
                0 => return Err(OwnerError::Disconnected),
                count => self.arrived.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            }
        };
        let envelope = Envelope::parse(&message.body)?;
        decode::<Create>(&envelope).ok_or(OwnerError::Unexpected)?.map_err(OwnerError::Unreadable)
    }

    fn next(&mut self) -> Result<Option<OwnerMessage>, OwnerError> {
        let Some((frame, rest)) = Frame::split(&self.arrived)? else { return Ok(None) };
        let message = OwnerMessage { body: frame.body.to_vec() };
        let taken = self.arrived.len() - rest.len();
        self.arrived.drain(..taken);
        Ok(Some(message))
    }

    /// Sends a message to the owner. Ignored if it no longer reads.
    pub(crate) fn send<M: for<'b> ShimMessage<'b>>(&self, id: u32, message: &M) {
        self.send_with(id, message, None);
    }

    /// Sends a message with a descriptor to the owner.
    pub(crate) fn send_with<M: for<'b> ShimMessage<'b>>(
        &self,
        id: u32,
        message: &M,
        descriptor: Option<BorrowedFd<'_>>,
    ) {
        let mut frame = Vec::new();
        if encode(&mut frame, VERSION, id, message).is_err() {
            return;
        }
        // Responses are few and small; an owner that does not read them misses them.
        crate::control_socket::send_with(&self.stream, &frame, descriptor);
    }

    /// Its identity from the kernel's peer credentials, while it is alive.
    pub(crate) fn peer(&self) -> PeerProcess {
        let peer = crate::control_socket::peer(self.stream.as_fd());
        let began = carrel_shim_client::process_start_time(peer.pid).unwrap_or(0);
        PeerProcess { began, command: command(peer.pid), ..peer }
    }

    /// Converts it into an ordinary client: its socket, its identity, and received bytes.
    pub(crate) fn into_parts(self) -> (OwnedFd, PeerProcess, Vec<u8>) {
        let peer = crate::control_socket::peer(self.stream.as_fd());
        // From here on its socket is non-blocking.
        let _nonblocking = self.stream.set_nonblocking(true);
        (self.stream.into(), peer, self.arrived)
    }

    pub(crate) fn fail(&self, failed: &ShimFailure) {
        self.send(0, failed);
    }
}

/// The command of a process for display: on one line, and limited in length.
fn command(pid: u32) -> String {
    let mut command = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/cmdline"));
    let _read = file.and_then(|file| file.take(LONGEST_COMMAND).read_to_end(&mut command));
    let text = String::from_utf8_lossy(&command).replace('\0', " ");
    text.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
