//! Values as they are written in the file. Each is checked where it is read, so that an error has its line and key.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use carrel_local::LogTemplate;
use carrel_registry::RegistryMirror;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

use super::{LogFormat, LogLevel, quantity};
use crate::address::Address;

/// A value that is written as text.
pub(super) trait TextValue: Sized {
    /// What the text has to be.
    const WANTED: &'static str;

    /// The value of a text; why it is none, if there is more to say than what is wanted.
    fn read(text: &str) -> Result<Self, Option<String>>;
}

/// A value that is checked while it is deserialized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checked<T>(pub(super) T);

/// A number of bytes, as a number or with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) u64);

/// A path that starts at the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AbsolutePath(pub(super) PathBuf);

/// The permissions of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketMode(pub(super) u32);

/// A template for the output of execs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateText(pub(super) String);

/// A mirror of a registry, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MirrorText(pub(super) String);

/// A number within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounded<const LEAST: u32, const MOST: u32>(pub(super) u32);

// === impl Checked ===

struct TextVisitor<T>(PhantomData<T>);

impl<T: TextValue> Visitor<'_> for TextVisitor<T> {
    type Value = Checked<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WANTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Checked<T>, E> {
        T::read(text).map(Checked).map_err(|reason| match reason {
            Some(reason) => E::custom(reason),
            None => E::custom(format_args!("{text:?} is not valid: expected {}", T::WANTED)),
        })
    }
}

impl<'de, T: TextValue> Deserialize<'de> for Checked<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

// === impl TextValue ===

impl TextValue for Duration {
    const WANTED: &'static str = quantity::TIME;

    fn read(text: &str) -> Result<Self, Option<String>> {
        quantity::time(text).ok_or(None)
    }
}

impl TextValue for LogLevel {
    const WANTED: &'static str = "one of error, warn, info, debug, trace";

    fn read(text: &str) -> Result<Self, Option<String>> {
        Self::from_name(text).ok_or(None)
    }
}

impl TextValue for LogFormat {
    const WANTED: &'static str = "one of auto, text, json";

    fn read(text: &str) -> Result<Self, Option<String>> {
        Self::from_name(text).ok_or(None)
    }
}

impl TextValue for AbsolutePath {
    const WANTED: &'static str = "a path that starts with a slash";

    fn read(text: &str) -> Result<Self, Option<String>> {
        let path = PathBuf::from(text);
        if path.is_absolute() { Ok(Self(path)) } else { Err(None) }
    }
}

impl TextValue for SocketMode {
    const WANTED: &'static str = "permissions such as \"0600\"";

    fn read(text: &str) -> Result<Self, Option<String>> {
        u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777).map(Self).ok_or(None)
    }
}

impl TextValue for TemplateText {
    const WANTED: &'static str = "a path that ends in \"{sandbox_id}/{exec_id}\"";

    fn read(text: &str) -> Result<Self, Option<String>> {
        LogTemplate::new("/", text).map(|_| Self(text.to_owned())).map_err(|bad| Some(bad.to_string()))
    }
}

impl TextValue for MirrorText {
    const WANTED: &'static str = "[http://]host[:port][/path]";

    fn read(text: &str) -> Result<Self, Option<String>> {
        RegistryMirror::try_from(text.to_owned()).map(|_| Self(text.to_owned())).map_err(|bad| Some(bad.to_string()))
    }
}

impl TextValue for Address {
    const WANTED: &'static str = "unix:PATH or tcp:ADDRESS:PORT";

    fn read(text: &str) -> Result<Self, Option<String>> {
        text.parse().map_err(|bad: crate::address::BadAddress| Some(bad.to_string()))
    }
}

// === impl Bytes ===

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a size {}", quantity::SIZE)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Bytes, E> {
        let wrong = || E::custom(format_args!("{number} is not valid: expected a size {}", quantity::SIZE));
        u64::try_from(number).map(Bytes).map_err(|_| wrong())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Bytes, E> {
        Ok(Bytes(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
        let wrong = || E::custom(format_args!("{text:?} is not valid: expected a size {}", quantity::SIZE));
        quantity::size(text).map(Bytes).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BytesVisitor)
    }
}

// === impl Bounded ===

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Bounded<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        match u32::try_from(number) {
            Ok(fits) if (LEAST..=MOST).contains(&fits) => Ok(Self(fits)),
            _ => Err(D::Error::custom(format_args!("{number} is not valid: expected a number from {LEAST} to {MOST}"))),
        }
    }
}
