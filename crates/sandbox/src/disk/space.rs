//! The free space of a file system, and the part of it that is reserved.

use std::os::fd::AsFd;

use carrel_units::ByteSize;
use rustix::io::Errno;

/// The default reserve of inodes, unless a sixteenth of all is less.
const RESERVED_INODES: u64 = 65_536;
/// The default reserve as a fraction of all inodes.
const RESERVED_PART: u64 = 16;

/// The free space of a file system for users other than root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    pub bytes: u64,
    /// All bytes, used or free.
    pub all_bytes: u64,
    /// In inodes; none if the file system does not count them.
    pub inodes: Option<u64>,
    /// All inodes, used or free; 0 if the file system does not count them.
    pub all_inodes: u64,
}

/// A paused sandbox never waits for more than this fraction of the used space to become free, which is always possible.
const FREED_PART: u64 = 4;

/// How much of the host's own disk stays free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceReserve {
    pub bytes: u64,
    /// In inodes; the default is 65,536 or a sixteenth of all, whichever is less.
    pub inodes: Option<u64>,
}

/// How much has to be free before a paused sandbox resumes, of the resource that was short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeThreshold {
    /// Bytes were short.
    Bytes(u64),
    /// Inodes were short.
    Inodes(u64),
}

// === impl FreeSpace ===

impl FreeSpace {
    /// The free space on the file system of a descriptor.
    pub fn of(on: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstatvfs(on)?;
        Ok(Self {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            all_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            inodes: (stat.f_files > 0).then_some(stat.f_favail),
            all_inodes: stat.f_files,
        })
    }
}

// === impl FreeSpaceReserve ===

impl FreeSpaceReserve {
    /// Whether anything is reserved.
    pub fn is_some(self) -> bool {
        self.bytes > 0
    }

    /// How many inodes of a file system are reserved.
    pub fn inodes_on(self, free: FreeSpace) -> u64 {
        self.inodes.unwrap_or_else(|| RESERVED_INODES.min(free.all_inodes / RESERVED_PART))
    }

    /// Whether less is free than is reserved.
    pub fn is_touched(self, free: FreeSpace) -> bool {
        free.bytes < self.bytes || free.inodes.is_some_and(|inodes| inodes < self.inodes_on(free))
    }

    /// The free and the reserved amount of the resource that is short, for messages.
    pub fn describe(self, free: FreeSpace) -> String {
        match free.inodes.filter(|inodes| free.bytes >= self.bytes && *inodes < self.inodes_on(free)) {
            Some(inodes) => format!("{inodes} inodes free, {} reserved", self.inodes_on(free)),
            None => format!("{} free, {} reserved", ByteSize(free.bytes), ByteSize(self.bytes)),
        }
    }

    /// When a sandbox resumes that is paused at this much free space.
    pub fn resume_threshold(self, paused_at: FreeSpace) -> ResumeThreshold {
        let reserved = self.inodes_on(paused_at);
        if paused_at.bytes >= self.bytes && paused_at.inodes.is_some_and(|inodes| inodes < reserved) {
            return ResumeThreshold::Inodes(reserved);
        }
        let free = resume_free_bytes(self.bytes, paused_at.bytes, paused_at.all_bytes);
        ResumeThreshold::Bytes(free.max(self.bytes))
    }

    /// The free space, the reserve that a writing sandbox is paused for, and when it resumes, for messages. It is paused before
    /// the reserve is touched, so more may be free than is reserved.
    pub fn describe_pause(self, free: FreeSpace, resumes_at: ResumeThreshold) -> String {
        match resumes_at {
            ResumeThreshold::Bytes(at) => {
                let [free, reserved, at] = [free.bytes, self.bytes, at].map(ByteSize);
                format!("{free} free, must stay above {reserved}, resumes at {at}")
            }
            ResumeThreshold::Inodes(at) => {
                let (inodes, reserved) = (free.inodes.unwrap_or(0), self.inodes_on(free));
                format!("{inodes} inodes free, must stay above {reserved}, resumes at {at}")
            }
        }
    }

    /// Whether enough has become free since a sandbox was paused to resume it: so much that it is not paused again at once.
    pub fn allows_resume(self, paused_at: FreeSpace, now: FreeSpace) -> bool {
        !self.is_touched(now) && now.bytes >= resume_free_bytes(self.bytes, paused_at.bytes, paused_at.all_bytes)
    }
}

