//! What a service is called by, so that it is found again by whoever knows the sandbox that it stands beside.

use std::path::PathBuf;

use carrel_control::provider::{Place, ProviderError};
use carrel_shim_client::{Found, SandboxRecord, layout};

use crate::ground::{Ground, LONGEST_NAME, hashed, name};
use crate::look::lasting;

/// The longest name of a service that is a part of other names as it is.
const LONGEST: usize = 40;
/// What stands between the start of a sandbox and the services beside it.
const BESIDE: &str = "-s";

/// A service beside one start of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    /// What stands for it in other names.
    pub(crate) key: String,
    /// The name of its own sandbox. It has a dot, which no id has.
    pub(crate) name: String,
    /// The start of that.
    pub(crate) incarnation: String,
    /// The directory of that.
    pub(crate) directory: PathBuf,
    /// There from before it is made until nothing is left of it.
    pub(crate) kept: PathBuf,
}

/// What stands for a service in other names: its own, if that is short and plain.
pub(crate) fn key(service: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !service.is_empty() && service.len() <= LONGEST && service.bytes().all(plain) {
        service.to_owned()
    } else {
        format!("h.{}", hashed(service))
    }
}

/// The start of the sandbox that something belongs to: its own, or that of the one that it stands beside.
pub(crate) fn start_of(record: &SandboxRecord) -> &str {
    let beside = record.create.network_of.and_then(|_| record.incarnation.rsplit_once(BESIDE));
    beside.map_or(record.incarnation.as_str(), |(start, _)| start)
}

// === impl Beside ===

impl Beside {
    pub(crate) fn new(ground: &Ground, place: &Place, key: &str) -> Result<Self, ProviderError> {
        let long = format!("{}.{key}", name(&place.sandbox));
        let name = if long.len() <= LONGEST_NAME { long } else { format!("s.{}", hashed(&long)) };
        Ok(Self {
            incarnation: format!("{}{BESIDE}{}", place.incarnation, hashed(key)),
            // A name is never empty and never too long, and so always has one.
            directory: ground.sandboxes().join(layout::directory_name(&name).unwrap_or_default()),
            kept: ground.services_of(place)?.join(key),
            key: key.to_owned(),
            name,
        })
    }

    /// Where its disk is.
    pub(crate) fn disk(&self) -> PathBuf {
        disk(&self.kept)
    }

    /// Whether what was found is this one.
    pub(crate) fn is(&self, found: &Found) -> bool {
        lasting(found).is_some_and(|record| record.incarnation == self.incarnation)
    }
}

/// The disk of a service, by what is kept of it.
pub(crate) fn disk(kept: &std::path::Path) -> PathBuf {
    kept.join("disk")
}

#[cfg(test)]
mod tests {
    use carrel_store::SandboxId;

    use super::*;

    fn beside(id: &str, service: &str) -> Beside {
        let home = tempfile::tempdir().unwrap();
        let place = Place {
            sandbox: SandboxId::new(id).unwrap(),
            incarnation: "0123456789abcdef".to_owned(),
            disk: "disk".to_owned(),
        };
        Beside::new(&Ground::new(home.path()).unwrap(), &place, &key(service)).unwrap()
    }

    #[test]
    fn a_service_is_called_by_its_sandbox_and_its_name() {
        let plain = beside("demo", "db");
        assert_eq!((plain.name.as_str(), plain.key.as_str()), ("demo.db", "db"));
        assert!(plain.disk().ends_with("services/disk/db/disk"));
        assert!(plain.incarnation.starts_with("0123456789abcdef-s"));
    }

    #[test]
    fn whatever_its_name_is_it_is_no_other_and_leads_nowhere() {
        let (long, id) = ("x".repeat(41), "i".repeat(120));
        let names = ["db", "d.b", "../db", "a b", "a-b", "", "h", "ä", &long];
        let keys: std::collections::BTreeSet<String> = names.iter().map(|name| key(name)).collect();
        assert_eq!(keys.len(), names.len());
        for (service, id) in names.iter().flat_map(|service| [(service, "demo"), (service, id.as_str())]) {
            let beside = beside(id, service);
            assert!(beside.name.len() <= LONGEST_NAME && beside.name.contains('.'), "{beside:?}");
            assert!(beside.incarnation.len() <= 64);
            assert!(!beside.key.starts_with('.') && !beside.key.contains('/'), "{beside:?}");
        }
    }
}
