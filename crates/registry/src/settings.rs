//! What an operator says about registries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;

use crate::Name;

/// By the name of a registry, `host` or `host:port`, what is special about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Settings(BTreeMap<String, RegistrySettings>);

/// What is special about one registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistrySettings {
    /// Asked first, in this order. What none of them has is asked of the registry itself.
    pub mirrors: Vec<Mirror>,
    /// Whether it speaks HTTP without TLS. One on loopback that nothing is said about is asked both ways.
    pub insecure: Option<bool>,
    /// A file with certificates in PEM format that are trusted beside those of the system.
    pub ca: Option<PathBuf>,
}

/// A registry that has what another one has: `[http://]host[:port][/path]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mirror {
    /// Where it is, as names have it.
    pub(crate) registry: String,
    /// What is put before the name of a repository.
    pub(crate) path: Option<String>,
    /// Whether it speaks HTTP without TLS, if the mirror itself says so.
    pub(crate) insecure: Option<bool>,
}

/// A text that is no mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a mirror: give it as [http://]host[:port][/path]")]
pub struct BadMirror(String);

// === impl Settings ===

impl Settings {
    /// With these alone.
    pub fn new(registries: impl IntoIterator<Item = (String, RegistrySettings)>) -> Self {
        Self(registries.into_iter().collect())
    }

    /// What is said of a registry.
    pub(crate) fn of(&self, registry: &str) -> RegistrySettings {
        self.0.get(registry).cloned().unwrap_or_default()
    }

    /// All hosts that are named, as they are asked.
    pub(crate) fn named(&self) -> BTreeSet<String> {
        let mirrors = self.0.values().flat_map(|said| &said.mirrors).map(|mirror| &mirror.registry);
        self.0.keys().chain(mirrors).map(|registry| Name::host_of(registry)).collect()
    }
}

// === impl Mirror ===

impl Mirror {
    /// What an image is called there.
    pub(crate) fn name(&self, name: &Name) -> Name {
        let repository = match &self.path {
            Some(path) => format!("{path}/{}", name.repository()),
            None => name.repository().to_owned(),
        };
        name.moved(&self.registry, repository)
    }
}

impl TryFrom<String> for Mirror {
    type Error = BadMirror;

    fn try_from(text: String) -> Result<Self, BadMirror> {
        let (insecure, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Some(true), rest),
            Some(("https", rest)) => (Some(false), rest),
            Some(_) => return Err(BadMirror(text)),
            None => (None, text.as_str()),
        };
        let (registry, path) =
            rest.trim_end_matches('/').split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
        let registry = registry.trim_end_matches('/').to_owned();
        let path = path.map(str::to_owned);
        // Whatever a name with it in front could not be is no mirror either.
        let before = path.as_ref().map_or_else(String::new, |path| format!("{path}/"));
        match format!("{registry}/{before}a:b").parse::<Name>() {
            Ok(name) if name.registry() == registry && name.repository() == format!("{before}a") => {
                Ok(Self { registry, path, insecure })
            }
            _ => Err(BadMirror(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(text: &str) -> Option<(String, Option<String>, Option<bool>)> {
        let mirror = Mirror::try_from(text.to_owned()).ok()?;
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
    fn what_is_misspelt_is_refused() {
        let read = |text: &str| serde_json::from_str::<Settings>(text);
        let settings = read(r#"{"localhost:5000": {"insecure": true, "mirrors": ["a.example"]}}"#).unwrap();
        assert_eq!(settings.of("localhost:5000").insecure, Some(true));
        assert_eq!(settings.of("other.example"), RegistrySettings::default());
        assert!(read(r#"{"localhost:5000": {"insecur": true}}"#).is_err());
        assert!(read(r#"{"localhost:5000": {"mirrors": ["a b"]}}"#).is_err());
    }
}