/// How many bytes have to be free before a sandbox resumes that was paused when `free` of `all` were: `more` in addition, or
/// a quarter of the used ones if that is less.
pub fn resume_free_bytes(more: u64, free: u64, all: u64) -> u64 {
    free.saturating_add(more.min(all.saturating_sub(free) / FREED_PART).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_described_in_its_own_unit() {
        let free = |bytes, inodes| FreeSpace { bytes, all_bytes: 9 << 30, inodes, all_inodes: 9 };
        let reserve = FreeSpaceReserve { bytes: 2 << 30, inodes: Some(5) };
        assert_eq!(reserve.describe(free((1 << 30) + (256 << 20), Some(9))), "1.2 GiB free, 2 GiB reserved");
        assert_eq!(reserve.describe(free(3 << 30, Some(4))), "4 inodes free, 5 reserved");
        assert_eq!(reserve.describe(free(4096, None)), "4 KiB free, 2 GiB reserved");
        assert_eq!(reserve.describe(free(0, Some(0))), "0 bytes free, 2 GiB reserved");
    }

    #[test]
    fn a_pause_is_described_with_what_it_is_for_and_when_it_ends() {
        let free = |bytes, inodes| FreeSpace { bytes, all_bytes: 9 << 30, inodes, all_inodes: 9 };
        let reserve = FreeSpaceReserve { bytes: 1 << 30, inodes: Some(5) };
        let described = |free| reserve.describe_pause(free, reserve.resume_threshold(free));
        // It was paused before the reserve was touched.
        assert_eq!(
            described(free((1 << 30) + (512 << 20), Some(9))),
            "1.5 GiB free, must stay above 1 GiB, resumes at 2.5 GiB"
        );
        assert_eq!(described(free(0, Some(9))), "0 bytes free, must stay above 1 GiB, resumes at 1 GiB");
        assert_eq!(described(free(3 << 30, Some(4))), "4 inodes free, must stay above 5, resumes at 5");
        let later = reserve.describe_pause(free(2 << 30, None), ResumeThreshold::Bytes(5 << 29));
        assert_eq!(later, "2 GiB free, must stay above 1 GiB, resumes at 2.5 GiB");
    }

    #[test]
    fn a_reserve_is_touched_when_bytes_or_inodes_are_fewer() {
        let reserve = FreeSpaceReserve { bytes: 10, inodes: Some(5) };
        let free = |bytes, inodes| FreeSpace { bytes, all_bytes: 1000, inodes, all_inodes: 1000 };
        assert!(!reserve.is_touched(free(10, Some(5))));
        assert!(reserve.is_touched(free(9, Some(5))));
        assert!(reserve.is_touched(free(10, Some(4))));
        assert!(!reserve.is_touched(free(10, None)), "a file system that does not count inodes is never short of them");
    }

    #[test]
    fn the_default_reserve_of_inodes_is_at_most_a_sixteenth() {
        let reserve = FreeSpaceReserve { bytes: 1, inodes: None };
        let on = |all_inodes| reserve.inodes_on(FreeSpace { bytes: 1, all_bytes: 9, inodes: Some(1), all_inodes });
        assert_eq!((on(16_000), on(1 << 30)), (1000, 65_536));
    }

    #[test]
    fn a_resume_never_waits_for_more_space_than_exists() {
        let free = |bytes, all_bytes| FreeSpace { bytes, all_bytes, inodes: None, all_inodes: 0 };
        for all in [61, 100, 180, 1000, 1 << 40] {
            for at in [0, 30, 59, 60, 61, 145, 170] {
                let (reserve, paused_at) = (FreeSpaceReserve { bytes: 60, inodes: None }, free(at.min(all), all));
                assert!(!reserve.allows_resume(paused_at, paused_at), "{at} of {all}: nothing has become free");
                assert!(at >= all || reserve.allows_resume(paused_at, free(all, all)), "{at} of {all}");
            }
        }
        assert_eq!((resume_free_bytes(60, 70, 1 << 30), resume_free_bytes(60, 145, 181)), (130, 154));
        let reserve = FreeSpaceReserve { bytes: 60, inodes: None };
        assert!(!reserve.allows_resume(free(5, 100), free(59, 100)), "the free reserve is not enough");
    }
}
