//! What a program says: lines of its standard output, and the last of its standard error.

use std::io::{self, BufRead};

use bytes::{Bytes, BytesMut};
use tokio::{net::unix::pipe, sync::watch, task::coop};

use super::{Child, Line};

/// How much is read at once.
const BLOCK: usize = 64 * 1024;

/// How much of the standard error is kept.
const TAIL: usize = 16 * 1024;

/// The reading end of a pipe, which ends with the program even if somebody else holds the other end.
#[derive(Debug)]
struct Pipe {
    pipe: pipe::Receiver,
    gone: watch::Receiver<bool>,
    /// How much was in the pipe when nothing was left of the program: whoever writes after that is not ours.
    left: Option<usize>,
}

/// The lines of a standard output.
#[derive(Debug)]
pub(super) struct Lines {
    pipe: Pipe,
    /// Read, and not yet given to anybody.
    buffer: BytesMut,
    /// How much of it is known to have no line's end.
    searched: usize,
    /// Whether what comes belongs to a line that was cut.
    skipping: bool,
    ended: bool,
}

// === impl Pipe ===

impl Pipe {
    fn new(pipe: pipe::Receiver, gone: watch::Receiver<bool>) -> Self {
        Self { pipe, gone, left: None }
    }

    /// Reads a block behind what is there, and returns how much came: nothing at the end. May be dropped without loss.
    async fn read(&mut self, buffer: &mut BytesMut) -> usize {
        loop {
            if let Some(left) = self.left {
                let length = self.take(buffer, left.min(BLOCK)).unwrap_or_default();
                self.left = Some(left - length);
                return length;
            }
            let readable = tokio::select! {
                biased;
                _ = self.gone.wait_for(|gone| *gone) => None,
                readable = self.pipe.readable() => Some(readable.is_ok()),
            };
            buffer.reserve(BLOCK);
            match readable.map(|readable| readable.then(|| self.pipe.try_read_buf(buffer))) {
                None => self.left = Some(self.waiting()),
                Some(Some(Ok(length))) => return length,
                Some(Some(Err(error))) if error.kind() == io::ErrorKind::WouldBlock => {}
                Some(None | Some(Err(_))) => return 0,
            }
        }
    }

    /// How much is in the pipe.
    fn waiting(&self) -> usize {
        rustix::io::ioctl_fionread(&self.pipe).ok().and_then(|length| length.try_into().ok()).unwrap_or_default()
    }

    /// Reads what is in the pipe, whether or not the runtime has heard of it.
    fn take(&self, buffer: &mut BytesMut, length: usize) -> rustix::io::Result<usize> {
        let mut block = vec![0; length];
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&self.pipe, &mut *block))?;
        buffer.extend_from_slice(block.get(..length).unwrap_or_default());
        Ok(length)
    }
}

// === impl Lines ===

impl Lines {
    pub(super) fn new(pipe: pipe::Receiver, gone: watch::Receiver<bool>) -> Self {
        let pipe = Pipe::new(pipe, gone);
        Self { pipe, buffer: BytesMut::new(), searched: 0, skipping: false, ended: false }
    }

    /// The next line. Reads only if none is there, so that a program which says more than is read has to wait.
    pub(super) async fn next(&mut self) -> Option<Line> {
        // Lines that lie ready would otherwise keep everybody else from their turn.
        coop::consume_budget().await;
        loop {
            if let Some(line) = self.split() {
                return Some(line);
            }
            if self.ended {
                let rest = self.buffer.split().freeze();
                return (!rest.is_empty()).then_some(Line::Torn(rest));
            }
            self.ended = self.pipe.read(&mut self.buffer).await == 0;
        }
    }

    /// Takes a line from what was read.
    pub(super) fn split(&mut self) -> Option<Line> {
        loop {
            let end = self.end();
            if self.skipping {
                let _ = self.take(end.unwrap_or(self.buffer.len()));
                self.skipping = end.is_none();
                end?;
                continue;
            }
            match end {
                Some(end) if end - 1 <= Child::LONGEST => {
                    let mut line = self.take(end);
                    line.truncate(end - 1);
                    return Some(Line::Whole(line));
                }
                None if self.buffer.len() <= Child::LONGEST => return None,
                _ => {
                    self.skipping = true;
                    return Some(Line::Cut(self.take(Child::LONGEST)));
                }
            }
        }
    }

    /// Where the first line ends, behind its end.
    fn end(&mut self) -> Option<usize> {
        let mut rest = self.buffer.get(self.searched..)?;
        // The standard library's own search, which looks at many bytes at once.
        let length = rest.skip_until(b'\n').unwrap_or_default();
        let end = self.searched + length;
        self.searched = end;
        (self.buffer.get(..end)?.last() == Some(&b'\n')).then_some(end)
    }

    fn take(&mut self, length: usize) -> Bytes {
        self.searched = 0;
        self.buffer.split_to(length).freeze()
    }
}

/// Reads a standard error to its end, and keeps the last of it.
pub(super) async fn tail(pipe: pipe::Receiver, gone: watch::Receiver<bool>) -> String {
    let mut pipe = Pipe::new(pipe, gone);
    let mut kept = BytesMut::new();
    while pipe.read(&mut kept).await > 0 {
        let _ = kept.split_to(kept.len().saturating_sub(TAIL));
    }
    String::from_utf8_lossy(&kept).into_owned()
}
