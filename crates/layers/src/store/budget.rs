//! Limits of one image: bytes, entries, and free disk space.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::archive::ArchiveLimits;
use crate::unpack::UnpackedLayer;

/// The limit of an image, as a multiple of a layer's.
const LAYERS: u64 = 4;
/// Free space to keep: this, or this fraction of the disk, whichever is less. The same for inodes.
const FREE_BYTES: u64 = 1 << 30;
const FREE_FILES: u64 = 10_000;
const FREE_PART: u64 = 20;

/// What is left of an image's limits.
pub(super) struct ImageBudget {
    left: Mutex<BudgetState>,
    given_back: Condvar,
}

struct BudgetState {
    limits: ArchiveLimits,
    /// The number of active shares.
    shares: usize,
}

/// The part of the limits that is reserved for a layer, returned on drop.
pub(super) struct BudgetShare<'a> {
    budget: &'a ImageBudget,
    pub(super) limits: ArchiveLimits,
}

/// The limits of an image, from those of a layer.
pub(super) fn whole(layer: ArchiveLimits) -> ArchiveLimits {
    ArchiveLimits { bytes: layer.bytes.saturating_mul(LAYERS), entries: layer.entries.saturating_mul(LAYERS) }
}

/// Whether a disk has enough free space.
pub(super) fn has_room(on: impl AsFd) -> io::Result<bool> {
    let disk = rustix::fs::fstatvfs(on)?;
    let block = disk.f_frsize;
    let bytes = is_enough(disk.f_bavail.saturating_mul(block), disk.f_blocks.saturating_mul(block), FREE_BYTES);
    // Some file systems do not count inodes and report zero.
    Ok(bytes && is_enough(disk.f_favail, disk.f_files, FREE_FILES))
}

fn is_enough(left: u64, all: u64, free: u64) -> bool {
    left >= free.min(all / FREE_PART)
}

// === impl ImageBudget ===

impl ImageBudget {
    /// The budget of an image, from the limits of a layer.
    pub(super) fn new(layer: ArchiveLimits) -> Self {
        Self { left: Mutex::new(BudgetState { limits: whole(layer), shares: 0 }), given_back: Condvar::new() }
    }

    /// Reserves a share. Waits if less than a full one is left; the last layer gets what remains.
    pub(super) fn share(&self, layer: ArchiveLimits) -> BudgetShare<'_> {
        let enough = |left: &BudgetState| left.limits.bytes >= layer.bytes && left.limits.entries >= layer.entries;
        let mut left = self.left();
        while !enough(&left) && left.shares > 0 {
            left = self.given_back.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        let ArchiveLimits { bytes, entries } = left.limits;
        let limits = ArchiveLimits { bytes: bytes.min(layer.bytes), entries: entries.min(layer.entries) };
        left.limits = ArchiveLimits { bytes: bytes - limits.bytes, entries: entries - limits.entries };
        left.shares += 1;
        BudgetShare { budget: self, limits }
    }

    fn left(&self) -> MutexGuard<'_, BudgetState> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl BudgetShare ===

impl BudgetShare<'_> {
    /// Consumes what a layer used, and returns the rest.
    pub(super) fn spend(mut self, unpacked: &UnpackedLayer) {
        let ArchiveLimits { bytes, entries } = self.limits;
        let spent = unpacked.spent();
        self.limits =
            ArchiveLimits { bytes: bytes.saturating_sub(spent.bytes), entries: entries.saturating_sub(spent.entries) };
    }
}

impl Drop for BudgetShare<'_> {
    fn drop(&mut self) {
        let mut left = self.budget.left();
        let ArchiveLimits { bytes, entries } = left.limits;
        left.limits = ArchiveLimits {
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

    const LAYER: ArchiveLimits = ArchiveLimits { bytes: 1 << 20, entries: 100 };

    fn unpacked(bytes: u64, entries: u64) -> UnpackedLayer {
        UnpackedLayer { diff_id: Digest::of(b""), bytes, entries, skipped: 0, made: Vec::new() }
    }

    #[test]
    fn what_a_layer_consumed_is_not_available_to_later_ones() {
        let budget = ImageBudget::new(LAYER);
        for _ in 0..4 {
            let share = budget.share(LAYER);
            assert_eq!(share.limits, LAYER);
            share.spend(&unpacked(900 << 10, 10));
        }
        let bytes = 4 * ((1 << 20) - (900 << 10) - 10 * 4096);
        let share = budget.share(LAYER);
        assert_eq!(share.limits, ArchiveLimits { bytes, entries: 100 });
        // A failed layer consumes nothing.
        drop(share);
        assert_eq!(budget.share(LAYER).limits.bytes, bytes);
    }

    #[test]
    fn a_layer_waits_for_shares_that_others_return() {
        let budget = ImageBudget::new(LAYER);
        budget.share(LAYER).spend(&unpacked(1, 0));
        let mut shares: Vec<_> = (0..3).map(|_| budget.share(LAYER)).collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.share(LAYER).limits);
            shares.pop();
            assert_eq!(waiting.join().unwrap(), LAYER);
        });
    }

    #[test]
    fn a_large_disk_keeps_a_gigabyte_free_and_a_small_one_a_fraction() {
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
