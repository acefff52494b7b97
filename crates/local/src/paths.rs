//! Where things of a sandbox are on this host.

use std::fmt::Write as _;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use carrel_agent_client::sandbox_directory;
use carrel_control::provider::{Place, ProviderError, Reach};
use carrel_shim_client::layout::{self, AGENT_SOCKET, SHIM_SOCKET};
use carrel_store::SandboxId;
use sha2::{Digest, Sha256};

use crate::{LocalError, failed};

/// The longest id that is a name too.
pub(crate) const MAX_NAME_LENGTH: usize = 128;
/// How many bytes of the hash of a longer one are its name.
const HASH_BYTES: usize = 12;
/// There once everything that is copied in has been.
const COPIED: &str = "copied";

/// The places below one home.
#[derive(Clone, Debug)]
pub(crate) struct HomePaths {
    home: PathBuf,
}

// === impl HomePaths ===

impl HomePaths {
    /// Makes the home, for its owner alone, if it is not there.
    pub(crate) fn new(home: &Path) -> Result<Self, LocalError> {
        // All names are hashed to the same length: what fits for one fits for all.
        sandbox_directory(home, "any")?;
        let paths = Self::at(home);
        for path in [paths.disks(), paths.services(), paths.manifests(), paths.quarantine()] {
            create_top_directory(&path).map_err(|source| LocalError::Home { path, source })?;
        }
        Ok(paths)
    }

    /// That of a home that is there.
    pub(crate) fn at(home: &Path) -> Self {
        Self { home: home.to_owned() }
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Where the directories of all sandboxes are.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        layout::sandboxes_directory(&self.home)
    }

    /// The directory of a sandbox.
    pub(crate) fn directory(&self, sandbox: &SandboxId) -> PathBuf {
        // A name is never empty and never too long, and so always has one.
        self.sandboxes().join(layout::directory_name(&name(sandbox)).unwrap_or_default())
    }

    pub(crate) fn reach(&self, sandbox: &SandboxId) -> Reach {
        let directory = self.directory(sandbox);
        Reach { agent_socket: directory.join(AGENT_SOCKET), shim_socket: directory.join(SHIM_SOCKET) }
    }

    /// Where the programs that enter sandboxes are kept.
    pub(crate) fn programs(&self) -> PathBuf {
        self.home.join("programs")
    }

    /// Where what the image `host` brings is kept.
    pub(crate) fn skeletons(&self) -> PathBuf {
        self.home.join("skeletons")
    }

    /// Where all disks of a home are.
    pub(crate) fn disks_in(home: &Path) -> PathBuf {
        home.join("disks")
    }

    /// Where all disks are.
    pub(crate) fn disks(&self) -> PathBuf {
        Self::disks_in(&self.home)
    }

    /// The directory of a disk.
    pub(crate) fn disk(&self, place: &Place) -> Result<PathBuf, ProviderError> {
        Ok(self.disks().join(disk_name(place)?))
    }

    /// Where it is kept what each sandbox is.
    pub(crate) fn manifests(&self) -> PathBuf {
        self.home.join("manifests")
    }

    /// Where it is kept since when disks are not known.
    pub(crate) fn quarantine(&self) -> PathBuf {
        self.home.join("quarantine")
    }

    /// Where the disks of all services are.
    pub(crate) fn services(&self) -> PathBuf {
        self.home.join("services")
    }

    /// Where the disks of those beside a sandbox are.
    pub(crate) fn services_of(&self, place: &Place) -> Result<PathBuf, ProviderError> {
        Ok(self.services().join(disk_name(place)?))
    }

    /// What is there once everything that is copied in has been.
    pub(crate) fn copied(&self, place: &Place) -> Result<PathBuf, ProviderError> {
        Ok(self.disk(place)?.join(COPIED))
    }
}

/// Makes a directory for what does not belong together, for its owner alone.
pub(crate) fn create_top_directory(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    layout::spread(layout::open_directory(rustix::fs::CWD, path)?);
    Ok(())
}

/// Makes a directory for its owner alone, if it is not there. What is above it is not made: a home that was moved is not made
/// again where it was.
pub(crate) fn create_directory(path: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// The name of a disk, which can be nothing but a name.
fn disk_name(place: &Place) -> Result<&str, ProviderError> {
    if is_disk_name(&place.disk) {
        return Ok(&place.disk);
    }
    Err(failed(format_args!("{:?} is no name of a disk", place.disk)))
}

/// Whether a name is one that a disk can have.
pub(crate) fn is_disk_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.len() <= MAX_NAME_LENGTH && name.bytes().all(known)
}

/// The name of a sandbox: its id, if that is short enough.
pub(crate) fn name(sandbox: &SandboxId) -> String {
    let id = sandbox.as_str();
    // No id begins like that: whoever knows the hash cannot ask for the name.
    if id.len() <= MAX_NAME_LENGTH { id.to_owned() } else { format!("_{}", hash_prefix(id)) }
}

/// What stands for a text that is too long for a name.
pub(crate) fn hash_prefix(text: &str) -> String {
    Sha256::digest(text).iter().take(HASH_BYTES).fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(disk: &str) -> Place {
        let sandbox = SandboxId::new("demo").unwrap();
        Place { sandbox, incarnation: "one".to_owned(), disk: disk.to_owned() }
    }

    #[test]
    fn a_name_is_the_id_or_the_beginning_of_its_hash() {
        let named = |length| name(&SandboxId::new("x".repeat(length)).unwrap());
        assert_eq!(named(128), "x".repeat(128));
        assert_eq!(named(129).len(), 25);
        assert_ne!(named(129), named(130));
    }

    #[test]
    fn a_home_that_is_too_long_for_sockets_is_refused() {
        let home = tempfile::tempdir().unwrap();
        assert!(HomePaths::new(&home.path().join("short")).is_ok());
        let refused = HomePaths::new(&home.path().join("x".repeat(80)));
        assert!(matches!(refused, Err(LocalError::Path(_))), "{refused:?}");
    }

    #[test]
    fn a_disk_cannot_be_elsewhere() {
        let home = tempfile::tempdir().unwrap();
        let paths = HomePaths::new(home.path()).unwrap();
        assert_eq!(paths.disk(&place("a-1_b")).unwrap(), home.path().join("disks/a-1_b"));
        for bad in ["", "..", "a/b", ".a", "a b"] {
            assert!(paths.disk(&place(bad)).is_err() && paths.services_of(&place(bad)).is_err(), "{bad:?}");
        }
    }
}
