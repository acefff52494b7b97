//! Value parsers for sizes and durations that may be zero.

use std::time::Duration;

use crate::size::{InvalidQuantity, Size, TimeSpan};

/// A number of bytes; zero is allowed.
pub(super) fn bytes(text: &str) -> Result<u64, InvalidQuantity> {
    or_zero(text.parse().map(|Size(bytes)| bytes))
}

/// A duration; zero is allowed.
pub(super) fn duration(text: &str) -> Result<Duration, InvalidQuantity> {
    or_zero(text.parse().map(|TimeSpan(time)| time))
}

fn or_zero<T: Default>(parsed: Result<T, InvalidQuantity>) -> Result<T, InvalidQuantity> {
    match parsed {
        Err(InvalidQuantity::Zero) => Ok(T::default()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_a_valid_size_and_duration() {
        assert_eq!((bytes("0"), bytes("64k"), bytes("x")), (Ok(0), Ok(65_536), Err(InvalidQuantity::Size)));
        assert_eq!((duration("0"), duration("0s")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert_eq!((duration("2s"), duration("soon")), (Ok(Duration::from_secs(2)), Err(InvalidQuantity::TimeSpan)));
    }
}
