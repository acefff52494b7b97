//! The fixed binary frame of every message: `[length u32][id u32][flags u8]`, big-endian, then the body.
//!
//! Its layout never changes: a relay routes by these nine bytes between peers of different generations.

use std::fmt;

/// Bytes of the length prefix.
pub const LENGTH_SIZE: usize = 4;
/// Bytes that `length` counts besides the body: the id and the flags.
pub const HEADER_SIZE: usize = 5;
/// Bytes before the body.
pub const PREFIX_SIZE: usize = LENGTH_SIZE + HEADER_SIZE;
/// The smallest value of `length`: an empty body.
pub const MIN_LENGTH: u32 = 5;
/// The largest value of `length`.
pub const MAX_LENGTH: u32 = 4 * 1024 * 1024;
/// The largest body of one frame.
pub const MAX_BODY: usize = MAX_LENGTH as usize - HEADER_SIZE;

/// The flags of a frame.
///
/// "New bits are append-only and must be safe for an old relay to ignore": unknown bits are preserved, never
/// interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The length of the body.
    pub body_len: usize,
    /// The correlation id; 0 means uncorrelated.
    pub id: u32,
    /// The flags, unknown bits included.
    pub flags: Flags,
}

/// One complete frame, borrowed from the buffer it arrived in.
///
/// ```
/// use carrel_protocol::payload::Ping;
/// use carrel_protocol::{Envelope, Frame, Generation, MessageType, codec};
///
/// let mut buffer = Vec::new();
/// codec::encode(&mut buffer, Generation::CURRENT, 7, &Ping {})?;
///
/// // An incomplete frame is no error.
/// assert!(Frame::split(&buffer[..buffer.len() - 1])?.is_none());
///
/// let (frame, rest) = Frame::split(&buffer)?.expect("a complete frame");
/// assert!(frame.id == 7 && rest.is_empty());
/// let envelope = Envelope::parse(frame.body)?;
/// assert_eq!(envelope.message_type(), Some(MessageType::Ping));
/// let _ping: Ping = envelope.payload()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The correlation id.
    pub id: u32,
    /// The flags, unknown bits included.
    pub flags: Flags,
    /// A CBOR envelope or, with [`Flags::BULK`], a raw bulk record.
    pub body: &'a [u8],
}

/// A frame length out of bounds. The next frame cannot be located, so the connection has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame length {0} is outside {MIN_LENGTH} to {MAX_LENGTH}")]
pub struct InvalidFrameLength(pub u32);

/// A combination of known flags that no message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flags {0:?} are mutually exclusive")]
pub struct InvalidFlags(pub Flags);

/// A body too large for one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("body of {0} bytes exceeds the maximum of {MAX_BODY}")]
pub struct BodyTooLarge(pub usize);

// === impl Flags ===

impl Flags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// The last frame of its correlation id.
    pub const TERMINAL: Self = Self(0x01);
    /// The first frame of a session.
    pub const SESSION_START: Self = Self(0x02);
    /// A request to shut the sandbox down.
    pub const SHUTDOWN: Self = Self(0x04);
    /// The body is a raw bulk record instead of CBOR.
    pub const BULK: Self = Self(0x08);

    const KNOWN: u8 = 0x0f;

    /// Creates flags from the byte on the wire.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The byte on the wire, unknown bits included.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Only the bits that this generation defines.
    pub const fn known(self) -> Self {
        Self(self.0 & Self::KNOWN)
    }

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Rejects a combination of known bits: each message has at most one.
    pub const fn check(self) -> Result<Self, InvalidFlags> {
        if self.known().0.count_ones() > 1 { Err(InvalidFlags(self)) } else { Ok(self) }
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}

// === impl Header ===

impl Header {
    /// Parses a header.
    pub const fn parse(prefix: &[u8; PREFIX_SIZE]) -> Result<Self, InvalidFrameLength> {
        let [l0, l1, l2, l3, i0, i1, i2, i3, flags] = *prefix;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        match body_len(length) {
            Ok(body_len) => {
                Ok(Self { body_len, id: u32::from_be_bytes([i0, i1, i2, i3]), flags: Flags::from_bits(flags) })
            }
            Err(broken) => Err(broken),
        }
    }

