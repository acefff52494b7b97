//! Numbers and times that may be nothing.

use std::time::Duration;

use crate::size::{BadQuantity, Size, Time};

/// A number of bytes; none is fine.
pub(super) fn bytes(text: &str) -> Result<u64, BadQuantity> {
    or_nothing(text.parse().map(|Size(bytes)| bytes))
}

/// A length of time; no time at all is fine.
pub(super) fn patience(text: &str) -> Result<Duration, BadQuantity> {
    or_nothing(text.parse().map(|Time(time)| time))
}

fn or_nothing<T: Default>(parsed: Result<T, BadQuantity>) -> Result<T, BadQuantity> {
    match parsed {
        Err(BadQuantity::Zero) => Ok(T::default()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_a_number_of_bytes_and_a_time() {
        assert_eq!((bytes("0"), bytes("64k"), bytes("x")), (Ok(0), Ok(65_536), Err(BadQuantity::Size)));
        assert_eq!((patience("0"), patience("0s")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert_eq!((patience("2s"), patience("soon")), (Ok(Duration::from_secs(2)), Err(BadQuantity::Time)));
    }
}
