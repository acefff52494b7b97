//! A time span: `30s`, `1h30m`, `0.5s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{ParseUnitError, digits};

/// A time span. A bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan(pub Duration);

const SECOND: i128 = 1_000_000_000;
/// The units of Go's durations, in nanoseconds.
const UNITS: [(&str, i128); 8] = [
    ("h", 3600 * SECOND),
    ("m", 60 * SECOND),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1000),
    ("µs", 1000),
    ("μs", 1000),
    ("ns", 1),
];
const DAY: (&str, i128) = ("d", 24 * 3600 * SECOND);

/// Parses a span as Go does, in nanoseconds: numbers with units of at most hours, in any order. It may be negative.
pub fn signed_nanos(text: &str) -> Result<i64, ParseUnitError> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let nanos = if unsigned == "0" { 0 } else { sum(unsigned, &UNITS)? };
    Ok(if negative { -nanos } else { nanos })
}

/// The sum of numbers with units, below 292 years.
fn sum(mut text: &str, units: &[(&str, i128)]) -> Result<i64, ParseUnitError> {
    if text.is_empty() {
        return Err(ParseUnitError::Span);
    }
    let mut total = 0i128;
    while !text.is_empty() {
        let (whole, rest) = digits(text);
        let (part, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
        if whole.is_empty() && part.is_empty() {
            return Err(ParseUnitError::Span);
        }
        let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, rest) = rest.split_at_checked(end).ok_or(ParseUnitError::Span)?;
        let nanos = units.iter().find(|(name, _)| *name == unit).ok_or(ParseUnitError::Span)?.1;
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| ParseUnitError::TooLarge)? };
        total += i128::from(whole) * nanos + fraction(part, nanos);
        if total > i128::from(i64::MAX) {
            return Err(ParseUnitError::TooLarge);
        }
        text = rest;
    }
    i64::try_from(total).map_err(|_| ParseUnitError::TooLarge)
}

/// The value of a fraction of a unit; digits beyond its precision are ignored.
fn fraction(digits: &str, unit: i128) -> i128 {
    let digits = digits.chars().take(18).filter_map(|c| c.to_digit(10));
    let (value, scale) = digits.fold((0, 1), |(value, scale), digit| (value * 10 + i128::from(digit), scale * 10));
    value * unit / scale
}

// === impl TimeSpan ===

impl FromStr for TimeSpan {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return format!("{text}s").parse();
        }
        let mut units = Vec::from(UNITS);
        units.push(DAY);
        let nanos = u64::try_from(sum(text, &units)?).map_err(|_| ParseUnitError::Span)?;
        Ok(Self(Duration::from_nanos(nanos)))
    }
}

impl fmt::Display for TimeSpan {
    /// So that it is parsed to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_nanos();
        if rest == 0 {
            return f.write_str("0");
        }
        for (name, unit) in std::iter::once(DAY).chain(UNITS) {
            let unit = unit.unsigned_abs();
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_parsed_and_formatted() {
        let known = [
            ("0", 0, "0"),
            ("0s", 0, "0"),
            ("30", 30_000, "30s"),
            ("30s", 30_000, "30s"),
            ("5m", 300_000, "5m"),
            ("5.s", 5000, "5s"),
            ("1.5s", 1500, "1s500ms"),
            ("1h30m", 5_400_000, "1h30m"),
            ("1s1h", 3_601_000, "1h1s"),
            ("500ms", 500, "500ms"),
            ("90s", 90_000, "1m30s"),
            ("360h", 1_296_000_000, "15d"),
            ("1.5d", 129_600_000, "1d12h"),
        ];
        for (text, millis, formatted) in known {
            let span: TimeSpan = text.parse().unwrap();
            assert_eq!((span.0.as_millis(), span.to_string().as_str()), (millis, formatted), "{text}");
        }
        assert_eq!(TimeSpan(Duration::new(1, 2_003_004)).to_string(), "1s2ms3us4ns");
    }

    #[test]
    fn other_text_is_not_a_span() {
        for text in ["", "s", ".s", "1x", "-1s", "+1s", "5m30", " 1s", "1s ", "1 h", "1H", "1é"] {
            assert_eq!(text.parse::<TimeSpan>(), Err(ParseUnitError::Span), "{text}");
        }
        for text in ["18446744073709551615d", "99999999999999999999s", "9223372037", "106752d"] {
            assert_eq!(text.parse::<TimeSpan>(), Err(ParseUnitError::TooLarge), "{text}");
        }
    }

    #[test]
    fn go_knows_neither_days_nor_bare_numbers() {
        assert_eq!((signed_nanos("0"), signed_nanos("-1m0.25s")), (Ok(0), Ok(-60_250_000_000)));
        assert_eq!(signed_nanos("2562047h47m16.854775807s"), Ok(i64::MAX));
        for text in ["5", "1d", "--1s", "-"] {
            assert_eq!(signed_nanos(text), Err(ParseUnitError::Span), "{text}");
        }
    }

    #[test]
    fn what_is_formatted_is_parsed_to_the_same_value() {
        bolero::check!().with_type::<u64>().for_each(|nanos| {
            let span = TimeSpan(Duration::from_nanos(*nanos >> 1));
            assert_eq!(span.to_string().parse(), Ok(span));
        });
    }

    #[test]
    fn no_text_makes_the_parser_panic() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _any = (text.parse::<TimeSpan>(), signed_nanos(&text));
        });
    }
}
