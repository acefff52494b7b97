//! The key by which somebody elsewhere is let in.

use std::fmt;
use std::hint::black_box;

/// The fewest characters of a key.
const SHORTEST: usize = 16;

/// A key. It never shows what it is.
#[derive(Clone)]
pub struct ApiKey(String);

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an API key has at least {SHORTEST} visible ASCII characters, and nothing else")]
pub struct BadKey;

// === impl ApiKey ===

impl ApiKey {
    /// Takes a text of at least 16 visible characters, without the white space around it.
    pub fn new(text: &str) -> Result<Self, BadKey> {
        let text = text.trim();
        if text.len() < SHORTEST || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadKey);
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether a header names this key. How long that takes says nothing but how long the key is.
    pub(crate) fn opens(&self, authorization: &[u8]) -> bool {
        let Some((scheme, given)) = authorization.split_at_checked(7) else { return false };
        if !scheme.eq_ignore_ascii_case(b"bearer ") || given.len() != self.0.len() {
            return false;
        }
        let differs = self.0.bytes().zip(given).fold(0, |differs, (one, other)| black_box(differs | (one ^ other)));
        black_box(differs) == 0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_for_itself_only_and_shows_itself_to_nobody() {
        let key = ApiKey::new(" 0123456789abcdef\n").unwrap();
        assert!(key.opens(b"Bearer 0123456789abcdef") && key.opens(b"bearer 0123456789abcdef"));
        for other in
            ["", "Bearer", "Bearer ", "Bearer 0123456789abcdee", "Bearer 0123456789abcdef0", "0123456789abcdef"]
        {
            assert!(!key.opens(other.as_bytes()), "{other}");
        }
        assert!(!format!("{key:?}").contains("0123"));
    }

    #[test]
    fn what_is_short_or_cannot_stand_in_a_header_is_no_key() {
        for bad in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789äbcdef"] {
            assert!(ApiKey::new(bad).is_err(), "{bad}");
        }
    }
}
