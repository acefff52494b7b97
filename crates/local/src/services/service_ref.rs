//! The names of a service, derived from those of its main sandbox, so that a new daemon finds it.

use std::path::PathBuf;

use carrel_control::provider::{Place, ProviderError};
use carrel_layout::{MAX_NAME, hash_prefix};
use carrel_shim_client::{DiscoveredSandbox, SandboxRecord, layout};

use crate::discovery::persistent_record;
use crate::paths::{HomePaths, name};

/// The longest service name that is used in other names directly.
const MAX_LENGTH: usize = 40;
/// Separates the incarnation of the main sandbox from the service in the incarnation of a service.
const SERVICE_INFIX: &str = "-s";

/// A service of one incarnation of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceRef {
    /// The service's name in other names.
    pub(crate) key: String,
    /// The name of the service's own sandbox. It contains a dot, which no id does.
    pub(crate) name: String,
    /// The incarnation of the service's sandbox.
    pub(crate) incarnation: String,
    /// The directory of the service's sandbox.
    pub(crate) directory: PathBuf,
    /// Exists from before the service is created until it is removed completely.
    pub(crate) kept: PathBuf,
}

/// The service's name in other names: its own, if that is short and plain, else a hash.
pub(crate) fn key(service: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !service.is_empty() && service.len() <= MAX_LENGTH && service.bytes().all(plain) {
        service.to_owned()
    } else {
        format!("h.{}", hash_prefix(service))
    }
}

/// The incarnation of the main sandbox that a record belongs to.
pub(crate) fn main_incarnation(record: &SandboxRecord) -> &str {
    let service_ref = record.create.network_of.and_then(|_| record.incarnation.rsplit_once(SERVICE_INFIX));
    service_ref.map_or(record.incarnation.as_str(), |(start, _)| start)
}

// === impl ServiceRef ===

impl ServiceRef {
    pub(crate) fn new(paths: &HomePaths, place: &Place, key: &str) -> Result<Self, ProviderError> {
        let long = format!("{}.{key}", name(&place.sandbox));
        let name = if long.len() <= MAX_NAME { long } else { format!("s.{}", hash_prefix(&long)) };
        Ok(Self {
            incarnation: format!("{}{SERVICE_INFIX}{}", place.incarnation, hash_prefix(key)),
            // A name is never empty and never too long, so its directory name is valid.
            directory: paths.sandboxes().join(layout::directory_name(&name).unwrap_or_default()),
            kept: paths.services_of(place)?.join(key),
            key: key.to_owned(),
            name,
        })
    }

    /// The directory of its disk.
    pub(crate) fn disk(&self) -> PathBuf {
        disk(&self.kept)
    }

    /// Whether a found sandbox is this service.
    pub(crate) fn is(&self, found: &DiscoveredSandbox) -> bool {
        persistent_record(found).is_some_and(|record| record.incarnation == self.incarnation)
    }
}

/// The disk of a service, in its directory.
pub(crate) fn disk(kept: &std::path::Path) -> PathBuf {
    kept.join("disk")
}

#[cfg(test)]
mod tests {
    use carrel_store::SandboxId;

    use super::*;

    fn service_ref(id: &str, service: &str) -> ServiceRef {
        let home = tempfile::tempdir().unwrap();
        let place = Place {
            sandbox: SandboxId::new(id).unwrap(),
            incarnation: "0123456789abcdef".to_owned(),
            disk: "disk".to_owned(),
        };
        ServiceRef::new(&HomePaths::new(home.path()).unwrap(), &place, &key(service)).unwrap()
    }

    #[test]
    fn a_service_is_named_after_its_sandbox() {
        let plain = service_ref("demo", "db");
        assert_eq!((plain.name.as_str(), plain.key.as_str()), ("demo.db", "db"));
        assert!(plain.disk().ends_with("services/disk/db/disk"));
        assert!(plain.incarnation.starts_with("0123456789abcdef-s"));
    }

    #[test]
    fn any_service_name_is_unique_and_cannot_escape() {
        let (long, id) = ("x".repeat(41), "i".repeat(120));
        let names = ["db", "d.b", "../db", "a b", "a-b", "", "h", "ä", &long];
        let keys: std::collections::BTreeSet<String> = names.iter().map(|name| key(name)).collect();
        assert_eq!(keys.len(), names.len());
        for (service, id) in names.iter().flat_map(|service| [(service, "demo"), (service, id.as_str())]) {
            let service_ref = service_ref(id, service);
            assert!(service_ref.name.len() <= MAX_NAME && service_ref.name.contains('.'), "{service_ref:?}");
            assert!(service_ref.incarnation.len() <= 64);
            assert!(!service_ref.key.starts_with('.') && !service_ref.key.contains('/'), "{service_ref:?}");
        }
    }
}
