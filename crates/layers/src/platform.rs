//! Platforms of images.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// An operating system and an architecture, in the terms of OCI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// `amd64`, `arm64`, …
    pub architecture: String,
    /// `v7`, `v8`, …, for architectures with variants.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// A text that is not a platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a platform: expected `linux/amd64` or `linux/arm/v7`")]
pub struct InvalidPlatform(pub String);

// === impl Platform ===

impl Platform {
    /// The platform of this machine.
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

    /// The number of the variant; lower ones run on more processors.
    pub(crate) fn level(&self) -> u32 {
        let digits =
            self.variant.as_deref().map(|variant| variant.trim_start_matches(|letter: char| !letter.is_ascii_digit()));
        digits.map_or(0, |digits| digits.parse().unwrap_or(u32::MAX))
    }

    /// Whether an image for `other` runs on this platform.
    pub fn accepts(&self, other: &Self) -> bool {
        let same = self.os == other.os && self.architecture == other.architecture;
        // Without a variant the usual one is meant; lower variants run too.
        let usual = if self.architecture == "arm64" { Some("v8") } else { None };
        let variant = |platform: &Self| platform.variant.clone().or(usual.map(Into::into));
        match (variant(self), variant(other)) {
            (Some(wanted), Some(there)) => same && wanted == there,
            _ => same,
        }
    }
}

/// Reads an empty string as `None`.
fn empty_as_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.filter(|text| !text.is_empty()))
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

impl FromStr for Platform {
    type Err = InvalidPlatform;

    fn from_str(text: &str) -> Result<Self, InvalidPlatform> {
        let parts: Vec<_> = text.split('/').collect();
        let plain = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        match parts.as_slice() {
            [os, architecture, rest @ ..] if rest.len() < 2 && parts.iter().all(plain) => Ok(Self {
                os: (*os).into(),
                architecture: (*architecture).into(),
                variant: rest.first().map(|variant| (*variant).into()),
            }),
            _ => Err(InvalidPlatform(text.to_owned())),
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
    fn display_and_parse_round_trip() {
        for text in ["linux/amd64", "linux/arm/v7"] {
            assert_eq!(platform(text).to_string(), text);
        }
        for bad in ["", "linux", "linux/", "linux/arm/v7/x", "linux/a b"] {
            assert_eq!(bad.parse::<Platform>(), Err(InvalidPlatform(bad.into())));
        }
    }

    #[test]
    fn variants_are_compared_if_both_state_one_and_arm64_has_a_default() {
        assert!(platform("linux/amd64").accepts(&platform("linux/amd64/v3")));
        assert!(platform("linux/arm64").accepts(&platform("linux/arm64/v8")));
        assert!(platform("linux/arm64/v8").accepts(&platform("linux/arm64")));
        assert!(!platform("linux/arm64").accepts(&platform("linux/arm64/v9")));
        assert!(!platform("linux/arm/v7").accepts(&platform("linux/arm/v6")));
        assert!(!platform("linux/amd64").accepts(&platform("windows/amd64")));
    }
}
