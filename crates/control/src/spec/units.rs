//! Amounts as people write them: `1h30m`, `512m`, `1.5`.

use super::DraftDuration;

/// A text that is no amount of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAmount {
    /// It is no duration.
    #[error("{0} is no duration: give numbers with units, like \"1h30m\", \"1.5s\" or \"0\"")]
    Duration(String),
    /// It is no size.
    #[error("{0} is no size: give a number above 0 with a unit, like \"512m\" or \"1.5GiB\"")]
    Size(String),
    /// It is no number of processors.
    #[error("{0} is no number of processors: give one of at least 0.001, like \"2\" or \"0.5\"")]
    Processors(String),
}

const NANOS: i128 = 1_000_000_000;

/// Reads a duration: numbers with units, the largest first by habit only. It may be negative.
pub fn duration(text: &str) -> Result<DraftDuration, BadAmount> {
    let bad = || BadAmount::Duration(shown(text));
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

/// The nanoseconds of a text like `1h30m`, below those of 292 years.
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

/// What a fraction of a unit is; digits too small to matter do not.
fn fraction(digits: &str, unit: i128) -> i128 {
    let digits = digits.chars().take(18).filter_map(|c| c.to_digit(10));
    let (value, scale) = digits.fold((0, 1), |(value, scale), digit| (value * 10 + i128::from(digit), scale * 10));
    value * unit / scale
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Reads a size in bytes: `k`, `m`, `g`, `t`, `p`, also as `kb` or `KiB`, and all of them in powers of 1024.
pub fn size(text: &str) -> Result<u64, BadAmount> {
    bytes(text).ok_or_else(|| BadAmount::Size(shown(text)))
}

fn bytes(text: &str) -> Option<u64> {
    // The number goes on to the last digit; at most one space parts it from its unit.
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

/// Reads a number of processors, in thousandths.
pub fn processors(text: &str) -> Result<u32, BadAmount> {
    let millis = text.parse::<f64>().ok().and_then(|number| whole(number * 1000.0));
    millis.and_then(|millis| u32::try_from(millis).ok()).ok_or_else(|| BadAmount::Processors(shown(text)))
}

/// A number without its fraction, if that is above 0 and fits.
fn whole(number: f64) -> Option<u64> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    // No number that is no number passes a comparison.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    if (1.0..END).contains(&number) { Some(number as u64) } else { None }
}

/// Somebody's text within a sentence: quoted, and short enough for an answer.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}
