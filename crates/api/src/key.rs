//! The API key that authenticates remote clients.

use std::fmt;

use subtle::ConstantTimeEq;

/// The minimum length of a key.
const MIN_CHARS: usize = 16;

/// An API key. Its `Debug` output is redacted.
#[derive(Clone)]
pub struct ApiKey(String);

/// A text is not a valid API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an API key must consist of at least {MIN_CHARS} visible ASCII characters")]
pub struct InvalidApiKey;

// === impl ApiKey ===

impl ApiKey {
    /// Parses a key of at least 16 visible characters. White space around it is ignored.
    pub fn new(text: &str) -> Result<Self, InvalidApiKey> {
        let text = text.trim();
        if text.len() < MIN_CHARS || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidApiKey);
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether an `authorization` header contains this key. The time depends on the length of the key only.
    pub(crate) fn matches(&self, authorization: &[u8]) -> bool {
        let Some((scheme, given)) = authorization.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.ct_eq(self.0.as_bytes()))
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
    fn a_key_matches_only_itself_and_is_not_printed() {
        let key = ApiKey::new(" 0123456789abcdef\n").unwrap();
        assert!(key.matches(b"Bearer 0123456789abcdef") && key.matches(b"bearer 0123456789abcdef"));
        for other in
            ["", "Bearer", "Bearer ", "Bearer 0123456789abcdee", "Bearer 0123456789abcdef0", "0123456789abcdef"]
        {
            assert!(!key.matches(other.as_bytes()), "{other}");
        }
        assert!(!format!("{key:?}").contains("0123"));
    }

    #[test]
    fn a_short_text_or_one_that_does_not_fit_into_a_header_is_no_key() {
        for bad in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789äbcdef"] {
            assert!(ApiKey::new(bad).is_err(), "{bad}");
        }
    }
}
