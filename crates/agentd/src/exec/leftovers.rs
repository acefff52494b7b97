//! Pipes of finished commands that something in the background still writes to.
//!
//! Closing them would end a server the moment it logs; keeping them unread would stop it once they are full. So they
//! are read, and what is read is dropped.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::poll::{Poller, Token, retry};

/// How many are kept; beyond it, the oldest is closed.
const MOST: usize = 256;

/// The pipes.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    pipes: BTreeMap<u32, OwnedFd>,
    next: u32,
}

// === impl Leftovers ===

impl Leftovers {
    pub(super) fn keep(&mut self, poller: &Poller, pipe: OwnedFd) {
        self.next = self.next.wrapping_add(1);
        if poller.hand_over(&pipe, Token::Leftover(self.next)).is_ok() {
            self.pipes.insert(self.next, pipe);
        }
        if self.pipes.len() > MOST {
            self.pipes.pop_first();
        }
    }

    /// Reads and drops some of what a pipe holds; one that holds more is reported again.
    pub(crate) fn discard(&mut self, number: u32) {
        let Some(pipe) = self.pipes.get(&number) else { return };
        let mut buffer = [0; 16 * 1024];
        match retry(|| rustix::io::read(pipe, &mut buffer)) {
            Ok(1..) | Err(Errno::AGAIN) => {}
            Ok(0) | Err(_) => drop(self.pipes.remove(&number)),
        }
    }
}
