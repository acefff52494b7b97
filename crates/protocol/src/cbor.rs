//! The CBOR profile of this protocol: canonical when it encodes, tolerant when it decodes, bounded for every input.
//!
//! Encoded: definite lengths, shortest heads, keys in declared order. Also accepted: indefinite lengths, any key order,
//! unknown keys, longer heads, tags before a value, and an array of integers in place of a byte string.

use std::borrow::Cow;
use std::convert::Infallible;

use minicbor::data::Type;
use minicbor::encode::Write;
use minicbor::{Decoder, Encoder};

use crate::schema::WireShape;

/// The maximum nesting depth of an unknown value.
pub const MAX_DEPTH: usize = 32;
/// The maximum number of list elements: a frame of empty strings must not expand a hundredfold in memory.
pub const MAX_LIST: usize = 65_536;
/// The maximum number of tags before one value.
const MAX_TAGS: usize = 4;

/// Why bytes could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not well-formed CBOR, or are truncated.
    #[error("malformed CBOR: {0}")]
    Malformed(String),
    /// A value has the wrong type or is out of range.
    #[error("{0}")]
    Unexpected(String),
    /// A required key is missing.
    #[error("missing field `{0}`")]
    Missing(&'static str),
    /// A known key occurs twice.
    #[error("duplicate field `{0}`")]
    Duplicate(&'static str),
    /// A value is nested too deeply or has too many elements.
    #[error("{0} exceeds its limit")]
    TooLarge(&'static str),
    /// There are bytes after the value.
    #[error("{0} trailing bytes")]
    Trailing(usize),
}

/// What minicbor reports when writing to memory, which cannot fail.
pub type CborEncodeError = minicbor::encode::Error<Infallible>;

/// A type that can be part of a payload.
pub trait Wire<'b>: Sized {
    /// Encodes the value in canonical form.
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError>;

    /// Decodes the value from any accepted form.
    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError>;

    /// Whether an optional field with this value is omitted.
    fn is_absent(&self) -> bool {
        false
    }

    /// The shape of the value on the wire, for the schema snapshots.
    fn shape() -> WireShape;
}

/// A writer that only counts bytes, to compute a length before writing.
#[derive(Default)]
pub(crate) struct ByteCounter(pub(crate) usize);

impl Write for ByteCounter {
    type Error = Infallible;

    fn write_all(&mut self, buf: &[u8]) -> Result<(), Infallible> {
        self.0 += buf.len();
        Ok(())
    }
}

/// The encoded length of `value`.
pub fn encoded_len<'b, T: Wire<'b>>(value: &T) -> Result<usize, CborEncodeError> {
    let mut encoder = Encoder::new(ByteCounter::default());
    value.encode(&mut encoder)?;
    Ok(encoder.into_writer().0)
}

/// Decodes exactly one value from `bytes`.
pub fn decode_all<'b, T: Wire<'b>>(bytes: &'b [u8]) -> Result<T, DecodeError> {
    let mut d = Decoder::new(bytes);
    let value = T::decode(&mut d)?;
    match bytes.len() - d.position() {
        0 => Ok(value),
        trailing => Err(DecodeError::Trailing(trailing)),
    }
}

impl From<minicbor::decode::Error> for DecodeError {
    fn from(error: minicbor::decode::Error) -> Self {
        if error.is_type_mismatch() { Self::Unexpected(error.to_string()) } else { Self::Malformed(error.to_string()) }
    }
}

/// The type of the next value, after its tags.
pub fn peek(d: &mut Decoder<'_>) -> Result<Type, DecodeError> {
    for _ in 0..=MAX_TAGS {
        match d.datatype()? {
            Type::Tag => drop(d.tag()?),
            other => return Ok(other),
        }
    }
    Err(DecodeError::TooLarge("the number of tags"))
}

/// Consumes the next value if it is `null` (or `undefined`).
pub fn take_null(d: &mut Decoder<'_>) -> Result<bool, DecodeError> {
    match peek(d)? {
        Type::Null => d.null()?,
        Type::Undefined => d.undefined()?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Calls `each` for every key of the next map; `each` must consume the value.
///
/// Keys that are not text are skipped with their values.
pub fn map<'b>(
    d: &mut Decoder<'b>,
    mut each: impl FnMut(&str, &mut Decoder<'b>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    peek(d)?;
    let mut remaining = d.map()?;
    while next(d, &mut remaining)? {
        if matches!(peek(d)?, Type::String | Type::StringIndef) {
            let key = text(d)?;
            each(&key, d)?;
        } else {
            skip(d)?;
            skip(d)?;
        }
    }
    Ok(())
}

/// Calls `each` for every element of the next array.
pub fn array<'b>(
    d: &mut Decoder<'b>,
    mut each: impl FnMut(&mut Decoder<'b>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    peek(d)?;
    let mut remaining = d.array()?;
    while next(d, &mut remaining)? {
        each(d)?;
    }
    Ok(())
}

/// Whether another element follows, in a container of known or of indefinite length.
fn next(d: &mut Decoder<'_>, remaining: &mut Option<u64>) -> Result<bool, DecodeError> {
    match remaining {
        Some(0) => Ok(false),
        Some(n) => {
            *n -= 1;
            Ok(true)
        }
        None if d.datatype()? == Type::Break => {
            d.set_position(d.position() + 1);
            Ok(false)
        }
        None => Ok(true),
    }
}

/// Reads text; borrowed if it is contiguous.
pub fn text<'b>(d: &mut Decoder<'b>) -> Result<Cow<'b, str>, DecodeError> {
    if peek(d)? != Type::StringIndef {
        return Ok(Cow::Borrowed(d.str()?));
    }
    let mut whole = String::new();
    for piece in d.str_iter()? {
        whole.push_str(piece?);
    }
    Ok(Cow::Owned(whole))
}

/// Reads bytes; borrowed if they are contiguous.
pub fn bytes<'b>(d: &mut Decoder<'b>) -> Result<Cow<'b, [u8]>, DecodeError> {
    match peek(d)? {
        Type::BytesIndef => {
            let mut whole = Vec::new();
            for piece in d.bytes_iter()? {
                whole.extend_from_slice(piece?);
            }
            Ok(Cow::Owned(whole))
        }
        Type::Array | Type::ArrayIndef => {
            let mut whole = Vec::new();
            array(d, |d| {
                peek(d)?;
                whole.push(d.u8()?);
                Ok(())
            })?;
            Ok(Cow::Owned(whole))
        }
        _ => Ok(Cow::Borrowed(d.bytes()?)),
    }
}

