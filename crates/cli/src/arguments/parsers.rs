//! Value parsers for sizes and time spans.

use std::time::Duration;

use carrel_units::{ByteSize, ParseUnitError, TimeSpan};

/// A text that is not a valid amount for an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AmountError {
    Unit(ParseUnitError),
    Zero,
}

/// A number of bytes; zero is allowed.
pub(super) fn bytes(text: &str) -> Result<u64, ParseUnitError> {
    text.parse().map(|ByteSize(bytes)| bytes)
}

/// A time span; zero is allowed.
pub(super) fn duration(text: &str) -> Result<Duration, ParseUnitError> {
    text.parse().map(|TimeSpan(span)| span)
}

/// A size above zero.
pub(super) fn positive_size(text: &str) -> Result<ByteSize, AmountError> {
    match text.parse() {
        Ok(ByteSize(0)) => Err(AmountError::Zero),
        parsed => parsed.map_err(AmountError::Unit),
    }
}

/// A time span above zero.
pub(super) fn positive_span(text: &str) -> Result<TimeSpan, AmountError> {
    match text.parse() {
        Ok(TimeSpan(Duration::ZERO)) => Err(AmountError::Zero),
        parsed => parsed.map_err(AmountError::Unit),
    }
}

// === impl AmountError ===

impl std::fmt::Display for AmountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unit(error) => error.fmt(f),
            Self::Zero => f.write_str("must be greater than zero"),
        }
    }
}

impl std::error::Error for AmountError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_valid_where_it_means_never_or_nothing() {
        assert_eq!((bytes("0"), bytes("64k"), bytes("x")), (Ok(0), Ok(65_536), Err(ParseUnitError::Size)));
        assert_eq!((duration("0"), duration("0s")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert_eq!((duration("2s"), duration("soon")), (Ok(Duration::from_secs(2)), Err(ParseUnitError::Span)));
    }

    #[test]
    fn a_limit_is_above_zero() {
        assert_eq!((positive_size("0"), positive_size("1")), (Err(AmountError::Zero), Ok(ByteSize(1))));
        assert_eq!(
            (positive_span("0s"), positive_span("1")),
            (Err(AmountError::Zero), Ok(TimeSpan(Duration::from_secs(1))))
        );
        assert_eq!(positive_size("x"), Err(AmountError::Unit(ParseUnitError::Size)));
    }
}
