//! Pipes of finished commands that background processes still write to.
//!
//! Closing them would kill a server at its next log line; not reading them would block it once they are full. So they
//! are read, and the data is discarded.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::poll::{PollToken, Poller, retry};

/// The maximum number of pipes; beyond it, the oldest is closed.
const MOST: usize = 256;

/// How long a pipe that was full is not read.
const REST: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct OrphanedPipes {
    pipes: BTreeMap<u32, OwnedFd>,
    next: u32,
    /// Throttled pipes, and when to read them again.
    resting: Vec<u32>,
    rested: Option<Instant>,
}

// === impl OrphanedPipes ===

impl OrphanedPipes {
    pub(super) fn keep(&mut self, poller: &Poller, pipe: OwnedFd) {
        self.next = self.next.wrapping_add(1);
        if poller.reassign(&pipe, PollToken::OrphanedPipe(self.next)).is_ok() {
            self.pipes.insert(self.next, pipe);
        }
        if self.pipes.len() > MOST {
            self.pipes.pop_first();
        }
    }

    /// Reads and discards data of a pipe. A pipe that was full is throttled, because its data is not needed.
    pub(crate) fn discard(&mut self, poller: &Poller, number: u32) {
        let Some(pipe) = self.pipes.get(&number) else { return };
        let mut buffer = [0; 16 * 1024];
        match retry(|| rustix::io::read(pipe, &mut buffer)) {
            Ok(count) if count == buffer.len() => {
                poller.rest(pipe, PollToken::OrphanedPipe(number), true);
                self.resting.push(number);
                self.rested.get_or_insert_with(|| Instant::now() + REST);
            }
            Ok(1..) | Err(Errno::AGAIN) => {}
            Ok(0) | Err(_) => drop(self.pipes.remove(&number)),
        }
    }

    /// The next time to resume throttled pipes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.rested
    }

    /// Resumes throttled pipes that are due.
    pub(crate) fn wake(&mut self, poller: &Poller, now: Instant) {
        if self.rested.is_some_and(|at| at <= now) {
            self.rested = None;
            for number in std::mem::take(&mut self.resting) {
                if let Some(pipe) = self.pipes.get(&number) {
                    poller.rest(pipe, PollToken::OrphanedPipe(number), false);
                }
            }
        }
    }
}
