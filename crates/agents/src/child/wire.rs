//! Messages between server and guard.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Command of the server. The end of the stream means [`GuardCommand::Kill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardCommand {
    /// Send SIGTERM to the program.
    Terminate,
    /// Kill everything.
    Kill,
}

/// Report of a guard about its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardReport {
    /// Spawned, with this process id.
    Started(i32),
    /// Spawning failed with this errno.
    SpawnFailed(i32),
    /// Exited with this code; no process is left.
    Exited(i32),
    /// Killed by this signal; no process is left.
    Signalled(i32),
}

/// First byte of the stream, which carries the program's standard input.
const HELLO: u8 = b'h';

/// Sends the guard the program's end of the input pipe.
pub(super) fn send_fd(stream: impl AsFd, input: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [input];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(stream, &[IoSlice::new(&[HELLO])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`send_fd`] sent; `None` if the server is gone.
pub(super) fn receive_fd(stream: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut hello = [0];
    rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut hello)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

// === impl GuardCommand ===

impl GuardCommand {
    pub(super) fn encode(self) -> u8 {
        match self {
            Self::Terminate => b't',
            Self::Kill => b'k',
        }
    }

    /// Reads the next command.
    pub(super) fn read(mut stream: impl Read) -> Self {
        let mut byte = [0];
        match stream.read_exact(&mut byte) {
            Ok(()) if byte == [Self::Terminate.encode()] => Self::Terminate,
            _ => Self::Kill,
        }
    }
}

// === impl GuardReport ===

impl GuardReport {
    /// Length of an encoded report.
    pub(super) const LENGTH: usize = 5;

    pub(super) fn encode(self) -> [u8; Self::LENGTH] {
        let (kind, number) = match self {
            Self::Started(pid) => (b's', pid),
            Self::SpawnFailed(errno) => (b'r', errno),
            Self::Exited(code) => (b'e', code),
            Self::Signalled(signal) => (b'k', signal),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, a, b, c, d]
    }

    pub(super) fn decode([kind, a, b, c, d]: [u8; Self::LENGTH]) -> io::Result<Self> {
        let number = i32::from_le_bytes([a, b, c, d]);
        match kind {
            b's' => Ok(Self::Started(number)),
            b'r' => Ok(Self::SpawnFailed(number)),
            b'e' => Ok(Self::Exited(number)),
            b'k' => Ok(Self::Signalled(number)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The program's process id, if this is the first report of a guard.
    pub(super) fn started(self) -> io::Result<u32> {
        match self {
            Self::Started(pid) => u32::try_from(pid).map_err(io::Error::other),
            Self::SpawnFailed(errno) => Err(io::Error::from_raw_os_error(errno)),
            Self::Exited(_) | Self::Signalled(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    pub(super) fn write(self, mut stream: impl Write) -> io::Result<()> {
        stream.write_all(&self.encode())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_report_survives_encoding() {
        for report in [
            GuardReport::Started(4_194_304),
            GuardReport::SpawnFailed(2),
            GuardReport::Exited(255),
            GuardReport::Signalled(64),
        ] {
            assert_eq!(GuardReport::decode(report.encode()).unwrap(), report);
        }
        assert!(GuardReport::decode(*b"x\0\0\0\0").is_err());
    }

    #[test]
    fn an_unknown_command_and_the_end_of_the_stream_mean_kill() {
        assert_eq!(GuardCommand::read(&b"t"[..]), GuardCommand::Terminate);
        for bytes in [&b"k"[..], b"", b"?"] {
            assert_eq!(GuardCommand::read(bytes), GuardCommand::Kill);
        }
    }

    #[test]
    fn a_descriptor_is_sent_over_the_stream() {
        let (here, there) = UnixStream::pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send_fd(&here, reader.as_fd()).unwrap();
        drop(reader);
        let taken = receive_fd(&there).unwrap().unwrap();
        rustix::io::write(&writer, b"through").unwrap();
        drop(writer);
        let mut text = String::new();
        std::fs::File::from(taken).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        drop(here);
        assert!(receive_fd(&there).unwrap().is_none());
    }
}
