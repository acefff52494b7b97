//! A number of bytes: `4096`, `512M`, `1.5GiB`.

use std::fmt;
use std::str::FromStr;

use crate::ParseUnitError;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// The powers of 1024, as they are written and shown.
const UNITS: [(&str, &str); 6] = [("", "bytes"), ("k", "KiB"), ("m", "MiB"), ("g", "GiB"), ("t", "TiB"), ("p", "PiB")];

// === impl ByteSize ===

impl FromStr for ByteSize {
    type Err = ParseUnitError;

    /// A number with a unit: `k`, `m`, `g`, `t`, `p`, also as `kb` or `KiB`, all of them in powers of 1024.
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        // The number ends at the last digit; at most one space separates it from its unit.
        let end = text.rfind(|c: char| c.is_ascii_digit() || c == '.' || c == ' ').ok_or(ParseUnitError::Size)? + 1;
        let (number, unit) = text.split_at_checked(end).ok_or(ParseUnitError::Size)?;
        let number: f64 = number.strip_suffix(' ').unwrap_or(number).parse().map_err(|_| ParseUnitError::Size)?;
        let unit = unit.to_ascii_lowercase();
        if number.is_nan() || number.is_sign_negative() || unit == "ib" {
            return Err(ParseUnitError::Size);
        }
        let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
        let power = UNITS.iter().position(|(name, _)| *name == unit).ok_or(ParseUnitError::Size)?;
        whole(UNITS.iter().take(power).fold(number, |bytes, _| bytes * 1024.0)).map(Self)
    }
}

/// The integer part of a number that is not negative.
fn whole(number: f64) -> Result<u64, ParseUnitError> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    if number < END { Ok(number as u64) } else { Err(ParseUnitError::TooLarge) }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = (1..UNITS.len()).rev().find(|power| self.0 >> (10 * power) > 0).unwrap_or(0);
        let unit = UNITS.get(power).map_or("", |(_, shown)| *shown);
        let unit = if self.0 == 1 { "byte" } else { unit };
        let tenths = ((u128::from(self.0) * 10) >> (10 * power)) % 10;
        match tenths {
            0 => write!(f, "{} {unit}", self.0 >> (10 * power)),
            _ => write!(f, "{}.{tenths} {unit}", self.0 >> (10 * power)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_parsed_in_powers_of_1024() {
        let known = [
            ("0", 0),
            ("1", 1),
            ("4096", 4096),
            ("1k", 1024),
            ("64KiB", 65_536),
            ("64kb", 65_536),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            ("1.5 GiB", 3 << 29),
            (".5k", 512),
            ("2t", 2 << 40),
            ("1P", 1 << 50),
            ("100b", 100),
            ("1.9", 1),
            ("1e3", 1000),
        ];
        for (text, bytes) in known {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn other_text_is_not_a_size() {
        for text in ["", "M", ".", "1..2", "-1", "-0", "1X", "1ib", "1kk", "1  g", "1 g ", "1Mi2", "٣", "nan g", "1gé"]
        {
            assert_eq!(text.parse::<ByteSize>(), Err(ParseUnitError::Size), "{text}");
        }
        for text in ["99999999999999999999", "99999999T", "9000p", "1e300"] {
            assert_eq!(text.parse::<ByteSize>(), Err(ParseUnitError::TooLarge), "{text}");
        }
    }

    #[test]
    fn a_size_is_formatted_in_its_largest_unit() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (65_536, "64 KiB"),
            (64 << 20, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            (1 << 50, "1 PiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _any = String::from_utf8_lossy(bytes).parse::<ByteSize>();
        });
    }
}
