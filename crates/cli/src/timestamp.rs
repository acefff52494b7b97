//! Timestamps and ages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds of a day.
const DAY: u64 = 24 * 60 * 60 * 1000;

/// A timestamp in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnixMillis(pub(crate) u64);

// === impl UnixMillis ===

impl UnixMillis {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// The time since then in its largest unit; zero if the clock was set back.
    pub(crate) fn age(self, now: Self) -> String {
        let seconds = Duration::from_millis(now.0.saturating_sub(self.0)).as_secs();
        match seconds {
            0..60 => format!("{seconds}s"),
            60..3600 => format!("{}m", seconds / 60),
            3600..172_800 => format!("{}h", seconds / 3600),
            _ => format!("{}d", seconds / 86_400),
        }
    }
}

impl std::fmt::Display for UnixMillis {
    /// RFC 3339, in UTC.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (year, month, day) = date(self.0 / DAY);
        let (of_day, millis) = (self.0 % DAY / 1000, self.0 % 1000);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// Converts a day since 1970 to a date: cycles of 400 years first, then years, then months.
fn date(days: u64) -> (u64, u64, u64) {
    /// Days of 400 years.
    const CYCLE: u64 = 146_097;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970 + days / CYCLE * 400, days % CYCLE);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_formatted_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_210_096_007, "2024-02-29T12:34:56.007Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (16_725_225_600_000, "2500-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(UnixMillis(millis).to_string(), text);
        }
        // Any value from a shim can be formatted.
        assert!(UnixMillis(u64::MAX).to_string().ends_with('Z'));
    }

    #[test]
    fn an_age_is_shown_in_its_largest_unit() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (7199, "1h"), (172_799, "47h"), (172_800, "2d")] {
            assert_eq!(UnixMillis(1000).age(UnixMillis(1000 + seconds * 1000)), text);
        }
        assert_eq!(UnixMillis(5000).age(UnixMillis(0)), "0s");
    }
}
