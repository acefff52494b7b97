//! A text that does not print itself.

use std::fmt;

/// A text of up to so many letters is hidden whole.
const SHORT: usize = 8;
/// So many letters of a longer one are shown at either end.
const SHOWN: usize = 4;

/// A key or a token. What is printed of it tells it from another, and is no use to anybody.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

// === impl Secret ===

impl Secret {
    /// Nothing, if there is nothing in it, or something that no variable and no header can carry.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_sound = !text.is_empty() && !text.chars().any(char::is_control);
        is_sound.then(|| Self(text.to_owned()))
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.0.chars().count();
        if length <= SHORT {
            return f.write_str("****");
        }
        self.0.chars().take(SHOWN).try_for_each(|letter| write!(f, "{letter}"))?;
        f.write_str("...")?;
        self.0.chars().skip(length - SHOWN).try_for_each(|letter| write!(f, "{letter}"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.agents-server.credentials-printed-full
    #[test]
    fn a_secret_prints_its_ends_at_most() {
        let printed = |text: &str| Secret::new(text).unwrap().to_string();
        assert_eq!(printed("short"), "****");
        assert_eq!(printed("12345678"), "****");
        assert_eq!(printed("123456789"), "1234...6789");
        assert_eq!(printed("äöüßabcdéèêë"), "äöüß...éèêë");
        assert_eq!(format!("{:?}", Secret::new("sk-ant-0123456789")), "Some(Secret(sk-a...6789))");
    }

    #[test]
    fn what_no_variable_can_carry_is_no_secret() {
        assert_eq!(Secret::new(""), None);
        assert_eq!(Secret::new(" \n"), None);
        assert_eq!(Secret::new("a\0b"), None);
        assert_eq!(Secret::new("a\nb"), None);
        assert_eq!(Secret::new(" key\n").unwrap().expose(), "key");
    }
}
