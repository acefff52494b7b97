//! Lengths of time and numbers of bytes, as they are written everywhere.

use std::time::Duration;

use carrel_control::spec::units;

/// What a time looks like.
pub(super) const TIME: &str = "such as \"10m\", \"1h30m\" or \"0\"";
/// What a number of bytes looks like.
pub(super) const SIZE: &str = "such as 536870912, \"512m\" or \"1.5GiB\"";

/// A length of time; none is below nothing.
pub(super) fn time(text: &str) -> Option<Duration> {
    let time = units::duration(text).ok()?;
    Some(Duration::new(time.seconds.try_into().ok()?, time.nanos.try_into().ok()?))
}

/// The same as text, in the form that is read.
pub(super) fn time_text(time: Duration) -> String {
    let (mut rest, mut text) = (time.as_nanos(), String::new());
    let units = [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("ns", 1)];
    for (name, unit) in units {
        if rest >= unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    if text.is_empty() { "0".to_owned() } else { text }
}

/// A number of bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    if text == "0" { Some(0) } else { units::size(text).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_said_as_it_is_read() {
        for text in ["0", "10m", "360h", "1h30m", "2s", "1m2ms", "7ns"] {
            assert_eq!(time_text(time(text).unwrap()), text);
        }
        assert_eq!(time_text(time("1.5h").unwrap()), "1h30m");
        assert_eq!((time("-1s"), time("10"), time("")), (None, None, None));
    }

    #[test]
    fn no_bytes_at_all_are_a_size() {
        assert_eq!((size("0"), size("1.5GiB"), size("lots")), (Some(0), Some(3 << 29), None));
    }
}
