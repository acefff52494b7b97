//! Values of the configuration file. Each is validated during parsing, so that an error has its line and key.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use carrel_local::LogTemplate;
use carrel_registry::RegistryMirror;
use carrel_units::TimeSpan;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

use super::{LogFormat, LogLevel, quantity};
use crate::address::Address;

/// A value that is written as a string.
pub(super) trait TextValue: Sized {
    /// What the text has to be.
    const EXPECTED: &'static str;

    /// Parses the text; an error may have a more specific message than the expectation.
    fn read(text: &str) -> Result<Self, Option<String>>;
}

/// A string value that is validated while it is deserialized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValidatedText<T>(pub(super) T);

/// A number of bytes, as a number or with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteSize(pub(super) u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AbsolutePath(pub(super) PathBuf);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketMode(pub(super) u32);

/// A file name template for the output of execs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateText(pub(super) String);

/// A mirror of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MirrorText(pub(super) String);

/// A number within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoundedNumber<const MIN: u32, const MAX: u32>(pub(super) u32);

// === impl ValidatedText ===

struct TextVisitor<T>(PhantomData<T>);

impl<T: TextValue> Visitor<'_> for TextVisitor<T> {
    type Value = ValidatedText<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ValidatedText<T>, E> {
        T::read(text).map(ValidatedText).map_err(|reason| match reason {
            Some(reason) => E::custom(reason),
            None => E::custom(format_args!("{text:?} is not valid: expected {}", T::EXPECTED)),
        })
    }
}

impl<'de, T: TextValue> Deserialize<'de> for ValidatedText<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

// === impl TextValue ===

impl TextValue for Duration {
    const EXPECTED: &'static str = quantity::DURATION;

    fn read(text: &str) -> Result<Self, Option<String>> {
        text.parse().map(|TimeSpan(span)| span).map_err(|_| None)
    }
}

impl TextValue for LogLevel {
    const EXPECTED: &'static str = "one of error, warn, info, debug, trace";

    fn read(text: &str) -> Result<Self, Option<String>> {
        Self::from_name(text).ok_or(None)
    }
}

impl TextValue for LogFormat {
    const EXPECTED: &'static str = "one of auto, text, json";

    fn read(text: &str) -> Result<Self, Option<String>> {
        Self::from_name(text).ok_or(None)
    }
}

impl TextValue for AbsolutePath {
    const EXPECTED: &'static str = "a path that starts with a slash";

    fn read(text: &str) -> Result<Self, Option<String>> {
        let path = PathBuf::from(text);
        if path.is_absolute() { Ok(Self(path)) } else { Err(None) }
    }
}

impl TextValue for SocketMode {
    const EXPECTED: &'static str = "permissions such as \"0600\"";

    fn read(text: &str) -> Result<Self, Option<String>> {
        u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777).map(Self).ok_or(None)
    }
}

impl TextValue for TemplateText {
    const EXPECTED: &'static str = "a path that ends in \"{sandbox_id}/{exec_id}\"";

    fn read(text: &str) -> Result<Self, Option<String>> {
        LogTemplate::new("/", text).map(|_| Self(text.to_owned())).map_err(|bad| Some(bad.to_string()))
    }
}

impl TextValue for MirrorText {
    const EXPECTED: &'static str = "[http://]host[:port][/path]";

    fn read(text: &str) -> Result<Self, Option<String>> {
        RegistryMirror::try_from(text.to_owned()).map(|_| Self(text.to_owned())).map_err(|bad| Some(bad.to_string()))
    }
}

impl TextValue for Address {
    const EXPECTED: &'static str = "unix:PATH or tcp:ADDRESS:PORT";

    fn read(text: &str) -> Result<Self, Option<String>> {
        text.parse().map_err(|bad: crate::address::InvalidAddress| Some(bad.to_string()))
    }
}

// === impl ByteSize ===

struct ByteSizeVisitor;

impl Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a size {}", quantity::SIZE)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<ByteSize, E> {
        let wrong = || E::custom(format_args!("{number} is not valid: expected a size {}", quantity::SIZE));
        u64::try_from(number).map(ByteSize).map_err(|_| wrong())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
        let wrong = || E::custom(format_args!("{text:?} is not valid: expected a size {}", quantity::SIZE));
        text.parse().map(|carrel_units::ByteSize(bytes)| ByteSize(bytes)).map_err(|_| wrong())
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

// === impl BoundedNumber ===

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for BoundedNumber<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        match u32::try_from(number) {
            Ok(fits) if (MIN..=MAX).contains(&fits) => Ok(Self(fits)),
            _ => Err(D::Error::custom(format_args!("{number} is not valid: expected a number from {MIN} to {MAX}"))),
        }
    }
}
