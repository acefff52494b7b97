//! The output of a command: one or two pipes, or a terminal.

use carrel_protocol::MessageType;
use rustix::io::Errno;
use rustix::termios::Winsize;

use crate::connection::OutgoingChunk;
use crate::poll::{PollSource, Readiness, SessionFd};
use crate::session::SessionKey;
use crate::shared_state::SessionIo;
use crate::sys;

/// The maximum chunk size without a limit of the peer: the capacity of a pipe.
const CHUNK: usize = 64 * 1024;

pub(super) struct CommandOutput {
    streams: [Option<OutputStream>; 2],
    tty: bool,
    /// Whether the command exited.
    settled: bool,
    /// Which stream is read first: they alternate.
    first: usize,
}

struct OutputStream {
    source: PollSource,
    message_type: MessageType,
    /// Bytes that were in the pipe when the command exited: its own output, always delivered.
    owed: u64,
}

/// The result of sending one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputProgress {
    /// A chunk of that many bytes was sent.
    Chunk(usize),
    /// Nothing is available now.
    Nothing,
}

// === impl CommandOutput ===

impl CommandOutput {
    pub(super) fn new(stdout: PollSource, stderr: Option<PollSource>, tty: bool) -> Self {
        let stream = |source, message_type| OutputStream { source, message_type, owed: 0 };
        let stderr = stderr.map(|source| stream(source, MessageType::ExecStderr));
        Self { streams: [Some(stream(stdout, MessageType::ExecStdout)), stderr], tty, settled: false, first: 0 }
    }

    pub(super) fn ready(&mut self, channel: SessionFd, readiness: Readiness) {
        let index = usize::from(channel == SessionFd::Stderr);
        if let Some(Some(stream)) = self.streams.get_mut(index) {
            stream.source.ready(readiness);
        }
    }

    /// Sends one chunk of the next stream that has data.
    pub(super) fn produce(&mut self, io: &mut SessionIo, key: SessionKey, limit: usize) -> OutputProgress {
        for turn in 0..2 {
            let index = (self.first + turn) % 2;
            let Some(slot) = self.streams.get_mut(index) else { continue };
            let Some(stream) = slot.as_mut().filter(|stream| stream.source.readable) else { continue };
            let mut chunk = OutgoingChunk::for_data(limit.min(CHUNK));
            match stream.source.read(chunk.buffer()) {
                Err(Errno::AGAIN) => {}
                // A terminal that no process has open reports an error instead of end of file; while the command runs,
                // it may be reopened.
                Err(Errno::IO) if self.tty && !self.settled => stream.source.readable = false,
                Ok(0) | Err(_) => *slot = None,
                Ok(count) => {
                    stream.owed = stream.owed.saturating_sub(count as u64);
                    io.send_data(key, stream.message_type, chunk);
                    self.first = 1 - index;
                    return OutputProgress::Chunk(count);
                }
            }
        }
        OutputProgress::Nothing
    }

    /// The command exited: what its pipes contain now is its own output.
    pub(super) fn command_exited(&mut self) {
        self.settled = true;
        for stream in self.streams.iter_mut().flatten() {
            stream.owed = sys::bytes_waiting(&stream.source.fd);
            stream.source.readable = true;
        }
    }

    /// Whether every stream reached its end.
    pub(super) fn is_over(&self) -> bool {
        self.streams.iter().all(Option::is_none)
    }

    /// Whether all of the command's own output is sent, and nothing else is available.
    pub(super) fn own_output_sent(&self) -> bool {
        self.streams.iter().flatten().all(|stream| stream.owed == 0)
    }

    pub(super) fn resize(&self, size: Winsize) {
        if let [Some(stream), _] = &self.streams {
            let _resized = rustix::termios::tcsetwinsize(&stream.source.fd, size);
        }
    }

    /// Leaves the pipes to background processes; a terminal is hung up.
    pub(super) fn release_pipes(&mut self, io: &mut SessionIo) {
        for stream in self.streams.iter_mut().filter_map(Option::take) {
            if !self.tty {
                io.orphaned_pipes.keep(&io.poller, stream.source.fd);
            }
        }
    }
}
