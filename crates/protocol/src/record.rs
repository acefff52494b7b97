//! Macros that generate a payload type, its codec and its schema from one declaration.

/// A map with text keys. Each field is `required`, has a `default`, or is `omitted` without a value, and declares the
/// generation that introduced it.
#[macro_export]
macro_rules! record {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident $(<$lifetime:lifetime>)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty => $mode:ident $(($default:expr))? $(since $since:literal)?,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name $(<$lifetime>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl<'b> $crate::cbor::Wire<'b> for $name $(<$lifetime>)? {
            fn encode<W: $crate::minicbor::encode::Write<Error = std::convert::Infallible>>(
                &self,
                e: &mut $crate::minicbor::Encoder<W>,
            ) -> Result<(), $crate::cbor::CborEncodeError> {
                let present: &[bool] = &[$($crate::record!(@present $mode &self.$field)),*];
                e.map(present.iter().filter(|present| **present).count() as u64)?;
                $(
                    if $crate::record!(@present $mode &self.$field) {
                        e.str(stringify!($field))?;
                        $crate::cbor::Wire::encode(&self.$field, e)?;
                    }
                )*
                Ok(())
            }

            fn decode(d: &mut $crate::minicbor::Decoder<'b>) -> Result<Self, $crate::cbor::DecodeError> {
                $(let mut $field: Option<$type> = None;)*
                $crate::cbor::map(d, |_key, d| {
                    $(
                        if _key == stringify!($field) {
                            if $field.is_some() {
                                return Err($crate::cbor::DecodeError::Duplicate(stringify!($field)));
                            }
                            $field = Some(
                                $crate::record!(@value $mode ($($default)?) d).map_err(|e| e.within(stringify!($field)))?
                            );
                            return Ok(());
                        }
                    )*
                    $crate::cbor::skip(d)
                })?;
                Ok(Self {
                    $($field: match $field {
                        Some(value) => value,
                        None => $crate::record!(@missing $mode $field ($($default)?)),
                    },)*
                })
            }

            fn shape() -> $crate::schema::WireShape {
                $crate::schema::WireShape::Record(vec![$(
                    $crate::schema::SchemaField {
                        name: stringify!($field),
                        shape: <$type as $crate::cbor::Wire<'_>>::shape(),
                        presence: $crate::record!(@presence $mode),
                        since: $crate::Generation::new($crate::record!(@since $($since)?)),
                    },
                )*])
            }
        }
    )*};

    (@present omitted $value:expr) => { !$crate::cbor::Wire::is_absent($value) };
    (@present $mode:ident $value:expr) => { true };

    (@value required () $d:ident) => { $crate::cbor::Wire::decode($d) };
    (@value $mode:ident ($($default:expr)?) $d:ident) => {
        match $crate::cbor::take_null($d) {
            Ok(true) => Ok($crate::record!(@default $($default)?)),
            Ok(false) => $crate::cbor::Wire::decode($d),
            Err(error) => Err(error),
        }
    };

    (@missing required $field:ident ()) => {
        return Err($crate::cbor::DecodeError::Missing(stringify!($field)))
    };
    (@missing $mode:ident $field:ident ($($default:expr)?)) => { $crate::record!(@default $($default)?) };

    (@default) => { Default::default() };
    (@default $default:expr) => { $default };

    (@presence required) => { $crate::schema::FieldPresence::Required };
    (@presence default) => { $crate::schema::FieldPresence::Defaulted };
    (@presence omitted) => { $crate::schema::FieldPresence::Omitted };

    (@since) => { 1 };
    (@since $since:literal) => { $since };
}

/// An enum encoded as text. With `else`, an unknown text of a newer peer maps to a fallback variant instead of an
/// error.
#[macro_export]
macro_rules! text_enum {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $text:literal $(since $since:literal)?,)*
    } $(else $(#[$other_meta:meta])* $other:ident = $other_text:literal)?) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
            $($(#[$other_meta])* $other,)?
        }

        impl $name {
            /// The text on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    $(Self::$other => $other_text,)?
                }
            }
        }

        impl<'b> $crate::cbor::Wire<'b> for $name {
            fn encode<W: $crate::minicbor::encode::Write<Error = std::convert::Infallible>>(
                &self,
                e: &mut $crate::minicbor::Encoder<W>,
            ) -> Result<(), $crate::cbor::CborEncodeError> {
                e.str(self.as_str())?;
                Ok(())
            }

            fn decode(d: &mut $crate::minicbor::Decoder<'b>) -> Result<Self, $crate::cbor::DecodeError> {
                let text = $crate::cbor::text(d)?;
                match &*text {
                    $($text => Ok(Self::$variant),)*
                    $(_ if !$other_text.is_empty() => Ok(Self::$other),)?
                    _ => Err($crate::cbor::DecodeError::unknown("value", &text)),
                }
            }

            fn shape() -> $crate::schema::WireShape {
                $crate::schema::WireShape::Choice(vec![
                    $(($text.to_owned(), $crate::Generation::new($crate::record!(@since $($since)?))),)*
                ])
            }
        }
    };
}

