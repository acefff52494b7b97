//! How much a file is, before anything of it is kept.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

use crate::spec::units::shown;

/// What a file may come to when its aliases are followed.
const MOST: usize = 1 << 20;
/// Lists in maps in lists: a draft needs five.
const DEEPEST: u8 = 16;

/// The most brackets that open: the scanner looks at all that are open again with every word.
const MOST_BRACKETS: usize = 1000;

/// Goes through a file without keeping anything: how much it is, how deep, and whether a key stands twice.
pub(super) fn measure(bytes: &[u8]) -> Result<(), serde_norway::Error> {
    if bytes.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > MOST_BRACKETS {
        return Err(Error::custom(format!("has more than {MOST_BRACKETS} opening brackets")));
    }
    let left = Cell::new(MOST);
    Measured { left: &left, depth: DEEPEST }.deserialize(serde_norway::Deserializer::from_slice(bytes))
}

/// What is left of the measure.
#[derive(Clone, Copy)]
struct Measured<'a> {
    left: &'a Cell<usize>,
    depth: u8,
}

// === impl Measured ===

impl Measured<'_> {
    fn charge<E: Error>(self, length: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(length.saturating_add(1));
        self.left.set(left.ok_or_else(|| E::custom("its aliases make it too large"))?);
        Ok(())
    }

    fn deeper<E: Error>(self) -> Result<Self, E> {
        let depth =
            self.depth.checked_sub(1).ok_or_else(|| E::custom(format!("is more than {DEEPEST} levels deep")))?;
        Ok(Self { depth, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Measured<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measured<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number, a list or a map")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.charge(0)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.charge(0)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.charge(0)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.charge(0)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.charge(0)
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<(), E> {
        self.charge(0)
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<(), E> {
        self.charge(0)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.charge(0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.charge(text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let within = self.deeper()?;
        while list.next_element_seed(within)?.is_some() {}
        self.charge(0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let within = self.deeper()?;
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            within.charge(key.len())?;
            map.next_value_seed(within)?;
            if let Some(twice) = seen.replace(key) {
                return Err(A::Error::custom(format!("the key {} is there twice", shown(&twice))));
            }
        }
        self.charge(0)
    }
}
