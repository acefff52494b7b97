//! Buffered input that arrived faster than its destination consumes it.

use std::collections::VecDeque;

use rustix::io::Errno;

use crate::poll::PollSource;

/// Chunks up to this size are merged.
const PIECE: usize = 16 * 1024;

/// Bytes waiting for a descriptor to become writable, possibly followed by end of input.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: VecDeque<Vec<u8>>,
    offset: usize,
    bytes: usize,
    ended: bool,
}

// === impl Backlog ===

impl Backlog {
    pub(crate) fn push(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() || self.ended {
            return;
        }
        self.bytes += bytes.len();
        match self.queue.back_mut() {
            // Small chunks are merged, so that the accounted size is the memory in use.
            Some(last) if last.len() + bytes.len() <= PIECE => last.extend_from_slice(&bytes),
            _ => self.queue.push_back(bytes),
        }
    }

    /// Marks the end of input.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether everything was written and input has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && self.queue.is_empty()
    }

    /// Whether input has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Discards the buffer.
    pub(crate) fn clear(&mut self) {
        *self = Self { ended: true, ..Self::default() };
    }

    /// Writes until the destination would block or the buffer is empty; returns the number of bytes written.
    pub(crate) fn write_to(&mut self, destination: &mut PollSource) -> Result<usize, Errno> {
        let mut taken = 0;
        while destination.writable {
            let Some(front) = self.queue.front() else { break };
            let rest = front.get(self.offset..).unwrap_or_default();
            match destination.write(rest) {
                Ok(count) => {
                    taken += count;
                    self.bytes = self.bytes.saturating_sub(count);
                    self.offset += count;
                    if count == rest.len() {
                        self.queue.pop_front();
                        self.offset = 0;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }
}
