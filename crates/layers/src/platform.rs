//! What an image was built for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// An operating system and a kind of processor, in the words that images use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// `amd64`, `arm64`, …
    pub architecture: String,
    /// `v7`, `v8`, …, where an architecture has several.
    #[serde(default, deserialize_with = "some_text", skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// A text that names no platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a platform: write `linux/amd64`, or `linux/arm/v7`")]
pub struct BadPlatform(pub String);

// === impl Platform ===

impl Platform {
    /// What this machine runs.
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "aarch64" => ("arm64", Some("v8")),
            "x86" => ("386", None),
            "arm" => ("arm", Some("v7")),
            "powerpc64" => ("ppc64le", None),
            other => (other, None),
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: variant.map(Into::into) }
    }

    /// How much of the processor its variant asks for: one that names none asks for least.
    pub(crate) fn level(&self) -> u32 {
        let digits =
            self.variant.as_deref().map(|variant| variant.trim_start_matches(|letter: char| !letter.is_ascii_digit()));
        digits.map_or(0, |digits| digits.parse().unwrap_or(u32::MAX))
    }

    /// Whether what was built for `other` is what is meant by this.
    pub fn accepts(&self, other: &Self) -> bool {
        let same = self.os == other.os && self.architecture == other.architecture;
        // One that says no more is taken for what is usual; so is one that asks for no more.
        let usual = if self.architecture == "arm64" { Some("v8") } else { None };
        let variant = |platform: &Self| platform.variant.clone().or(usual.map(Into::into));
        match (variant(self), variant(other)) {
            (Some(wanted), Some(there)) => same && wanted == there,
            _ => same,
        }
    }
}

/// Reads an empty text as none.
fn some_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.filter(|text| !text.is_empty()))
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

impl FromStr for Platform {
    type Err = BadPlatform;

    fn from_str(text: &str) -> Result<Self, BadPlatform> {
        let parts: Vec<_> = text.split('/').collect();
        let plain = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        match parts.as_slice() {
            [os, architecture, rest @ ..] if rest.len() < 2 && parts.iter().all(plain) => Ok(Self {
                os: (*os).into(),
                architecture: (*architecture).into(),
                variant: rest.first().map(|variant| (*variant).into()),
            }),
            _ => Err(BadPlatform(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn a_platform_is_written_as_it_is_read() {
        for text in ["linux/amd64", "linux/arm/v7"] {
            assert_eq!(platform(text).to_string(), text);
        }
        for bad in ["", "linux", "linux/", "linux/arm/v7/x", "linux/a b"] {
            assert_eq!(bad.parse::<Platform>(), Err(BadPlatform(bad.into())));
        }
    }

    #[test]
    fn a_variant_counts_where_both_name_one_and_arm64_has_a_usual_one() {
        assert!(platform("linux/amd64").accepts(&platform("linux/amd64/v3")));
        assert!(platform("linux/arm64").accepts(&platform("linux/arm64/v8")));
        assert!(platform("linux/arm64/v8").accepts(&platform("linux/arm64")));
        assert!(!platform("linux/arm64").accepts(&platform("linux/arm64/v9")));
        assert!(!platform("linux/arm/v7").accepts(&platform("linux/arm/v6")));
        assert!(!platform("linux/amd64").accepts(&platform("windows/amd64")));
    }
}
