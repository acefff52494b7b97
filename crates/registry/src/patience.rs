//! How often something is tried, and how long one waits in between.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);
/// A registry that asks to wait longer than this is not waited for.
const LONGEST_ASKED: Duration = Duration::from_secs(120);

/// The tries that are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    left: u32,
    next: Duration,
}

// === impl Patience ===

impl Patience {
    /// For this many tries in all.
    pub(crate) const fn tries(tries: u32) -> Self {
        Self { left: tries, next: FIRST }
    }

    /// Counts a try that failed: how long to wait before the next one, if there is to be one. Who was asked may have said
    /// how long at least.
    pub(crate) fn failed(&mut self, asked: Option<Duration>) -> Option<Duration> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 || asked.is_some_and(|asked| asked > LONGEST_ASKED) {
            return None;
        }
        let wait = self.next.max(asked.unwrap_or_default());
        self.next = (self.next * 2).min(LONGEST);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_end() {
        let mut patience = Patience::tries(9);
        let waits: Vec<_> = std::iter::from_fn(|| patience.failed(None)).map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    }

    #[test]
    fn one_try_is_one_try() {
        assert_eq!(Patience::tries(1).failed(None), None);
    }

    #[test]
    fn what_a_registry_asks_for_is_waited_within_reason() {
        assert_eq!(Patience::tries(2).failed(Some(Duration::from_secs(30))), Some(Duration::from_secs(30)));
        assert_eq!(Patience::tries(2).failed(Some(Duration::ZERO)), Some(FIRST));
        assert_eq!(Patience::tries(2).failed(Some(Duration::from_secs(3600))), None);
    }
}
