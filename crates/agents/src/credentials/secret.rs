//! A string that redacts itself.

use std::fmt;

/// A shorter secret is hidden completely.
const MAX_HIDDEN: usize = 8;
/// How many characters of a longer one are shown at each end.
const SHOWN_CHARS: usize = 4;

/// A key or token. Its output identifies it without revealing it.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialSecret(String);

// === impl CredentialSecret ===

impl CredentialSecret {
    /// `None` if it is empty or has characters that neither a variable nor a header can carry.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_sound = !text.is_empty() && !text.chars().any(char::is_control);
        is_sound.then(|| Self(text.to_owned()))
    }

    /// The secret in full.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CredentialSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.0.chars().count();
        if length <= MAX_HIDDEN {
            return f.write_str("****");
        }
        self.0.chars().take(SHOWN_CHARS).try_for_each(|letter| write!(f, "{letter}"))?;
        f.write_str("...")?;
        self.0.chars().skip(length - SHOWN_CHARS).try_for_each(|letter| write!(f, "{letter}"))
    }
}

impl fmt::Debug for CredentialSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.agents-server.credentials-printed-full
    #[test]
    fn a_secret_shows_at_most_its_ends() {
        let printed = |text: &str| CredentialSecret::new(text).unwrap().to_string();
        assert_eq!(printed("short"), "****");
        assert_eq!(printed("12345678"), "****");
        assert_eq!(printed("123456789"), "1234...6789");
        assert_eq!(printed("äöüßabcdéèêë"), "äöüß...éèêë");
        assert_eq!(format!("{:?}", CredentialSecret::new("sk-ant-0123456789")), "Some(Secret(sk-a...6789))");
    }

    #[test]
    fn a_value_that_no_variable_can_carry_is_not_a_secret() {
        assert_eq!(CredentialSecret::new(""), None);
        assert_eq!(CredentialSecret::new(" \n"), None);
        assert_eq!(CredentialSecret::new("a\0b"), None);
        assert_eq!(CredentialSecret::new("a\nb"), None);
        assert_eq!(CredentialSecret::new(" key\n").unwrap().expose(), "key");
    }
}
