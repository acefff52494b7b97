//! Keys that clients have to know: read from a file that is for us alone, or made for one life of the daemon.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use carrel_api::{ApiKey, BadKey};

/// A key of this life. It says itself only when it is asked to.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DevKey(String);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read it.
    #[error("{} can be read by others", .0.display())]
    Open(PathBuf),
    /// There is no key in it.
    #[error("{}: {source}", path.display())]
    Unfit {
        /// Which.
        path: PathBuf,
        /// Why.
        source: BadKey,
    },
    /// The kernel gives no random bytes.
    #[error("the kernel gives no random bytes")]
    Random,
}

/// Reads a key from a file of one line.
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
    /// Makes one that nobody guesses.
    pub(crate) fn random() -> Result<Self, KeyError> {
        let mut bytes = [0; 32];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(32) => Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())),
            Ok(_) | Err(_) => Err(KeyError::Random),
        }
    }

    /// The key itself.
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
    fn a_key_is_one_long_line_that_others_cannot_read() {
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
    fn no_key_is_made_twice_and_none_is_shown() {
        let (one, other) = (DevKey::random().unwrap(), DevKey::random().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.reveal().len(), 64);
        assert_eq!(format!("{one:?}"), "DevKey(…)");
    }
}
