//! API keys: read from a private file, or generated for one run of the daemon.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use carrel_api::{ApiKey, InvalidApiKey};

/// A key that is generated for one run. Its debug output is redacted.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DevKey(String);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The key file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Other users can read the file.
    #[error("{} can be read by other users", .0.display())]
    Open(PathBuf),
    /// The file has no valid key.
    #[error("{}: {source}", path.display())]
    Unfit {
        /// The key file.
        path: PathBuf,
        /// What is wrong with the key.
        source: InvalidApiKey,
    },
    /// The kernel returned no random bytes.
    #[error("the kernel returned no random bytes")]
    Random,
}

/// Reads a key from a file with one line.
pub(crate) fn read(path: &Path) -> Result<ApiKey, KeyError> {
    let failed = |source| KeyError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.mode() & 0o077 != 0 {
        return Err(KeyError::Open(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    ApiKey::new(&text).map_err(|source| KeyError::Unfit { path: path.to_owned(), source })
}

// === impl DevKey ===

impl DevKey {
    /// Generates a key.
    pub(crate) fn random() -> Result<Self, KeyError> {
        let mut bytes = [0; 32];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(32) => Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())),
            Ok(_) | Err(_) => Err(KeyError::Random),
        }
    }

    /// The secret itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DevKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DevKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_private_and_has_one_long_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let read = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        assert!(read("0123456789abcdef\n", 0o600).is_ok());
        assert!(matches!(read("0123456789abcdef\n", 0o644), Err(KeyError::Open(_))));
        for unfit in ["", "short\n", "0123456789abcdef\n0123456789abcdef\n"] {
            assert!(matches!(read(unfit, 0o600), Err(KeyError::Unfit { .. })), "{unfit:?}");
        }
        assert!(matches!(super::read(Path::new("/nowhere/key")), Err(KeyError::Read { .. })));
    }

    #[test]
    fn generated_keys_differ_and_are_redacted() {
        let (one, other) = (DevKey::random().unwrap(), DevKey::random().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.reveal().len(), 64);
        assert_eq!(format!("{one:?}"), "DevKey(…)");
    }
}
