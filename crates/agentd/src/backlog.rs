//! Input that arrived faster than its destination takes it.

use std::collections::VecDeque;

use rustix::io::Errno;

use crate::poll::Source;

/// Up to this size, pieces are put together.
const PIECE: usize = 16 * 1024;

/// Bytes in order, waiting for a descriptor to take them, and perhaps an end behind them.
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
            // Many small pieces become few large ones: what is counted is what is held.
            Some(last) if last.len() + bytes.len() <= PIECE => last.extend_from_slice(&bytes),
            _ => self.queue.push_back(bytes),
        }
    }

    /// Nothing follows.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Everything was taken, and nothing follows.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && self.queue.is_empty()
    }

    /// Nothing will follow, taken or not.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Drops what nobody will take.
    pub(crate) fn clear(&mut self) {
        *self = Self { ended: true, ..Self::default() };
    }

    /// Writes until the destination is full or everything is taken; returns how much was taken.
    pub(crate) fn write_to(&mut self, destination: &mut Source) -> Result<usize, Errno> {
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
