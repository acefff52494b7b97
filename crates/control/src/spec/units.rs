//! Parses amounts: `1h30m`, `512m`, `1.5`.

use carrel_units::ByteSize;

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

const NANOS: i64 = 1_000_000_000;

/// Parses a duration as published clients write it: numbers with units, in any order. It may be negative.
pub fn duration(text: &str) -> Result<DraftDuration, ParseAmountError> {
    let bad = || ParseAmountError::Duration(quoted(text));
    let nanos = carrel_units::signed_nanos(text).map_err(|_| bad())?;
    let rest = i32::try_from(nanos % NANOS).map_err(|_| bad())?;
    Ok(DraftDuration { seconds: nanos / NANOS, nanos: rest })
}

/// Parses a size in bytes, above 0.
pub fn size(text: &str) -> Result<u64, ParseAmountError> {
    match text.parse() {
        Ok(ByteSize(bytes)) if bytes > 0 => Ok(bytes),
        _ => Err(ParseAmountError::Size(quoted(text))),
    }
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
