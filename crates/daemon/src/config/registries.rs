//! What an operator says about registries.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use carrel_registry::{BadMirror, Mirror, RegistrySettings, Settings};
use serde::Deserialize;

use super::show::{Quoted, path as shown_path, quoted_all};

/// What is said about registries, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Registries(BTreeMap<String, Said>);

/// What is said about one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Said {
    mirrors: Vec<String>,
    insecure: Option<bool>,
    ca: Option<PathBuf>,
}

// === impl Registries ===

impl Registries {
    /// As whoever asks them is told.
    pub fn settings(&self) -> Result<Settings, BadMirror> {
        let mut all = Vec::with_capacity(self.0.len());
        for (name, said) in &self.0 {
            let mirrors = said.mirrors.iter().cloned().map(Mirror::try_from).collect::<Result<_, _>>()?;
            all.push((name.clone(), RegistrySettings { mirrors, insecure: said.insecure, ca: said.ca.clone() }));
        }
        Ok(Settings::new(all))
    }

    /// The files that it names.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.values().filter_map(|said| said.ca.as_deref())
    }
}

impl fmt::Display for Registries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, said) in &self.0 {
            writeln!(f, "\n[registries.{}]", Quoted(name))?;
            if !said.mirrors.is_empty() {
                writeln!(f, "mirrors = {}", quoted_all(said.mirrors.iter().map(String::as_str)))?;
            }
            said.insecure.map_or(Ok(()), |insecure| writeln!(f, "insecure = {insecure}"))?;
            shown_path(f, "ca", said.ca.as_deref())?;
        }
        Ok(())
    }
}
