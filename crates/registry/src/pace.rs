//! How slow a download may be.

use std::time::Duration;

/// So much has to come in such a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeastRate {
    pub(crate) bytes: u64,
    pub(crate) within: Duration,
}

/// What came of late. Only the time in which one waited counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    least: LeastRate,
    waited: Duration,
    came: u64,
}

/// Too little came for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooSlow(pub(crate) LeastRate);

// === impl LeastRate ===

impl Default for LeastRate {
    fn default() -> Self {
        // 1 KiB/s: whoever is slower keeps us waiting, and not much else.
        Self { bytes: 300 << 10, within: Duration::from_secs(300) }
    }
}

// === impl Pace ===

impl Pace {
    pub(crate) fn new(least: LeastRate) -> Self {
        Self { least, waited: Duration::ZERO, came: 0 }
    }

    /// Counts what came after a wait.
    pub(crate) fn came(&mut self, bytes: u64, waited: Duration) -> Result<(), TooSlow> {
        self.came += bytes;
        self.waited += waited;
        if self.waited < self.least.within {
            return Ok(());
        }
        if self.came < self.least.bytes {
            return Err(TooSlow(self.least));
        }
        *self = Self::new(self.least);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many pieces it is over, if it is before a thousand have come.
    fn over(bytes: u64, seconds: u64) -> Option<usize> {
        let mut pace = Pace::new(LeastRate::default());
        (0..1000).position(|_| pace.came(bytes, Duration::from_secs(seconds)).is_err())
    }

    #[test]
    fn a_byte_now_and_then_is_not_enough_and_a_kibibyte_a_second_is() {
        assert_eq!(over(1, 59), Some(5), "after the sixth, and six minutes");
        assert_eq!(over(1023, 1), Some(299));
        assert_eq!(over(1024, 1), None);
        assert_eq!(over(1 << 20, 0), None);
    }

    #[test]
    fn what_came_at_first_does_not_help_for_ever() {
        let mut pace = Pace::new(LeastRate::default());
        assert_eq!(pace.came(1 << 30, Duration::from_secs(300)), Ok(()));
        assert_eq!(pace.came(1, Duration::from_secs(299)), Ok(()));
        assert_eq!(pace.came(1, Duration::from_secs(1)), Err(TooSlow(LeastRate::default())));
    }
}
