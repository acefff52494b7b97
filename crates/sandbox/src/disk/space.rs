//! How much of a file system is free, and how much of that has to stay so.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// The most inodes that are kept free where the operator does not say how many.
const RESERVED_INODES: u64 = 65_536;
/// The part of all inodes of a file system that is kept free at most in that case.
const RESERVED_PART: u64 = 16;

/// What is free on a file system, for those who are not root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// In bytes.
    pub bytes: u64,
    /// Inodes; none where the file system does not count them.
    pub inodes: Option<u64>,
    /// All inodes that it has, used or not; 0 where it does not count them.
    pub all_inodes: u64,
}

/// How much of the host's own disk has to stay free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// In bytes.
    pub bytes: u64,
    /// In inodes; none is 65,536 or a sixteenth of all, whichever is less.
    pub inodes: Option<u64>,
}

// === impl FreeSpace ===

impl FreeSpace {
    /// What is free on the file system of a descriptor.
    pub fn of(on: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstatvfs(on)?;
        Ok(Self {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            inodes: (stat.f_files > 0).then_some(stat.f_favail),
            all_inodes: stat.f_files,
        })
    }
}

// === impl Reserve ===

impl Reserve {
    /// Whether anything has to stay free at all.
    pub fn is_some(self) -> bool {
        self.bytes > 0
    }

    /// How many inodes have to stay free on a file system.
    pub fn inodes_on(self, free: FreeSpace) -> u64 {
        self.inodes.unwrap_or_else(|| RESERVED_INODES.min(free.all_inodes / RESERVED_PART))
    }

    /// Whether less is free than has to be.
    pub fn is_touched(self, free: FreeSpace) -> bool {
        free.bytes < self.bytes || free.inodes.is_some_and(|inodes| inodes < self.inodes_on(free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_touched_when_bytes_or_inodes_are_fewer() {
        let reserve = Reserve { bytes: 10, inodes: Some(5) };
        let free = |bytes, inodes| FreeSpace { bytes, inodes, all_inodes: 1000 };
        assert!(!reserve.is_touched(free(10, Some(5))));
        assert!(reserve.is_touched(free(9, Some(5))));
        assert!(reserve.is_touched(free(10, Some(4))));
        assert!(!reserve.is_touched(free(10, None)), "a file system without a number of inodes has no end of them");
    }

    #[test]
    fn the_inodes_that_nobody_named_are_no_more_than_a_sixteenth() {
        let reserve = Reserve { bytes: 1, inodes: None };
        let on = |all_inodes| reserve.inodes_on(FreeSpace { bytes: 1, inodes: Some(1), all_inodes });
        assert_eq!((on(16_000), on(1 << 30)), (1000, 65_536));
    }
}
