//! What an operator says about registries.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use carrel_registry::{InvalidMirror, RegistriesConfig, RegistryConfig, RegistryMirror};
use serde::Deserialize;

use super::show::{Quoted, path as shown_path, quoted_all};
use super::value::{AbsolutePath, Checked, MirrorText};

/// What is said about registries, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Registries(BTreeMap<String, RegistryTable>);

/// What is said about one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RegistryTable {
    mirrors: Vec<Checked<MirrorText>>,
    insecure: Option<bool>,
    ca: Option<Checked<AbsolutePath>>,
}

// === impl Registries ===

impl Registries {
    /// As whoever asks them is told.
    pub fn settings(&self) -> Result<RegistriesConfig, InvalidMirror> {
        let mut all = Vec::with_capacity(self.0.len());
        for (name, said) in &self.0 {
            let mirrors =
                said.mirrors.iter().map(|one| RegistryMirror::try_from(one.0.0.clone())).collect::<Result<_, _>>()?;
            all.push((
                name.clone(),
                RegistryConfig { mirrors, insecure: said.insecure, ca: said.ca().map(Path::to_owned) },
            ));
        }
        Ok(RegistriesConfig::new(all))
    }

    /// The files that it names, each with its key.
    pub(super) fn files(&self) -> impl Iterator<Item = (String, &Path)> {
        self.0.iter().filter_map(|(name, said)| Some((format!("registries.{name}.ca"), said.ca()?)))
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
        for (name, said) in &self.0 {
            writeln!(f, "\n[registries.{}]", Quoted(name))?;
            if !said.mirrors.is_empty() {
                writeln!(f, "mirrors = {}", quoted_all(said.mirrors.iter().map(|one| one.0.0.as_str())))?;
            }
            said.insecure.map_or(Ok(()), |insecure| writeln!(f, "insecure = {insecure}"))?;
            shown_path(f, "ca", said.ca())?;
        }
        Ok(())
    }
}
