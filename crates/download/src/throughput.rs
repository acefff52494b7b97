//! The minimum throughput of a download.

use std::time::Duration;

/// At least `bytes` in each period of `within`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinThroughput {
    pub bytes: u64,
    /// The period.
    pub within: Duration,
}

/// Measures throughput. Only time spent waiting for the network counts.
#[derive(Clone, Copy, Debug)]
pub struct ThroughputMeter {
    minimum: MinThroughput,
    waited: Duration,
    received: u64,
}

/// The download was slower than this minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("less than {} bytes in {} seconds", .0.bytes, .0.within.as_secs())]
pub struct BelowMinThroughput(pub MinThroughput);

// === impl MinThroughput ===

impl Default for MinThroughput {
    fn default() -> Self {
        // 1 KiB/s: below that a download only occupies a connection.
        Self { bytes: 300 << 10, within: Duration::from_secs(300) }
    }
}

// === impl ThroughputMeter ===

impl ThroughputMeter {
    /// Starts to measure.
    pub fn new(minimum: MinThroughput) -> Self {
        Self { minimum, waited: Duration::ZERO, received: 0 }
    }

    /// Counts bytes that arrived after a wait.
    pub fn record(&mut self, bytes: u64, waited: Duration) -> Result<(), BelowMinThroughput> {
        self.received += bytes;
        self.waited += waited;
        if self.waited < self.minimum.within {
            return Ok(());
        }
        if self.received < self.minimum.bytes {
            return Err(BelowMinThroughput(self.minimum));
        }
        *self = Self::new(self.minimum);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many chunks the minimum is violated, within the first thousand.
    fn over(bytes: u64, seconds: u64) -> Option<usize> {
        let mut meter = ThroughputMeter::new(MinThroughput::default());
        (0..1000).position(|_| meter.record(bytes, Duration::from_secs(seconds)).is_err())
    }

    #[test]
    fn single_bytes_are_too_slow_and_a_kibibyte_per_second_is_not() {
        assert_eq!(over(1, 59), Some(5), "after the sixth, and six minutes");
        assert_eq!(over(1023, 1), Some(299));
        assert_eq!(over(1024, 1), None);
        assert_eq!(over(1 << 20, 0), None);
    }

    #[test]
    fn a_fast_start_does_not_excuse_a_later_stall() {
        let mut meter = ThroughputMeter::new(MinThroughput::default());
        assert_eq!(meter.record(1 << 30, Duration::from_secs(300)), Ok(()));
        assert_eq!(meter.record(1, Duration::from_secs(299)), Ok(()));
        assert_eq!(meter.record(1, Duration::from_secs(1)), Err(BelowMinThroughput(MinThroughput::default())));
    }
}
