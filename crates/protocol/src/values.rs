//! Encoding of the scalars and containers that payload fields consist of.

use std::borrow::Cow;
use std::convert::Infallible;

use minicbor::encode::Write;
use minicbor::{Decoder, Encoder};

use crate::cbor::{self, CborEncodeError, DecodeError, MAX_LIST, Wire};
use crate::schema::WireShape;

macro_rules! scalar {
    ($($type:ty, $method:ident, $name:literal;)*) => {$(
        impl<'b> Wire<'b> for $type {
            fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
                e.$method(*self)?;
                Ok(())
            }

            fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
                cbor::peek(d)?;
                Ok(d.$method()?)
            }

            fn is_absent(&self) -> bool {
                *self == Self::default()
            }

            fn shape() -> WireShape {
                WireShape::Scalar($name)
            }
        }
    )*};
}

scalar! {
    bool, bool, "bool";
    u8, u8, "u8";
    u16, u16, "u16";
    u32, u32, "u32";
    u64, u64, "u64";
    i32, i32, "i32";
    i64, i64, "i64";
}

impl<'b> Wire<'b> for String {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
        e.str(self)?;
        Ok(())
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        cbor::text(d).map(Cow::into_owned)
    }

    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn shape() -> WireShape {
        WireShape::Scalar("text")
    }
}

/// A byte string, borrowed from its frame if it is contiguous.
impl<'b> Wire<'b> for Cow<'b, [u8]> {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
        e.bytes(self)?;
        Ok(())
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        cbor::bytes(d)
    }

    fn shape() -> WireShape {
        WireShape::Scalar("bytes")
    }
}

/// Fixed octets (an address, an identity), which published peers encode as an array of integers.
impl<'b, const N: usize> Wire<'b> for [u8; N] {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
        e.array(N as u64)?;
        self.iter().try_for_each(|octet| octet.encode(e))
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        let octets = cbor::bytes(d)?;
        Self::try_from(&*octets)
            .map_err(|_| DecodeError::Unexpected(format!("expected {N} octets, found {}", octets.len())))
    }

    fn shape() -> WireShape {
        WireShape::Scalar(match N {
            4 => "octets[4]",
            6 => "octets[6]",
            16 => "octets[16]",
            _ => "octets",
        })
    }
}

impl<'b, T: Wire<'b>> Wire<'b> for Option<T> {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
        match self {
            Some(value) => value.encode(e),
            None => {
                e.null()?;
                Ok(())
            }
        }
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        if cbor::take_null(d)? { Ok(None) } else { T::decode(d).map(Some) }
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn shape() -> WireShape {
        WireShape::Nullable(Box::new(T::shape()))
    }
}

impl<'b, T: Wire<'b>> Wire<'b> for Vec<T> {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
        e.array(self.len() as u64)?;
        self.iter().try_for_each(|element| element.encode(e))
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        let mut elements = Self::new();
        cbor::array(d, |d| {
            if elements.len() == MAX_LIST {
                return Err(DecodeError::TooLarge("the length of a list"));
            }
            elements.push(T::decode(d)?);
            Ok(())
        })?;
        Ok(elements)
    }

    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn shape() -> WireShape {
        WireShape::List(Box::new(T::shape()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbor::decode_all;

    fn encoded<'b, T: Wire<'b>>(value: &T) -> Vec<u8> {
        let mut e = Encoder::new(Vec::new());
        value.encode(&mut e).unwrap();
        e.into_writer()
    }

    //= carrel.protocol.strict-sent
    #[test]
    fn integers_are_sent_in_their_shortest_form() {
        assert_eq!(encoded(&23u64), [0x17]);
        assert_eq!(encoded(&24u32), [0x18, 24]);
        assert_eq!(encoded(&-1i32), [0x20]);
        assert_eq!(encoded(&65_536u64), [0x1a, 0, 1, 0, 0]);
    }

    #[test]
    fn longer_heads_and_tags_are_accepted() {
        assert_eq!(decode_all::<u8>(&[0x1b, 0, 0, 0, 0, 0, 0, 0, 7]), Ok(7));
        assert_eq!(decode_all::<u16>(&[0x19, 0, 7]), Ok(7));
        assert_eq!(decode_all::<i32>(&[0x3a, 0, 0, 0, 0]), Ok(-1));
        assert_eq!(decode_all::<String>(b"\x78\x01a"), Ok("a".into()));
        assert_eq!(decode_all::<Cow<'_, [u8]>>(b"\xd8\x40\x42hi"), Ok(Cow::Borrowed(&b"hi"[..])));
    }

    #[test]
    fn bytes_are_accepted_contiguous_chunked_and_as_integers() {
        for form in [&b"\x42hi"[..], b"\x5f\x41h\x41i\xff", b"\x82\x18h\x18i", b"\x9f\x18h\x18i\xff"] {
            assert_eq!(decode_all::<Cow<'_, [u8]>>(form).unwrap(), &b"hi"[..], "{form:02x?}");
        }
        assert!(matches!(decode_all::<Cow<'_, [u8]>>(b"\x42hi"), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn a_value_out_of_range_is_rejected() {
        assert!(decode_all::<u8>(&[0x19, 1, 0]).is_err());
        assert!(decode_all::<u64>(&[0x20]).is_err());
        assert!(decode_all::<[u8; 4]>(b"\x43abc").is_err());
        assert_eq!(decode_all::<u8>(&[1, 2]), Err(DecodeError::Trailing(1)));
    }

    //= promises.protocol.elements-list
    #[test]
    fn a_list_of_empty_strings_is_bounded_in_memory() {
        let mut frame = vec![0x9a, 0, 0x40, 0, 0];
        frame.resize(4 * 1024 * 1024, 0x60);
        let info = allocation_counter::measure(|| {
            assert_eq!(decode_all::<Vec<String>>(&frame), Err(DecodeError::TooLarge("the length of a list")));
        });
        assert!(info.bytes_max < frame.len() as u64, "{info:?}");
    }
}
