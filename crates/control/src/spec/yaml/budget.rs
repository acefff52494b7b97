//! Bounds the size of a YAML file before it is parsed.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

use crate::spec::units::quoted;

/// The maximum size with aliases expanded.
const MAX_BYTES: usize = 1 << 20;
/// The maximum nesting depth; a draft needs five.
const MAX_DEPTH: u8 = 16;

/// The maximum number of opening brackets: the scanner visits all that are open with every token.
const MAX_BRACKETS: usize = 1000;

/// Visits a file without storing anything, to check its size, its depth and duplicate keys.
pub(super) fn check(bytes: &[u8]) -> Result<(), serde_norway::Error> {
    if bytes.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > MAX_BRACKETS {
        return Err(Error::custom(format!("has more than {MAX_BRACKETS} opening brackets")));
    }
    let left = Cell::new(MAX_BYTES);
    YamlBudget { left: &left, depth: MAX_DEPTH }.deserialize(serde_norway::Deserializer::from_slice(bytes))
}

/// What is left of the budget.
#[derive(Clone, Copy)]
struct YamlBudget<'a> {
    left: &'a Cell<usize>,
    depth: u8,
}

// === impl YamlBudget ===

impl YamlBudget<'_> {
    fn charge<E: Error>(self, length: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(length.saturating_add(1));
        self.left.set(left.ok_or_else(|| E::custom("its aliases make it too large"))?);
        Ok(())
    }

    fn descend<E: Error>(self) -> Result<Self, E> {
        let depth =
            self.depth.checked_sub(1).ok_or_else(|| E::custom(format!("is more than {MAX_DEPTH} levels deep")))?;
        Ok(Self { depth, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for YamlBudget<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for YamlBudget<'_> {
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
        let within = self.descend()?;
        while list.next_element_seed(within)?.is_some() {}
        self.charge(0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let within = self.descend()?;
        let mut observed = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            within.charge(key.len())?;
            map.next_value_seed(within)?;
            if let Some(twice) = observed.replace(key) {
                return Err(A::Error::custom(format!("the key {} is used twice", quoted(&twice))));
            }
        }
        self.charge(0)
    }
}
