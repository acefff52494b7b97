//! Names of saved changes.

use std::fmt;
use std::str::FromStr;

/// The name of saved changes: 1 to 128 of `A-Z a-z 0-9 . _ -`, not beginning with `.` or `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeName(String);

/// A text that is not a name of changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for changes: give 1 to 128 letters, digits, `.`, `_` or `-`, and begin with neither `.` nor `-`"
)]
pub struct InvalidChangeName(pub String);

// === impl ChangeName ===

impl ChangeName {
    /// The validated text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ChangeName {
    type Err = InvalidChangeName;

    fn from_str(text: &str) -> Result<Self, InvalidChangeName> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let good = (1..=128).contains(&text.len()) && text.bytes().all(known) && !text.starts_with(['.', '-']);
        if good { Ok(Self(text.to_owned())) } else { Err(InvalidChangeName(text.to_owned())) }
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
    fn a_change_name_is_validated() {
        for good in ["a", "fix-1.2_b", "_", &"x".repeat(128)] {
            assert_eq!(good.parse::<ChangeName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", "a\n", &"x".repeat(129)] {
            assert_eq!(bad.parse::<ChangeName>(), Err(InvalidChangeName(bad.into())));
        }
    }
}
