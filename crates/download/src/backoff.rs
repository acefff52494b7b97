//! Retries with exponential backoff.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);
/// A server that asks for a longer delay than this is not retried.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Attempts that are left, and the next delay.
#[derive(Clone, Copy, Debug)]
pub struct RetryBackoff {
    left: u32,
    next: Duration,
}

// === impl RetryBackoff ===

impl RetryBackoff {
    /// Allows this many attempts in total.
    pub const fn attempts(attempts: u32) -> Self {
        Self { left: attempts, next: FIRST }
    }

    /// Sets the first delay.
    #[must_use]
    pub const fn first_delay(self, first: Duration) -> Self {
        Self { next: first, ..self }
    }

    /// Counts a failed attempt. Returns the delay before the next one, at least `Retry-After` if the server sent one;
    /// `None` if no attempt is left.
    pub fn next_delay(&mut self, retry_after: Option<Duration>) -> Option<Duration> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 || retry_after.is_some_and(|delay| delay > MAX_RETRY_AFTER) {
            return None;
        }
        let wait = self.next.max(retry_after.unwrap_or_default());
        self.next = (self.next * 2).min(LONGEST);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_end() {
        let mut backoff = RetryBackoff::attempts(9);
        let waits: Vec<_> = std::iter::from_fn(|| backoff.next_delay(None)).map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    }

    #[test]
    fn a_single_attempt_is_not_retried() {
        assert_eq!(RetryBackoff::attempts(1).next_delay(None), None);
    }

    #[test]
    fn a_requested_delay_is_honoured_up_to_a_limit() {
        assert_eq!(RetryBackoff::attempts(2).next_delay(Some(Duration::from_secs(30))), Some(Duration::from_secs(30)));
        assert_eq!(RetryBackoff::attempts(2).next_delay(Some(Duration::ZERO)), Some(FIRST));
        assert_eq!(RetryBackoff::attempts(2).next_delay(Some(Duration::from_secs(3600))), None);
    }
}
