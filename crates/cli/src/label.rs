//! Labels: `KEY=VALUE`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    key: String,
    value: String,
}

/// Text that is not a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidLabel;

// === impl Label ===

impl Label {
    /// Labels as a map; the last one of each key counts.
    pub(crate) fn pairs(labels: &[Self]) -> BTreeMap<String, String> {
        labels.iter().map(|label| (label.key.clone(), label.value.clone())).collect()
    }
}

impl FromStr for Label {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or(InvalidLabel)?;
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

// === impl InvalidLabel ===

impl fmt::Display for InvalidLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected KEY=VALUE")
    }
}

impl std::error::Error for InvalidLabel {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_key_and_a_value() {
        let parsed: Vec<Label> = ["a=1", "b=", "c=x=y", "a=2"].iter().map(|text| text.parse().unwrap()).collect();
        let pairs = [("a", "2"), ("b", ""), ("c", "x=y")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(Label::pairs(&parsed), BTreeMap::from(pairs));
        assert_eq!(("a".parse::<Label>(), "=x".parse::<Label>()), (Err(InvalidLabel), Err(InvalidLabel)));
    }
}
