//! Output of a program: lines of standard output, and the end of standard error.

use std::io::{self, BufRead};

use bytes::{Bytes, BytesMut};
use tokio::{net::unix::pipe, sync::watch, task::coop};

use super::{Child, OutputLine};

const READ_SIZE: usize = 64 * 1024;

/// How much of standard error is kept.
const STDERR_TAIL: usize = 16 * 1024;

/// The reading end of a pipe. It ends with the program even if another process holds the writing end.
#[derive(Debug)]
struct OutputPipe {
    pipe: pipe::Receiver,
    gone: watch::Receiver<bool>,
    /// How much was in the pipe when the last process was gone: later writes are not the program's.
    remaining: Option<usize>,
}

/// Splits standard output into lines.
#[derive(Debug)]
pub(super) struct OutputLines {
    pipe: OutputPipe,
    /// Read, but not yet returned.
    buffer: BytesMut,
    /// How much of the buffer is known to have no newline.
    scanned: usize,
    /// Whether the rest of a truncated line is being skipped.
    skipping: bool,
    ended: bool,
}

// === impl OutputPipe ===

impl OutputPipe {
    fn new(pipe: pipe::Receiver, gone: watch::Receiver<bool>) -> Self {
        Self { pipe, gone, remaining: None }
    }

    /// Appends a block to the buffer and returns its length; 0 at the end. Cancel-safe.
    async fn read(&mut self, buffer: &mut BytesMut) -> usize {
        loop {
            if let Some(remaining) = self.remaining {
                let length = self.take(buffer, remaining.min(READ_SIZE)).unwrap_or_default();
                self.remaining = Some(remaining - length);
                return length;
            }
            let readable = tokio::select! {
                biased;
                _ = self.gone.wait_for(|gone| *gone) => None,
                readable = self.pipe.readable() => Some(readable.is_ok()),
            };
            buffer.reserve(READ_SIZE);
            match readable.map(|readable| readable.then(|| self.pipe.try_read_buf(buffer))) {
                None => self.remaining = Some(self.waiting()),
                Some(Some(Ok(length))) => return length,
                Some(Some(Err(error))) if error.kind() == io::ErrorKind::WouldBlock => {}
                Some(None | Some(Err(_))) => return 0,
            }
        }
    }

    /// How many bytes are in the pipe.
    fn waiting(&self) -> usize {
        rustix::io::ioctl_fionread(&self.pipe).ok().and_then(|length| length.try_into().ok()).unwrap_or_default()
    }

    /// Reads from the pipe directly, without waiting for readiness.
    fn take(&self, buffer: &mut BytesMut, length: usize) -> rustix::io::Result<usize> {
        let mut block = vec![0; length];
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&self.pipe, &mut *block))?;
        buffer.extend_from_slice(block.get(..length).unwrap_or_default());
        Ok(length)
    }
}

// === impl OutputLines ===

impl OutputLines {
    pub(super) fn new(pipe: pipe::Receiver, gone: watch::Receiver<bool>) -> Self {
        let pipe = OutputPipe::new(pipe, gone);
        Self { pipe, buffer: BytesMut::new(), scanned: 0, skipping: false, ended: false }
    }

    /// The next line. Reads only if none is buffered, so that backpressure reaches the program.
    pub(super) async fn next(&mut self) -> Option<OutputLine> {
        // Buffered lines must not starve other tasks.
        coop::consume_budget().await;
        loop {
            if let Some(line) = self.split() {
                return Some(line);
            }
            if self.ended {
                let rest = self.buffer.split().freeze();
                return (!rest.is_empty()).then_some(OutputLine::Unterminated(rest));
            }
            self.ended = self.pipe.read(&mut self.buffer).await == 0;
        }
    }

    /// Takes a line from the buffer.
    pub(super) fn split(&mut self) -> Option<OutputLine> {
        loop {
            let end = self.end();
            if self.skipping {
                let _ = self.take(end.unwrap_or(self.buffer.len()));
                self.skipping = end.is_none();
                end?;
                continue;
            }
            match end {
                Some(end) if end - 1 <= Child::MAX_LINE => {
                    let mut line = self.take(end);
                    line.truncate(end - 1);
                    return Some(OutputLine::Complete(line));
                }
                None if self.buffer.len() <= Child::MAX_LINE => return None,
                _ => {
                    self.skipping = true;
                    return Some(OutputLine::Truncated(self.take(Child::MAX_LINE)));
                }
            }
        }
    }

    /// Position after the first newline.
    fn end(&mut self) -> Option<usize> {
        let mut rest = self.buffer.get(self.scanned..)?;
        // The standard library's search compares many bytes at once.
        let length = rest.skip_until(b'\n').unwrap_or_default();
        let end = self.scanned + length;
        self.scanned = end;
        (self.buffer.get(..end)?.last() == Some(&b'\n')).then_some(end)
    }

    fn take(&mut self, length: usize) -> Bytes {
        self.scanned = 0;
        self.buffer.split_to(length).freeze()
    }
}

/// Reads standard error to its end, and keeps the last part.
pub(super) async fn tail(pipe: pipe::Receiver, gone: watch::Receiver<bool>) -> String {
    let mut pipe = OutputPipe::new(pipe, gone);
    let mut tail_bytes = BytesMut::new();
    while pipe.read(&mut tail_bytes).await > 0 {
        let _ = tail_bytes.split_to(tail_bytes.len().saturating_sub(STDERR_TAIL));
    }
    String::from_utf8_lossy(&tail_bytes).into_owned()
}
