//! Parses amounts: `1h30m`, `512m`, `1.5`.

use super::DraftDuration;

/// A text is not a valid amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseAmountError {
    /// It is not a duration.
    #[error("{0} is not a duration; use numbers with units, such as \"1h30m\", \"1.5s\" or \"0\"")]
    Duration(String),
    /// It is not a size.
    #[error("{0} is not a size; use a number above 0 with a unit, such as \"512m\" or \"1.5GiB\"")]
    Size(String),
    /// It is not a number of processors.
    #[error("{0} is not a number of processors; use at least 0.001, such as \"2\" or \"0.5\"")]
    Processors(String),
}

const NANOS: i128 = 1_000_000_000;

/// Parses a duration: numbers with units, in any order. It may be negative.
pub fn duration(text: &str) -> Result<DraftDuration, ParseAmountError> {
    let bad = || ParseAmountError::Duration(quoted(text));
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let nanos = if unsigned == "0" { 0 } else { nanos(unsigned).ok_or_else(bad)? };
    let nanos = if negative { -nanos } else { nanos };
    let seconds = i64::try_from(nanos / NANOS).map_err(|_| bad())?;
    let nanos = i32::try_from(nanos % NANOS).map_err(|_| bad())?;
    Ok(DraftDuration { seconds, nanos })
}

/// The nanoseconds of a text like `1h30m`, below 292 years.
fn nanos(mut text: &str) -> Option<i128> {
    if text.is_empty() {
        return None;
    }
    let mut sum = 0i128;
    while !text.is_empty() {
        let (whole, rest) = digits(text);
        let (part, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
        if whole.is_empty() && part.is_empty() {
            return None;
        }
        let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, rest) = rest.split_at_checked(end)?;
        let unit = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => NANOS,
            "m" => 60 * NANOS,
            "h" => 3_600 * NANOS,
            _ => return None,
        };
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        sum = sum.checked_add(i128::from(whole) * unit)?.checked_add(fraction(part, unit))?;
        if sum > i128::from(i64::MAX) {
            return None;
        }
        text = rest;
    }
    Some(sum)
}

/// The value of a fraction of a unit; digits beyond its precision are ignored.
fn fraction(digits: &str, unit: i128) -> i128 {
    let digits = digits.chars().take(18).filter_map(|c| c.to_digit(10));
    let (value, scale) = digits.fold((0, 1), |(value, scale), digit| (value * 10 + i128::from(digit), scale * 10));
    value * unit / scale
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Parses a size in bytes: `k`, `m`, `g`, `t`, `p`, also as `kb` or `KiB`, all of them in powers of 1024.
pub fn size(text: &str) -> Result<u64, ParseAmountError> {
    bytes(text).ok_or_else(|| ParseAmountError::Size(quoted(text)))
}

fn bytes(text: &str) -> Option<u64> {
    // The number ends at the last digit; at most one space separates it from its unit.
    let end = text.rfind(|c: char| c.is_ascii_digit() || c == '.' || c == ' ')? + 1;
    let (number, unit) = text.split_at_checked(end)?;
    let number: f64 = number.strip_suffix(' ').unwrap_or(number).parse().ok()?;
    let unit = unit.to_ascii_lowercase();
    let power = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" if unit != "ib" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    whole(number * 1024f64.powi(power))
}

/// Parses a number of processors, in thousandths.
pub fn processors(text: &str) -> Result<u32, ParseAmountError> {
    let millis = text.parse::<f64>().ok().and_then(|number| whole(number * 1000.0));
    millis.and_then(|millis| u32::try_from(millis).ok()).ok_or_else(|| ParseAmountError::Processors(quoted(text)))
}

/// The integer part of a number, if it is above 0 and fits.
fn whole(number: f64) -> Option<u64> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    // NaN fails every comparison.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    if (1.0..END).contains(&number) { Some(number as u64) } else { None }
}

/// Quotes a text of a caller in a message, and truncates it.
pub(crate) fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}
