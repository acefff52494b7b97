//! The names that kept changes have.

use std::fmt;
use std::str::FromStr;

/// A name of kept changes: 1 to 128 of `A-Z a-z 0-9 . _ -`, the first of them neither `.` nor `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeName(String);

/// A name that kept changes cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for changes: give 1 to 128 letters, digits, `.`, `_` or `-`, and begin with neither `.` nor `-`"
)]
pub struct BadName(pub String);

// === impl ChangeName ===

impl ChangeName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ChangeName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let good = (1..=128).contains(&text.len()) && text.bytes().all(known) && !text.starts_with(['.', '-']);
        if good { Ok(Self(text.to_owned())) } else { Err(BadName(text.to_owned())) }
    }
}

impl fmt::Display for ChangeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_plain_word() {
        for good in ["a", "fix-1.2_b", "_", &"x".repeat(128)] {
            assert_eq!(good.parse::<ChangeName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", "a\n", &"x".repeat(129)] {
            assert_eq!(bad.parse::<ChangeName>(), Err(BadName(bad.into())));
        }
    }
}
