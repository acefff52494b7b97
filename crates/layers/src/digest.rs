//! SHA-256 digests of content.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// The prefix that names the algorithm.
const ALGORITHM: &str = "sha256:";

/// A SHA-256 digest: `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDigest {
    /// Another algorithm.
    #[error("digest {0:?} is not SHA-256; other algorithms are not supported")]
    Algorithm(String),
    /// Not 64 hexadecimal digits in lower case.
    #[error("not a digest: expected `sha256:` and 64 hexadecimal digits in lower case")]
    Digits,
}

/// Computes a digest of what is written to it.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

/// A reader that computes the digest of what passes through.
pub(crate) struct DigestReader<R> {
    source: R,
    state: Hasher,
}

// === impl Digest ===

impl Digest {
    /// Computes the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Wraps the 32 bytes of a digest.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digits without prefix, for file names.
    pub fn hex(&self) -> String {
        use fmt::Write as _;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a string does not fail.
            let _written = write!(text, "{byte:02x}");
            text
        })
    }

    /// Parses the digits without prefix.
    pub fn from_hex(text: &str) -> Result<Self, InvalidDigest> {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(InvalidDigest::Digits),
        };
        let text: &[u8; 64] = text.as_bytes().try_into().map_err(|_| InvalidDigest::Digits)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let [high, low] = pair else { return Err(InvalidDigest::Digits) };
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        match (text.strip_prefix(ALGORITHM), text.split_once(':')) {
            (Some(digits), _) => Self::from_hex(digits),
            (None, Some((algorithm, _))) => Err(InvalidDigest::Algorithm(algorithm.chars().take(32).collect())),
            (None, None) => Err(InvalidDigest::Digits),
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

// === impl Hasher ===

impl Hasher {
    /// The digest of everything written.
    pub fn digest(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl DigestReader ===

impl<R> DigestReader<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, state: Hasher::default() }
    }

    /// The digest of everything read so far.
    pub(crate) fn digest(self) -> Digest {
        self.state.digest()
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        self.state.0.update(into.get(..read).unwrap_or_default());
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn reader_and_writer_compute_the_same_digest() {
        let mut reader = DigestReader::new(&b"abc"[..]);
        io::copy(&mut reader, &mut io::sink()).unwrap();
        let digest = reader.digest();
        assert_eq!(digest, Digest::of(b"abc"));
        assert_eq!(digest.hex(), ABC);
        assert_eq!(digest.to_string(), format!("sha256:{ABC}"));
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["../../../../../../../../../../../../../../../../../../../etc/pass", &ABC.to_uppercase(), &ABC[1..]]
        {
            assert_eq!(Digest::from_hex(bad), Err(InvalidDigest::Digits), "{bad}");
            assert_eq!(format!("sha256:{bad}").parse::<Digest>(), Err(InvalidDigest::Digits), "{bad}");
        }
    }

    #[test]
    fn another_algorithm_is_distinguished_from_an_invalid_text() {
        let other = format!("sha512:{ABC}{ABC}");
        assert_eq!(other.parse::<Digest>(), Err(InvalidDigest::Algorithm("sha512".into())));
        assert_eq!(ABC.parse::<Digest>(), Err(InvalidDigest::Digits));
        assert!(serde_json::from_str::<Digest>(&format!("\"sha256:{ABC}\"")).is_ok());
        assert!(serde_json::from_str::<Digest>("\"md5:00\"").is_err());
    }
}
