//! Durations and sizes, as they are written in the configuration.

use std::time::Duration;

use carrel_control::spec::units;

/// Examples of a duration, for messages.
pub(super) const DURATION: &str = "such as \"10m\", \"1h30m\" or \"0\"";
/// Examples of a size, for messages.
pub(super) const SIZE: &str = "such as 536870912, \"512m\" or \"1.5GiB\"";

/// Parses a duration; negative ones are invalid.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let time = units::duration(text).ok()?;
    Some(Duration::new(time.seconds.try_into().ok()?, time.nanos.try_into().ok()?))
}

/// Formats a duration so that it can be parsed again.
pub(super) fn format_duration(duration: Duration) -> String {
    let (mut rest, mut text) = (duration.as_nanos(), String::new());
    let units = [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("ns", 1)];
    for (name, unit) in units {
        if rest >= unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    if text.is_empty() { "0".to_owned() } else { text }
}

/// Parses a size in bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    if text == "0" { Some(0) } else { units::size(text).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formatted_duration_parses_to_the_same_value() {
        for text in ["0", "10m", "360h", "1h30m", "2s", "1m2ms", "7ns"] {
            assert_eq!(format_duration(duration(text).unwrap()), text);
        }
        assert_eq!(format_duration(duration("1.5h").unwrap()), "1h30m");
        assert_eq!((duration("-1s"), duration("10"), duration("")), (None, None, None));
    }

    #[test]
    fn zero_bytes_is_a_valid_size() {
        assert_eq!((size("0"), size("1.5GiB"), size("lots")), (Some(0), Some(3 << 29), None));
    }
}