    /// The header as it is sent.
    pub fn to_bytes(self) -> Result<[u8; PREFIX_SIZE], BodyTooLarge> {
        let length = u32::try_from(self.body_len + HEADER_SIZE)
            .ok()
            .filter(|length| *length <= MAX_LENGTH)
            .ok_or(BodyTooLarge(self.body_len))?;
        let [l0, l1, l2, l3] = length.to_be_bytes();
        let [i0, i1, i2, i3] = self.id.to_be_bytes();
        Ok([l0, l1, l2, l3, i0, i1, i2, i3, self.flags.bits()])
    }
}

// === impl Frame ===

impl<'a> Frame<'a> {
    /// Splits the first complete frame off `bytes` and returns it with the rest; `None` while it is incomplete.
    ///
    /// An invalid length is reported after its four bytes, before anything is buffered for it.
    pub fn split(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, InvalidFrameLength> {
        let Some((length, _)) = bytes.split_first_chunk() else { return Ok(None) };
        body_len(u32::from_be_bytes(*length))?;
        let Some((prefix, rest)) = bytes.split_first_chunk() else { return Ok(None) };
        let header = Header::parse(prefix)?;
        let Some((body, rest)) = rest.split_at_checked(header.body_len) else { return Ok(None) };
        Ok(Some((Self { id: header.id, flags: header.flags, body }, rest)))
    }
}

const fn body_len(length: u32) -> Result<usize, InvalidFrameLength> {
    if length < MIN_LENGTH || length > MAX_LENGTH {
        return Err(InvalidFrameLength(length));
    }
    Ok(length as usize - HEADER_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    //= versioning.rules-never-broken.2-container-never-changes
    //= client.constants-functions.flagterminal-0x01
    #[test]
    fn the_header_is_big_endian_and_counts_id_and_flags() {
        let header = Header { body_len: 0x14, id: 0x0102_0304, flags: Flags::TERMINAL };
        assert_eq!(header.to_bytes().unwrap(), [0, 0, 0, 0x19, 1, 2, 3, 4, 1]);
        assert_eq!(Header::parse(&header.to_bytes().unwrap()).unwrap(), header);
    }

    //= promises.protocol.largest-frame
    #[test]
    fn the_length_limit_is_exactly_four_mebibytes() {
        let largest = Header { body_len: MAX_BODY, id: 1, flags: Flags::NONE };
        assert_eq!(largest.to_bytes().unwrap()[..4], MAX_LENGTH.to_be_bytes());
        let over = Header { body_len: MAX_BODY + 1, ..largest };
        assert_eq!(over.to_bytes(), Err(BodyTooLarge(MAX_BODY + 1)));
    }

    //= promises.protocol.broken-length-known
    #[test]
    fn an_invalid_length_is_rejected_after_four_bytes() {
        for length in [0, 4, MAX_LENGTH + 1, u32::MAX] {
            assert_eq!(Frame::split(&length.to_be_bytes()), Err(InvalidFrameLength(length)));
        }
    }

    #[test]
    fn an_incomplete_frame_yields_none_until_it_is_complete() {
        let mut wire = Header { body_len: 3, id: 7, flags: Flags::NONE }.to_bytes().unwrap().to_vec();
        wire.extend_from_slice(b"abcd");
        for end in 0..wire.len() - 1 {
            assert_eq!(Frame::split(&wire[..end]), Ok(None), "{end} bytes");
        }
        let (frame, rest) = Frame::split(&wire).unwrap().unwrap();
        assert_eq!((frame.id, frame.body, rest), (7, &b"abc"[..], &b"d"[..]));
    }

    //= versioning.implementation-details.new-flag-bits-append
    //= carrel.protocol.known-flags-bad-combination
    #[test]
    fn known_flags_are_mutually_exclusive_and_unknown_bits_are_preserved() {
        for bits in 0..=u8::MAX {
            let flags = Flags::from_bits(bits);
            assert_eq!(flags.check().is_ok(), (bits & 0x0f).count_ones() <= 1, "{flags:?}");
            assert_eq!(flags.bits(), bits);
        }
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_split_never_panics_and_loses_no_byte() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            if let Ok(Some((frame, rest))) = Frame::split(bytes) {
                assert_eq!(PREFIX_SIZE + frame.body.len() + rest.len(), bytes.len());
                let header = Header { body_len: frame.body.len(), id: frame.id, flags: frame.flags };
                assert_eq!(header.to_bytes().unwrap()[..], bytes[..PREFIX_SIZE]);
            }
        });
    }
}
