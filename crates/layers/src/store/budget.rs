//! What one image may take: of bytes and entries, and of the room that the disk has left.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::archive::Limits;
use crate::unpack::Unpacked;

/// So many times as much as a layer may take, all layers of an image may take together.
const LAYERS: u64 = 4;
/// The disk keeps as much free: this, or that part of it, whichever is less. The same goes for the files that it can have.
const FREE_BYTES: u64 = 1 << 30;
const FREE_FILES: u64 = 10_000;
const FREE_PART: u64 = 20;

/// What is left of what an image may take.
pub(super) struct Budget {
    left: Mutex<Left>,
    given_back: Condvar,
}

struct Left {
    limits: Limits,
    /// How many have a share.
    shares: usize,
}

/// What a layer may take of it. Dropped, all of it is given back.
pub(super) struct Share<'a> {
    budget: &'a Budget,
    pub(super) limits: Limits,
}

/// What all layers of an image may take, by what one may.
pub(super) fn whole(layer: Limits) -> Limits {
    Limits { bytes: layer.bytes.saturating_mul(LAYERS), entries: layer.entries.saturating_mul(LAYERS) }
}

/// Whether the disk that something lies on has room for more.
pub(super) fn has_room(on: impl AsFd) -> io::Result<bool> {
    let disk = rustix::fs::fstatvfs(on)?;
    let block = disk.f_frsize;
    let bytes = is_enough(disk.f_bavail.saturating_mul(block), disk.f_blocks.saturating_mul(block), FREE_BYTES);
    // Some file systems do not count their files, and say that they can have none.
    Ok(bytes && is_enough(disk.f_favail, disk.f_files, FREE_FILES))
}

fn is_enough(left: u64, all: u64, free: u64) -> bool {
    left >= free.min(all / FREE_PART)
}

// === impl Budget ===

impl Budget {
    /// That of an image, by what a layer may take.
    pub(super) fn new(layer: Limits) -> Self {
        Self { left: Mutex::new(Left { limits: whole(layer), shares: 0 }), given_back: Condvar::new() }
    }

    /// Takes what a layer may have. Where there is less, what others give back is waited for; the last gets what is left.
    pub(super) fn share(&self, layer: Limits) -> Share<'_> {
        let enough = |left: &Left| left.limits.bytes >= layer.bytes && left.limits.entries >= layer.entries;
        let mut left = self.left();
        while !enough(&left) && left.shares > 0 {
            left = self.given_back.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        let Limits { bytes, entries } = left.limits;
        let limits = Limits { bytes: bytes.min(layer.bytes), entries: entries.min(layer.entries) };
        left.limits = Limits { bytes: bytes - limits.bytes, entries: entries - limits.entries };
        left.shares += 1;
        Share { budget: self, limits }
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Share ===

impl Share<'_> {
    /// Keeps what a layer has taken, and gives back the rest.
    pub(super) fn spend(mut self, unpacked: &Unpacked) {
        let Limits { bytes, entries } = self.limits;
        let spent = unpacked.spent();
        self.limits =
            Limits { bytes: bytes.saturating_sub(spent.bytes), entries: entries.saturating_sub(spent.entries) };
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut left = self.budget.left();
        let Limits { bytes, entries } = left.limits;
        left.limits = Limits {
            bytes: bytes.saturating_add(self.limits.bytes),
            entries: entries.saturating_add(self.limits.entries),
        };
        left.shares = left.shares.saturating_sub(1);
        drop(left);
        self.budget.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    const LAYER: Limits = Limits { bytes: 1 << 20, entries: 100 };

    fn unpacked(bytes: u64, entries: u64) -> Unpacked {
        Unpacked { diff_id: Digest::of(b""), bytes, entries, skipped: 0, made: Vec::new() }
    }

    #[test]
    fn what_layers_have_taken_is_left_to_none_after_them() {
        let budget = Budget::new(LAYER);
        for _ in 0..4 {
            let share = budget.share(LAYER);
            assert_eq!(share.limits, LAYER);
            share.spend(&unpacked(900 << 10, 10));
        }
        let bytes = 4 * ((1 << 20) - (900 << 10) - 10 * 4096);
        let share = budget.share(LAYER);
        assert_eq!(share.limits, Limits { bytes, entries: 100 });
        // One that fails has taken nothing.
        drop(share);
        assert_eq!(budget.share(LAYER).limits.bytes, bytes);
    }

    #[test]
    fn who_would_get_less_waits_for_what_others_give_back() {
        let budget = Budget::new(LAYER);
        budget.share(LAYER).spend(&unpacked(1, 0));
        let mut shares: Vec<_> = (0..3).map(|_| budget.share(LAYER)).collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.share(LAYER).limits);
            shares.pop();
            assert_eq!(waiting.join().unwrap(), LAYER);
        });
    }

    #[test]
    fn a_large_disk_keeps_a_gigabyte_and_a_small_one_a_part() {
        for (left, all, enough) in [
            (1 << 30, 1 << 40, true),
            ((1 << 30) - 1, 1 << 40, false),
            (6 << 20, 100 << 20, true),
            (4 << 20, 100 << 20, false),
            (0, 0, true),
        ] {
            assert_eq!(is_enough(left, all, FREE_BYTES), enough, "{left} of {all}");
        }
    }
}
