//! What content is called: the SHA-256 of it.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// The digest of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a digest: 64 hexadecimal digits in lower case")]
pub struct BadDigest;

/// A reader that digests what is read through it.
pub(crate) struct Digesting<R> {
    source: R,
    state: Sha256,
}

// === impl Digest ===

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(BadDigest),
        };
        let text: &[u8; 64] = text.as_bytes().try_into().map_err(|_| BadDigest)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let [high, low] = pair else { return Err(BadDigest) };
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(Self(bytes))
    }
}

// === impl Digesting ===

impl<R> Digesting<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, state: Sha256::new() }
    }

    /// The digest of what was read so far.
    pub(crate) fn digest(self) -> Digest {
        Digest(self.state.finalize().into())
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        self.state.update(into.get(..read).unwrap_or_default());
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_what_was_read_and_written_in_one_way() {
        let mut reader = Digesting::new(&b"abc"[..]);
        io::copy(&mut reader, &mut io::sink()).unwrap();
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(reader.digest().to_string(), text);
        assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        for bad in
            ["", "../../../../../../../../../../../../../../../../../../../etc/pass", &text.to_uppercase(), &text[1..]]
        {
            assert_eq!(bad.parse::<Digest>(), Err(BadDigest), "{bad}");
        }
    }
}
