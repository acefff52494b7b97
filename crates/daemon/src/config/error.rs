//! Errors in the configuration, with file, line and key.

use std::io;
use std::path::PathBuf;

use carrel_local::LogTemplate;

use crate::address::Address;
use crate::key::KeyError;

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The configuration file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{}, line {line}: {message}", path.display())]
    Syntax {
        /// The configuration file.
        path: PathBuf,
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// A key is unknown, missing, or has a value that is not accepted.
    #[error("{}, line {line}: {key}: {message}", path.display())]
    Key {
        /// The configuration file.
        path: PathBuf,
        line: usize,
        /// The full key, such as `limits.memory`.
        key: String,
        /// What is wrong with it.
        message: String,
    },
    /// The keys of a listener contradict each other.
    #[error("{}: {key}: {address}: {problem}", path.display())]
    Listen {
        /// The configuration file.
        path: PathBuf,
        /// The full key that is missing or superfluous.
        key: &'static str,
        /// The address of the listener.
        address: Address,
        /// What is wrong.
        problem: &'static str,
    },
    /// A file that a key names cannot be used.
    #[error("{}: {key}: {source}", path.display())]
    File {
        /// The configuration file.
        path: PathBuf,
        /// The full key.
        key: String,
        /// Why the file cannot be used.
        source: Box<ConfigFileError>,
    },
}

/// Why a file that a key names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It has no API key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It has no certificate or private key.
    #[error("{}: {source}", file.display())]
    Tls {
        /// The certificate or key file.
        file: PathBuf,
        /// What is wrong with it.
        source: carrel_api::TlsError,
    },
    /// It cannot be opened.
    #[error("{}: {source}", file.display())]
    Open {
        file: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

// === impl ConfigError ===

impl ConfigError {
    /// The full key that caused it, such as `limits.memory`.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Key { key, .. } | Self::File { key, .. } => Some(key),
            Self::Listen { key, .. } => Some(key),
            Self::Read { .. } | Self::Syntax { .. } => None,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Read { .. } => "--config names another file".to_owned(),
            Self::Key { key, .. } if key == "artifacts.exec_output_template" => {
                format!("the default is {:?}", LogTemplate::DEFAULT)
            }
            Self::Syntax { .. } | Self::Key { .. } => {
                "docs/reference/configuration.md lists every key; `carrel serve --check` shows what is in effect"
                    .to_owned()
            }
            Self::Listen { .. } => {
                "a port needs `api_key_file`, or `certificate`, `key` and `client_ca`; a socket needs neither"
                    .to_owned()
            }
            Self::File { key, source, .. } => match &**source {
                ConfigFileError::Key(KeyError::Open(file)) => format!("chmod 600 {}", file.display()),
                // A log file is created, so what is missing is its directory.
                ConfigFileError::Open { file, source }
                    if key == "log.file" && source.kind() == io::ErrorKind::NotFound =>
                {
                    format!("mkdir -p {}", file.parent().unwrap_or(file).display())
                }
                other => format!("ls -l {}", other.file().display()),
            },
        }
    }
}

// === impl ConfigFileError ===

impl ConfigFileError {
    fn file(&self) -> &std::path::Path {
        match self {
            Self::Key(KeyError::Read { path, .. } | KeyError::Unfit { path, .. } | KeyError::Open(path)) => path,
            Self::Key(KeyError::Random) => std::path::Path::new("/dev/random"),
            Self::Tls { file, .. } | Self::Open { file, .. } => file,
        }
    }
}