/// Skips the next value, up to [`MAX_DEPTH`] levels deep.
pub fn skip(d: &mut Decoder<'_>) -> Result<(), DecodeError> {
    skip_within(d, MAX_DEPTH)
}

fn skip_within(d: &mut Decoder<'_>, depth: usize) -> Result<(), DecodeError> {
    let inner = depth.checked_sub(1).ok_or(DecodeError::TooLarge("the depth of a value"))?;
    match peek(d)? {
        Type::Map | Type::MapIndef => {
            let mut remaining = d.map()?;
            while next(d, &mut remaining)? {
                skip_within(d, inner)?;
                skip_within(d, inner)?;
            }
        }
        Type::Array | Type::ArrayIndef => array(d, |d| skip_within(d, inner))?,
        Type::Bytes => drop(d.bytes()?),
        Type::String => drop(d.str()?),
        Type::BytesIndef => d.bytes_iter()?.try_for_each(|piece| piece.map(drop))?,
        Type::StringIndef => d.str_iter()?.try_for_each(|piece| piece.map(drop))?,
        // A scalar: minicbor's own skip needs no stack for it.
        _ => d.skip()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(bytes: &[u8]) -> Result<usize, DecodeError> {
        let mut d = Decoder::new(bytes);
        skip(&mut d)?;
        Ok(d.position())
    }

    #[test]
    fn unknown_values_are_skipped_completely() {
        for value in [
            &b"\x00"[..],
            b"\x38\xff",
            b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xfb\x00\x00\x00\x00\x00\x00\x00\x00",
            b"\xf9\x3c\x00",
            b"\xe0",
            b"\xf8\xff",
            b"\xf6",
            b"\xd8\x40\x41a",
            b"\x7f\x61a\x61b\xff",
            b"\x5f\x41a\x41b\xff",
            b"\xbf\x61a\x9f\x01\xff\xff",
            b"\xa1\x01\x82\x01\x02",
        ] {
            assert_eq!(skipped(value), Ok(value.len()), "{value:02x?}");
        }
    }

    //= carrel.protocol.bounded-depth-size-whatever
    //= promises.protocol.nesting-value-known
    #[test]
    fn depth_is_bounded() {
        let mut nested = vec![0x81; MAX_DEPTH - 1];
        nested.push(0);
        assert!(skipped(&nested).is_ok());
        nested.insert(0, 0x81);
        assert_eq!(skipped(&nested), Err(DecodeError::TooLarge("the depth of a value")));
        assert_eq!(skipped(&[0xd8; 64]), Err(DecodeError::TooLarge("the number of tags")));
    }

    //= carrel.protocol.bounded-depth-size-whatever
    //= promises.protocol.memory-decoder
    #[test]
    fn a_declared_length_without_bytes_allocates_nothing() {
        let lies: [&[u8]; 4] = [
            b"\x5b\x00\x00\x00\xff\xff\xff\xff\xff",
            b"\x9b\x00\x00\x00\xff\xff\xff\xff\xff",
            b"\xbb\x00\x00\x00\xff\xff\xff\xff\xff",
            b"\x7b\x7f\xff\xff\xff\xff\xff\xff\xff",
        ];
        for lie in lies {
            let info = allocation_counter::measure(|| drop(bytes(&mut Decoder::new(lie))));
            assert!(info.bytes_max < 1024, "{info:?} for {lie:02x?}");
            assert!(skipped(lie).is_err());
        }
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_skip_never_panics_nor_reads_past_the_end() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            if let Ok(end) = skipped(bytes) {
                assert!(end <= bytes.len());
            }
        });
    }
}
