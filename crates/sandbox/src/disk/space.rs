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
    /// All bytes that it has, used or not.
    pub all_bytes: u64,
    /// Inodes; none where the file system does not count them.
    pub inodes: Option<u64>,
    /// All inodes that it has, used or not; 0 where it does not count them.
    pub all_inodes: u64,
}

/// The part of what is used that has to become free at most before one who was paused goes on: that can always come true.
const FREED_PART: u64 = 4;

/// How much of the host's own disk has to stay free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// In bytes.
    pub bytes: u64,
    /// In inodes; none is 65,536 or a sixteenth of all, whichever is less.
    pub inodes: Option<u64>,
}

/// How much has to be free before one continues that was paused, of whatever was short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeThreshold {
    /// Bytes were short.
    Bytes(u64),
    /// Inodes were short.
    Inodes(u64),
}

// === impl FreeSpace ===

impl FreeSpace {
    /// What is free on the file system of a descriptor.
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

    /// What is free and what is reserved of whatever is short, for people.
    pub fn describe(self, free: FreeSpace) -> String {
        match free.inodes.filter(|inodes| free.bytes >= self.bytes && *inodes < self.inodes_on(free)) {
            Some(inodes) => format!("{inodes} inodes free, {} reserved", self.inodes_on(free)),
            None => format!("{} free, {} reserved", binary_size(free.bytes), binary_size(self.bytes)),
        }
    }

    /// When one continues that is paused while so much is free.
    pub fn resume_threshold(self, paused_at: FreeSpace) -> ResumeThreshold {
        let reserved = self.inodes_on(paused_at);
        if paused_at.bytes >= self.bytes && paused_at.inodes.is_some_and(|inodes| inodes < reserved) {
            return ResumeThreshold::Inodes(reserved);
        }
        let room = room_again(self.bytes, paused_at.bytes, paused_at.all_bytes);
        ResumeThreshold::Bytes(room.max(self.bytes))
    }

    /// What is free, what one who writes is paused for, and when it continues, for people. One is paused before the reserve is
    /// touched, so more may be free than is reserved.
    pub fn describe_pause(self, free: FreeSpace, resumes_at: ResumeThreshold) -> String {
        match resumes_at {
            ResumeThreshold::Bytes(at) => {
                let [free, reserved, at] = [free.bytes, self.bytes, at].map(binary_size);
                format!("{free} free, must stay above {reserved}, resumes at {at}")
            }
            ResumeThreshold::Inodes(at) => {
                let (inodes, reserved) = (free.inodes.unwrap_or(0), self.inodes_on(free));
                format!("{inodes} inodes free, must stay above {reserved}, resumes at {at}")
            }
        }
    }

    /// Whether so much has become free since somebody was paused that it can go on, and is not paused and let go in turns.
    pub fn has_room_again(self, paused_at: FreeSpace, now: FreeSpace) -> bool {
        !self.is_touched(now) && now.bytes >= room_again(self.bytes, paused_at.bytes, paused_at.all_bytes)
    }
}

/// A size in the largest unit that it has one of, with one digit behind the point.
pub(crate) fn binary_size(bytes: u64) -> String {
    for (unit, shift) in [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return match (tenths / 10, tenths % 10) {
                (whole, 0) => format!("{whole} {unit}"),
                (whole, tenth) => format!("{whole}.{tenth} {unit}"),
            };
        }
    }
    format!("{bytes} {}", if bytes == 1 { "byte" } else { "bytes" })
}

/// How much has to be free before one goes on that was paused when `free` of `all` was: as much more as is wanted, or a
/// quarter of what was used if that is less.
pub fn room_again(wanted: u64, free: u64, all: u64) -> u64 {
    free.saturating_add(wanted.min(all.saturating_sub(free) / FREED_PART).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_described_in_its_own_unit() {
        let free = |bytes, inodes| FreeSpace { bytes, all_bytes: 9 << 30, inodes, all_inodes: 9 };
        let reserve = Reserve { bytes: 2 << 30, inodes: Some(5) };
        assert_eq!(reserve.describe(free((1 << 30) + (256 << 20), Some(9))), "1.2 GiB free, 2 GiB reserved");
        assert_eq!(reserve.describe(free(3 << 30, Some(4))), "4 inodes free, 5 reserved");
        assert_eq!(reserve.describe(free(4096, None)), "4 KiB free, 2 GiB reserved");
        assert_eq!(reserve.describe(free(0, Some(0))), "0 bytes free, 2 GiB reserved");
    }

    #[test]
    fn a_pause_is_described_with_what_it_is_for_and_when_it_ends() {
        let free = |bytes, inodes| FreeSpace { bytes, all_bytes: 9 << 30, inodes, all_inodes: 9 };
        let reserve = Reserve { bytes: 1 << 30, inodes: Some(5) };
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
        let reserve = Reserve { bytes: 10, inodes: Some(5) };
        let free = |bytes, inodes| FreeSpace { bytes, all_bytes: 1000, inodes, all_inodes: 1000 };
        assert!(!reserve.is_touched(free(10, Some(5))));
        assert!(reserve.is_touched(free(9, Some(5))));
        assert!(reserve.is_touched(free(10, Some(4))));
        assert!(!reserve.is_touched(free(10, None)), "a file system without a number of inodes has no end of them");
    }

    #[test]
    fn the_inodes_that_nobody_named_are_no_more_than_a_sixteenth() {
        let reserve = Reserve { bytes: 1, inodes: None };
        let on = |all_inodes| reserve.inodes_on(FreeSpace { bytes: 1, all_bytes: 9, inodes: Some(1), all_inodes });
        assert_eq!((on(16_000), on(1 << 30)), (1000, 65_536));
    }

    #[test]
    fn what_has_to_become_free_is_never_more_than_there_is() {
        let free = |bytes, all_bytes| FreeSpace { bytes, all_bytes, inodes: None, all_inodes: 0 };
        for all in [61, 100, 180, 1000, 1 << 40] {
            for at in [0, 30, 59, 60, 61, 145, 170] {
                let (reserve, paused_at) = (Reserve { bytes: 60, inodes: None }, free(at.min(all), all));
                assert!(!reserve.has_room_again(paused_at, paused_at), "{at} of {all}: nothing has become free");
                assert!(at >= all || reserve.has_room_again(paused_at, free(all, all)), "{at} of {all}");
            }
        }
        assert_eq!((room_again(60, 70, 1 << 30), room_again(60, 145, 181)), (130, 154));
        let reserve = Reserve { bytes: 60, inodes: None };
        assert!(!reserve.has_room_again(free(5, 100), free(59, 100)), "the reserve itself is no room");
    }
}
