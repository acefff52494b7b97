//! The registry configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;

use crate::ImageName;

/// Configuration by registry, `host` or `host:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct RegistriesConfig(BTreeMap<String, RegistryConfig>);

/// Configuration of one registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryConfig {
    /// Tried in this order before the registry itself.
    pub mirrors: Vec<RegistryMirror>,
    /// Whether it uses plain HTTP. Without a value, a registry on loopback is probed for TLS.
    pub insecure: Option<bool>,
    /// A PEM file of certificates that are trusted in addition to those of the system.
    pub ca: Option<PathBuf>,
}

/// A mirror of a registry: `[http://]host[:port][/path]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RegistryMirror {
    /// The mirror's own registry name.
    pub(crate) registry: String,
    /// A prefix of the repository.
    pub(crate) path: Option<String>,
    /// Whether it uses plain HTTP, if its URL has a scheme.
    pub(crate) insecure: Option<bool>,
}

/// A text that is not a mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a mirror: expected [http://]host[:port][/path]")]
pub struct InvalidMirror(String);

// === impl RegistriesConfig ===

impl RegistriesConfig {
    /// A configuration of these registries.
    pub fn new(registries: impl IntoIterator<Item = (String, RegistryConfig)>) -> Self {
        Self(registries.into_iter().collect())
    }

    /// The configuration of a registry, or the default.
    pub(crate) fn of(&self, registry: &str) -> RegistryConfig {
        self.0.get(registry).cloned().unwrap_or_default()
    }

    /// All hosts in the configuration, as requests go to them.
    pub(crate) fn hosts(&self) -> BTreeSet<String> {
        let mirrors = self.0.values().flat_map(|message| &message.mirrors).map(|mirror| &mirror.registry);
        self.0.keys().chain(mirrors).map(|registry| ImageName::host_of(registry)).collect()
    }
}

// === impl RegistryMirror ===

impl RegistryMirror {
    /// The name of an image at the mirror.
    pub(crate) fn name(&self, name: &ImageName) -> ImageName {
        let repository = match &self.path {
            Some(path) => format!("{path}/{}", name.repository()),
            None => name.repository().to_owned(),
        };
        name.moved(&self.registry, repository)
    }
}

impl TryFrom<String> for RegistryMirror {
    type Error = InvalidMirror;

    fn try_from(text: String) -> Result<Self, InvalidMirror> {
        let (insecure, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Some(true), rest),
            Some(("https", rest)) => (Some(false), rest),
            Some(_) => return Err(InvalidMirror(text)),
            None => (None, text.as_str()),
        };
        let (registry, path) =
            rest.trim_end_matches('/').split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
        let registry = registry.trim_end_matches('/').to_owned();
        let path = path.map(str::to_owned);
        // The prefix must be valid in an image name.
        let before = path.as_ref().map_or_else(String::new, |path| format!("{path}/"));
        match format!("{registry}/{before}a:b").parse::<ImageName>() {
            Ok(name) if name.registry() == registry && name.repository() == format!("{before}a") => {
                Ok(Self { registry, path, insecure })
            }
            _ => Err(InvalidMirror(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(text: &str) -> Option<(String, Option<String>, Option<bool>)> {
        let mirror = RegistryMirror::try_from(text.to_owned()).ok()?;
        Some((mirror.registry, mirror.path, mirror.insecure))
    }

    #[test]
    fn a_mirror_is_a_host_with_or_without_a_path() {
        assert_eq!(mirror("mirror.example"), Some(("mirror.example".into(), None, None)));
        assert_eq!(mirror("http://localhost:5000/"), Some(("localhost:5000".into(), None, Some(true))));
        assert_eq!(mirror("https://a.example/hub/x"), Some(("a.example".into(), Some("hub/x".into()), Some(false))));
        assert_eq!(mirror("http://[::1]:5000/x"), Some(("[::1]:5000".into(), Some("x".into()), Some(true))));
        for bad in ["", "http://", "ftp://a.example", "a.example/..", "a b", "nodots", "user@a.example"] {
            assert_eq!(mirror(bad), None, "{bad}");
        }
    }

    #[test]
    fn unknown_keys_and_invalid_mirrors_are_rejected() {
        let read = |text: &str| serde_json::from_str::<RegistriesConfig>(text);
        let settings = read(r#"{"localhost:5000": {"insecure": true, "mirrors": ["a.example"]}}"#).unwrap();
        assert_eq!(settings.of("localhost:5000").insecure, Some(true));
        assert_eq!(settings.of("other.example"), RegistryConfig::default());
        assert!(read(r#"{"localhost:5000": {"insecur": true}}"#).is_err());
        assert!(read(r#"{"localhost:5000": {"mirrors": ["a b"]}}"#).is_err());
    }
}
