//! Sizes and time spans as people write them: one grammar for flags, configuration and specs.

#![forbid(unsafe_code)]

mod size;
mod span;

pub use self::size::ByteSize;
pub use self::span::{TimeSpan, signed_nanos};

/// A text is not a size or a time span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUnitError {
    /// It is not a size.
    #[error("not a size such as 512M, 1.5G or 64KiB")]
    Size,
    /// It is not a time span.
    #[error("not a time such as 30s, 5m, 1h30m or 500ms")]
    Span,
    /// It does not fit.
    #[error("too large")]
    TooLarge,
}

/// Splits a text after its leading digits.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}
