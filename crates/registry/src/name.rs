//! What an image is called in a registry.

use std::fmt;
use std::str::FromStr;

use oci_client::Reference;

/// A complete name: `docker.io/library/python:3.12`, with a digest behind it if one was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(Reference);

/// A text that names no image of a registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a name of an image: {reason}")]
pub struct BadName {
    text: String,
    reason: String,
}

// === impl Name ===

impl Name {
    /// The registry, as names have it: `docker.io`, `localhost:5000`.
    pub fn registry(&self) -> &str {
        self.0.registry()
    }

    /// The repository in it.
    pub fn repository(&self) -> &str {
        self.0.repository()
    }

    /// The tag, unless there is only a digest.
    pub fn tag(&self) -> Option<&str> {
        self.0.tag()
    }

    /// The digest, if one was given. It is what counts then, whatever the tag says.
    pub fn digest(&self) -> Option<&str> {
        self.0.digest()
    }

    /// The same image elsewhere.
    pub(crate) fn moved(&self, registry: &str, repository: String) -> Self {
        let registry = registry.to_owned();
        Self(match (self.tag().map(str::to_owned), self.digest().map(str::to_owned)) {
            (Some(tag), Some(digest)) => Reference::with_tag_and_digest(registry, repository, tag, digest),
            (None, Some(digest)) => Reference::with_digest(registry, repository, digest),
            (tag, None) => Reference::with_tag(registry, repository, tag.unwrap_or_else(|| "latest".to_owned())),
        })
    }

    pub(crate) fn reference(&self) -> &Reference {
        &self.0
    }
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = |reason: String| BadName { text: text.to_owned(), reason };
        let reference: Reference = text.parse().map_err(|error: oci_client::ParseError| bad(error.to_string()))?;
        match reference.digest() {
            Some(digest) if !digest.starts_with("sha256:") => Err(bad("only sha256 digests are known here".into())),
            _ => Ok(Self(reference)),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str) -> String {
        text.parse::<Name>().map_or_else(|error| error.to_string(), |name| name.to_string())
    }

    #[test]
    fn a_short_name_means_the_hub_and_the_latest() {
        assert_eq!(full("python:3.12"), "docker.io/library/python:3.12");
        assert_eq!(full("python"), "docker.io/library/python:latest");
        assert_eq!(full("someone/thing"), "docker.io/someone/thing:latest");
        assert_eq!(full("index.docker.io/python"), "docker.io/library/python:latest");
    }

    #[test]
    fn a_first_part_with_a_dot_or_a_colon_is_a_registry() {
        assert_eq!(full("localhost:5000/a/b"), "localhost:5000/a/b:latest");
        assert_eq!(full("localhost/a"), "localhost/a:latest");
        assert_eq!(full("ghcr.io/a/b:v1"), "ghcr.io/a/b:v1");
    }

    #[test]
    fn a_digest_stands_beside_the_tag_or_alone() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(full(&format!("a@{digest}")), format!("docker.io/library/a@{digest}"));
        assert_eq!(full(&format!("a:1@{digest}")), format!("docker.io/library/a:1@{digest}"));
    }

    #[test]
    fn what_names_nothing_is_refused() {
        let other = format!("a@sha512:{}", "a".repeat(128));
        for bad in ["", ":tag", "A", "a b", "a:", "a@sha256:12", "a//b", "../a", "a/../b", "a\n", other.as_str()] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }
}