/// An enum encoded as a small number.
macro_rules! number_enum {
    ($($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $number:literal,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $number,)*
        }

        impl $name {
            /// The number on the wire.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The value with this number, if there is one.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl<'b> $crate::cbor::Wire<'b> for $name {
            fn encode<W: $crate::minicbor::encode::Write<Error = std::convert::Infallible>>(
                &self,
                e: &mut $crate::minicbor::Encoder<W>,
            ) -> Result<(), $crate::cbor::CborEncodeError> {
                e.u8(self.number())?;
                Ok(())
            }

            fn decode(d: &mut $crate::minicbor::Decoder<'b>) -> Result<Self, $crate::cbor::DecodeError> {
                let number = <u8 as $crate::cbor::Wire<'b>>::decode(d)?;
                Self::from_number(number)
                    .ok_or_else(|| $crate::cbor::DecodeError::Unexpected(format!("unknown number {number}")))
            }

            fn shape() -> $crate::schema::WireShape {
                $crate::schema::WireShape::Choice(vec![
                    $((format!("{} {}", $number, stringify!($variant)), $crate::Generation::LEGACY),)*
                ])
            }
        }
    )*};
}

/// An enum encoded as a map with exactly one entry, whose key is the variant.
#[macro_export]
macro_rules! tagged {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident($type:ty),)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant($type),)*
        }

        impl $name {
            /// The key of the variant on the wire.
            pub const fn tag(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => stringify!($variant),)*
                }
            }
        }

        impl<'b> $crate::cbor::Wire<'b> for $name {
            fn encode<W: $crate::minicbor::encode::Write<Error = std::convert::Infallible>>(
                &self,
                e: &mut $crate::minicbor::Encoder<W>,
            ) -> Result<(), $crate::cbor::CborEncodeError> {
                e.map(1)?.str(self.tag())?;
                match self {
                    $(Self::$variant(value) => $crate::cbor::Wire::encode(value, e),)*
                }
            }

            fn decode(d: &mut $crate::minicbor::Decoder<'b>) -> Result<Self, $crate::cbor::DecodeError> {
                let mut found = None;
                $crate::cbor::map(d, |key, d| {
                    let value = match key {
                        $(_ if key == stringify!($variant) => {
                            Self::$variant($crate::cbor::Wire::decode(d).map_err(|e| e.within(stringify!($variant)))?)
                        })*
                        _ => return Err($crate::cbor::DecodeError::unknown("variant", key)),
                    };
                    match found.replace(value) {
                        None => Ok(()),
                        Some(_) => Err($crate::cbor::DecodeError::Unexpected("more than one variant".to_owned())),
                    }
                })?;
                found.ok_or_else(|| $crate::cbor::DecodeError::Unexpected("no variant".to_owned()))
            }

            fn shape() -> $crate::schema::WireShape {
                $crate::schema::WireShape::Tagged(vec![
                    $((stringify!($variant), <$type as $crate::cbor::Wire<'_>>::shape()),)*
                ])
            }
        }
    };
}

/// Ties payload types to their message types.
macro_rules! payloads {
    ($($name:ident $(<$lifetime:lifetime>)?,)*) => {$(
        impl<'b> $crate::message::Payload<'b> for $name $(<$lifetime>)? {
            const TYPE: $crate::message::MessageType = $crate::message::MessageType::$name;
        }
    )*};
}

impl crate::cbor::DecodeError {
    /// An error for an unknown text. Only its beginning is quoted: a peer may send four mebibytes.
    pub fn unknown(what: &str, text: &str) -> Self {
        let beginning: String = text.chars().take(40).collect();
        Self::Unexpected(format!("unknown {what} {beginning:?}"))
    }

    /// The error, with the key of the enclosing field.
    pub fn within(self, field: &'static str) -> Self {
        match self {
            Self::Unexpected(what) => Self::Unexpected(format!("{field}: {what}")),
            other => other,
        }
    }
}
