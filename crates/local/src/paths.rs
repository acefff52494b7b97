//! The paths of a home: where the files of sandboxes are on this host.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use carrel_agent_client::sandbox_directory;
use carrel_control::provider::{Place, ProviderError, Reach};
use carrel_layout::{DISKS, MAX_NAME, PROGRAMS, QUARANTINE, SERVICES, sandbox_name};
use carrel_shim_client::layout::{self, AGENT_SOCKET, SHIM_SOCKET};
use carrel_store::SandboxId;

use crate::{LocalError, failed};

/// The marker in a disk that all copies were made.
const COPIED: &str = "copied";

/// The paths below one home.
#[derive(Clone, Debug)]
pub(crate) struct HomePaths {
    home: PathBuf,
}

// === impl HomePaths ===

impl HomePaths {
    /// Creates the home for its owner only, if it does not exist.
    pub(crate) fn new(home: &Path) -> Result<Self, LocalError> {
        // Socket directories are named by hashes of one length: if one name fits, all do.
        sandbox_directory(home, "any")?;
        let paths = Self::at(home);
        for path in [paths.disks(), paths.services(), paths.manifests(), paths.quarantine()] {
            create_top_directory(&path).map_err(|source| LocalError::Home { path, source })?;
        }
        Ok(paths)
    }

    /// The paths of an existing home.
    pub(crate) fn at(home: &Path) -> Self {
        Self { home: home.to_owned() }
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// The directory of all sandboxes' directories.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        layout::sandboxes_directory(&self.home)
    }

    pub(crate) fn directory(&self, sandbox: &SandboxId) -> PathBuf {
        // A name is never empty and never too long, so its directory name is valid.
        self.sandboxes().join(layout::directory_name(&name(sandbox)).unwrap_or_default())
    }

    pub(crate) fn reach(&self, sandbox: &SandboxId) -> Reach {
        let directory = self.directory(sandbox);
        Reach { agent_socket: directory.join(AGENT_SOCKET), shim_socket: directory.join(SHIM_SOCKET) }
    }

    /// The programs that enter sandboxes.
    pub(crate) fn programs(&self) -> PathBuf {
        self.home.join(PROGRAMS)
    }

    /// The layers of the image `host`.
    pub(crate) fn skeletons(&self) -> PathBuf {
        self.home.join("skeletons")
    }

    /// The directory of all disks in a home.
    pub(crate) fn disks_in(home: &Path) -> PathBuf {
        home.join(DISKS)
    }

    /// The directory of all disks.
    pub(crate) fn disks(&self) -> PathBuf {
        Self::disks_in(&self.home)
    }

    /// The directory of a disk.
    pub(crate) fn disk(&self, place: &Place) -> Result<PathBuf, ProviderError> {
        Ok(self.disks().join(disk_name(place)?))
    }

    /// The directory of the manifests.
    pub(crate) fn manifests(&self) -> PathBuf {
        self.home.join("manifests")
    }

    /// The directory that records since when disks are orphaned.
    pub(crate) fn quarantine(&self) -> PathBuf {
        self.home.join(QUARANTINE)
    }

    /// The directory of the disks of all services.
    pub(crate) fn services(&self) -> PathBuf {
        self.home.join(SERVICES)
    }

    /// The disks of the services of a sandbox.
    pub(crate) fn services_of(&self, place: &Place) -> Result<PathBuf, ProviderError> {
        Ok(self.services().join(disk_name(place)?))
    }

    /// The marker that all copies were made.
    pub(crate) fn copied(&self, place: &Place) -> Result<PathBuf, ProviderError> {
        Ok(self.disk(place)?.join(COPIED))
    }
}

/// Creates a directory for its owner only whose subdirectories are unrelated (`chattr +T`).
pub(crate) fn create_top_directory(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    layout::spread(layout::open_directory(rustix::fs::CWD, path)?);
    Ok(())
}

/// Creates a directory for its owner only, if it does not exist. Its parent must exist: a home that was moved is not
/// recreated at its old path.
pub(crate) fn create_directory(path: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// The disk of a sandbox, validated as a single path component.
fn disk_name(place: &Place) -> Result<&str, ProviderError> {
    if is_disk_name(&place.disk) {
        return Ok(&place.disk);
    }
    Err(failed(format_args!("{:?} is not a valid disk name", place.disk)))
}

/// Whether a name is valid for a disk.
pub(crate) fn is_disk_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(known)
}

/// The name of a sandbox: its id, if that is short enough.
pub(crate) fn name(sandbox: &SandboxId) -> String {
    sandbox_name(sandbox.as_str()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(disk: &str) -> Place {
        let sandbox = SandboxId::new("demo").unwrap();
        Place { sandbox, incarnation: "one".to_owned(), disk: disk.to_owned() }
    }

    #[test]
    fn a_name_is_the_id_or_a_prefix_of_its_hash() {
        let named = |length| name(&SandboxId::new("x".repeat(length)).unwrap());
        assert_eq!(named(128), "x".repeat(128));
        assert_eq!(named(129).len(), 25);
        assert_ne!(named(129), named(130));
    }

    #[test]
    fn a_home_path_that_is_too_long_for_sockets_is_refused() {
        let home = tempfile::tempdir().unwrap();
        assert!(HomePaths::new(&home.path().join("short")).is_ok());
        let refused = HomePaths::new(&home.path().join("x".repeat(80)));
        assert!(matches!(refused, Err(LocalError::Path(_))), "{refused:?}");
    }

    #[test]
    fn a_disk_name_cannot_escape_the_directory_of_disks() {
        let home = tempfile::tempdir().unwrap();
        let paths = HomePaths::new(home.path()).unwrap();
        assert_eq!(paths.disk(&place("a-1_b")).unwrap(), home.path().join("disks/a-1_b"));
        for bad in ["", "..", "a/b", ".a", "a b"] {
            assert!(paths.disk(&place(bad)).is_err() && paths.services_of(&place(bad)).is_err(), "{bad:?}");
        }
    }
}
