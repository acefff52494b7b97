//! The configuration of image registries.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use carrel_registry::{InvalidMirror, RegistriesConfig, RegistryConfig, RegistryMirror};
use serde::Deserialize;

use super::show::{QuotedText, path as shown_path, quoted_all};
use super::value::{AbsolutePath, MirrorText, ValidatedText};

/// The registries, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Registries(BTreeMap<String, RegistryTable>);

/// The settings of one registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RegistryTable {
    mirrors: Vec<ValidatedText<MirrorText>>,
    insecure: Option<bool>,
    ca: Option<ValidatedText<AbsolutePath>>,
}

// === impl Registries ===

impl Registries {
    /// The settings for the registry client.
    pub fn settings(&self) -> Result<RegistriesConfig, InvalidMirror> {
        let mut all = Vec::with_capacity(self.0.len());
        for (name, value) in &self.0 {
            let mirrors =
                value.mirrors.iter().map(|one| RegistryMirror::try_from(one.0.0.clone())).collect::<Result<_, _>>()?;
            all.push((
                name.clone(),
                RegistryConfig { mirrors, insecure: value.insecure, ca: value.ca().map(Path::to_owned) },
            ));
        }
        Ok(RegistriesConfig::new(all))
    }

    /// The files that it names, each with its key.
    pub(super) fn files(&self) -> impl Iterator<Item = (String, &Path)> {
        self.0.iter().filter_map(|(name, value)| Some((format!("registries.{name}.ca"), value.ca()?)))
    }
}

// === impl RegistryTable ===

impl RegistryTable {
    fn ca(&self) -> Option<&Path> {
        self.ca.as_ref().map(|ca| ca.0.0.as_path())
    }
}

impl fmt::Display for Registries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.0 {
            writeln!(f, "\n[registries.{}]", QuotedText(name))?;
            if !value.mirrors.is_empty() {
                writeln!(f, "mirrors = {}", quoted_all(value.mirrors.iter().map(|one| one.0.0.as_str())))?;
            }
            value.insecure.map_or(Ok(()), |insecure| writeln!(f, "insecure = {insecure}"))?;
            shown_path(f, "ca", value.ca())?;
        }
        Ok(())
    }
}
