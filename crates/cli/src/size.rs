//! Parses and formats sizes and durations.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: `512M`, `1.5G`, `64KiB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// A duration: `30s`, `5m`, `1h30m`, `500ms`; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeSpan(pub(crate) Duration);

/// Text that is not a size or a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidQuantity {
    Size,
    TimeSpan,
    TooLarge,
    Zero,
}

/// Powers of 1024, as the kernel counts; `k`, `K`, `KB` and `KiB` are all the same.
const UNITS: [(&str, u32); 5] = [("", 0), ("k", 10), ("m", 20), ("g", 30), ("t", 40)];
/// The units of time, each in milliseconds.
const TIMES: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

// === impl Size ===

impl FromStr for Size {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit.to_ascii_lowercase();
        let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
        let shift = UNITS.iter().find(|(name, _)| *name == unit).ok_or(InvalidQuantity::Size)?.1;
        let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || rest.is_empty() || rest.len() > 3 || rest.contains('.') {
            return Err(InvalidQuantity::Size);
        }
        let whole: u64 = whole.parse().map_err(|_| InvalidQuantity::TooLarge)?;
        let thousandths: u64 = format!("{rest:0<3}").parse().map_err(|_| InvalidQuantity::Size)?;
        let thousandths = u128::from(whole) * 1000 + u128::from(thousandths);
        let bytes = u64::try_from((thousandths << shift) / 1000).map_err(|_| InvalidQuantity::TooLarge)?;
        if bytes == 0 { Err(InvalidQuantity::Zero) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
        let mut names = NAMES.iter().zip([0_u32, 10, 20, 30, 40]).rev();
        let (name, shift) = names.find(|(_, shift)| self.0 >> shift > 0).unwrap_or((&"bytes", 0));
        let name = if self.0 == 1 { &"byte" } else { name };
        let tenths = ((u128::from(self.0) * 10) >> shift) % 10;
        match tenths {
            0 => write!(f, "{} {name}", self.0 >> shift),
            _ => write!(f, "{}.{tenths} {name}", self.0 >> shift),
        }
    }
}

// === impl Time ===

impl FromStr for TimeSpan {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let mut rest = text;
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (number, after) = rest.split_at(digits);
            let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            // Only a single number may omit the unit.
            let unit = if unit.is_empty() && number == text { "s" } else { unit };
            let unit = TIMES.iter().find(|(name, _)| *name == unit).ok_or(InvalidQuantity::TimeSpan)?.1;
            if number.is_empty() {
                return Err(InvalidQuantity::TimeSpan);
            }
            let number: u64 = number.parse().map_err(|_| InvalidQuantity::TooLarge)?;
            let part = number.checked_mul(unit).ok_or(InvalidQuantity::TooLarge)?;
            total = total.checked_add(part).ok_or(InvalidQuantity::TooLarge)?;
            rest = after;
        }
        match (text, total) {
            ("", _) => Err(InvalidQuantity::TimeSpan),
            (_, 0) => Err(InvalidQuantity::Zero),
            _ => Ok(Self(Duration::from_millis(total))),
        }
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_millis();
        for (name, unit) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}

// === impl InvalidQuantity ===

impl fmt::Display for InvalidQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "not a size such as 512M, 1.5G or 64KiB",
            Self::TimeSpan => "not a time such as 30s, 5m, 1h30m or 500ms",
            Self::TooLarge => "too large",
            Self::Zero => "must be greater than zero",
        })
    }
}

impl std::error::Error for InvalidQuantity {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_parsed_in_powers_of_1024() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1k", 1024),
            ("64KiB", 65_536),
            ("64kb", 65_536),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            ("2GiB", 2 << 30),
            ("100b", 100),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "M", "1.", ".5M", "1.2345M", "1..2", "-1", "1X", "1 M", "1Mi2", "٣"] {
            assert_eq!(text.parse::<Size>(), Err(InvalidQuantity::Size), "{text}");
        }
        assert_eq!("99999999999999999999".parse::<Size>(), Err(InvalidQuantity::TooLarge));
        assert_eq!("99999999T".parse::<Size>(), Err(InvalidQuantity::TooLarge));
        assert_eq!("0".parse::<Size>(), Err(InvalidQuantity::Zero));
    }

    #[test]
    fn a_size_is_formatted_in_its_largest_unit() {
        for (bytes, text) in [(1, "1 byte"), (65_536, "64 KiB"), (64 << 20, "64 MiB"), (3 << 29, "1.5 GiB")] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_duration_is_parsed_and_formatted() {
        for (text, millis, formatted) in [
            ("30", 30_000, "30s"),
            ("30s", 30_000, "30s"),
            ("5m", 300_000, "5m"),
            ("1h30m", 5_400_000, "1h30m"),
            ("500ms", 500, "500ms"),
            ("90s", 90_000, "1m30s"),
        ] {
            let time: TimeSpan = text.parse().unwrap();
            assert_eq!((time.0.as_millis(), time.to_string().as_str()), (millis, formatted), "{text}");
        }
        for text in ["", "s", "1x", "-1s", "1.5s", "5m30", " 1s", "1s "] {
            assert_eq!(text.parse::<TimeSpan>(), Err(InvalidQuantity::TimeSpan), "{text}");
        }
        assert_eq!("0s".parse::<TimeSpan>(), Err(InvalidQuantity::Zero));
        assert_eq!("18446744073709551615d".parse::<TimeSpan>(), Err(InvalidQuantity::TooLarge));
    }
}
