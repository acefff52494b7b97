//! Image names in a registry.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use carrel_layers::Digest;
use oci_client::Reference;

/// A full image name: `docker.io/library/python:3.12`, with a digest if one was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageName {
    reference: Reference,
    digest: Option<Digest>,
}

/// A text that is not an image name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid image name: {reason}")]
pub struct InvalidImageName {
    text: String,
    reason: String,
}

// === impl ImageName ===

impl ImageName {
    /// The registry as image names have it: `docker.io`, `localhost:5000`.
    pub fn registry(&self) -> &str {
        self.reference.registry()
    }

    /// The repository, without the registry.
    pub fn repository(&self) -> &str {
        self.reference.repository()
    }

    /// The tag; `None` if there is only a digest.
    pub fn tag(&self) -> Option<&str> {
        self.reference.tag()
    }

    /// The digest, if one was given; it takes precedence over the tag.
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The same tag and digest in another registry and repository.
    pub(crate) fn moved(&self, registry: &str, repository: String) -> Self {
        let registry = registry.to_owned();
        let reference = match (self.tag().map(str::to_owned), self.digest.map(|digest| digest.to_string())) {
            (Some(tag), Some(digest)) => Reference::with_tag_and_digest(registry, repository, tag, digest),
            (None, Some(digest)) => Reference::with_digest(registry, repository, digest),
            (tag, None) => Reference::with_tag(registry, repository, tag.unwrap_or_else(|| "latest".to_owned())),
        };
        Self { reference, digest: self.digest }
    }

    /// The host that serves a registry's API: Docker Hub has another one than its name.
    pub(crate) fn host_of(registry: &str) -> String {
        let (repository, tag) = ("a".to_owned(), "b".to_owned());
        Reference::with_tag(registry.to_owned(), repository, tag).resolve_registry().to_owned()
    }

    pub(crate) fn reference(&self) -> &Reference {
        &self.reference
    }
}

impl FromStr for ImageName {
    type Err = InvalidImageName;

    fn from_str(text: &str) -> Result<Self, InvalidImageName> {
        let bad = |reason: String| InvalidImageName { text: text.to_owned(), reason };
        if let Some((registry, rest)) = text.split_once('/').filter(|_| text.starts_with('[')) {
            let registry = bracketed(registry).ok_or_else(|| bad(format!("{registry} is not an address")))?;
            // The part after the registry has the same syntax in every registry.
            let elsewhere: Self =
                format!("localhost/{rest}").parse().map_err(|error: InvalidImageName| bad(error.reason))?;
            return Ok(elsewhere.moved(&registry, elsewhere.repository().to_owned()));
        }
        let reference: Reference = text.parse().map_err(|error: oci_client::ParseError| bad(error.to_string()))?;
        let digest = reference.digest().map(str::parse).transpose();
        let digest = digest.map_err(|error: carrel_layers::InvalidDigest| bad(error.to_string()))?;
        Ok(Self { reference, digest })
    }
}

/// Normalizes an IPv6 address in brackets with an optional port.
fn bracketed(registry: &str) -> Option<String> {
    let (address, rest) = registry.strip_prefix('[')?.split_once(']')?;
    let address: Ipv6Addr = address.parse().ok()?;
    match rest.strip_prefix(':') {
        Some(port) if port.bytes().all(|digit| digit.is_ascii_digit()) => {
            Some(format!("[{address}]:{}", port.parse::<u16>().ok()?))
        }
        None if rest.is_empty() => Some(format!("[{address}]")),
        _ => None,
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reference.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str) -> String {
        text.parse::<ImageName>().map_or_else(|error| error.to_string(), |name| name.to_string())
    }

    #[test]
    fn a_short_name_means_docker_hub_and_latest() {
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
    fn a_digest_comes_with_or_without_a_tag() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(full(&format!("a@{digest}")), format!("docker.io/library/a@{digest}"));
        assert_eq!(full(&format!("a:1@{digest}")), format!("docker.io/library/a:1@{digest}"));
    }

    #[test]
    fn an_ipv6_address_in_brackets_is_a_registry_too() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(full("[::1]:5000/a/b"), "[::1]:5000/a/b:latest");
        assert_eq!(full("[0:0::1]:05000/a:1"), "[::1]:5000/a:1");
        assert_eq!(full(&format!("[fd00::1]/a@{digest}")), format!("[fd00::1]/a@{digest}"));
        let name: ImageName = "[::1]:5000/a".parse().unwrap();
        assert_eq!((name.registry(), name.repository(), name.tag()), ("[::1]:5000", "a", Some("latest")));
        for bad in [
            "[::1]",
            "[::1]/",
            "[::1]5000/a",
            "[::1]:/a",
            "[::1]:x/a",
            "[::1]:+1/a",
            "[1.2.3.4]/a",
            "[::1/a",
            "[::1%lo]/a",
            "[::1]/A",
        ] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_digest_that_is_not_canonical_is_rejected() {
        let named = |digits: &str| format!("a@sha256:{}", digits.repeat(32)).parse::<ImageName>();
        assert_eq!(named("ab").unwrap().digest().unwrap().hex(), "ab".repeat(32));
        for bad in ["AB", "aB", "a"] {
            let refused = named(bad).map(|name| name.to_string());
            assert!(refused.is_err(), "{bad}: {refused:?}");
        }
    }

    #[test]
    fn an_invalid_name_is_rejected() {
        let other = format!("a@sha512:{}", "a".repeat(128));
        for bad in ["", ":tag", "A", "a b", "a:", "a@sha256:12", "a//b", "../a", "a/../b", "a\n", other.as_str()] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad:?}");
        }
    }
}
