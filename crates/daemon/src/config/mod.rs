//! What an operator says: a file, read once, of which every key is known.

mod file;
mod quantity;
mod registries;
mod show;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_local::{BadTemplate, LogTemplate};
use carrel_registry::BadMirror;

pub use self::registries::Registries;
use crate::address::{Address, BadAddress};

/// Everything that an operator can say, with defaults for what was not said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file that says it; none if there was none to read.
    pub file: Option<PathBuf>,
    /// How long a sandbox may be idle before it is stopped; 0 is for ever.
    pub idle_ttl: Duration,
    /// How long stopped, failed and deleted ones are kept.
    pub cleanup_ttl: Duration,
    /// How much is told.
    pub log_level: LogLevel,
    /// How long a sandbox has to end by itself.
    pub grace: Duration,
    /// Where the output of execs is kept; below the home if none is given.
    pub exec_output_root: Option<PathBuf>,
    /// How it is named there.
    pub exec_output_template: String,
    /// What all sandboxes and each of them may take.
    pub limits: Limits,
    /// What other callers than the daemon's own user may name of this host.
    pub allow: Vec<PathBuf>,
    /// What is special about registries of images.
    pub registries: Registries,
    /// Where clients connect, besides what the command line says.
    pub listen: Vec<Listen>,
}

/// What all sandboxes and each of them may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many there may be.
    pub sandboxes: Option<u64>,
    /// How much memory the limits of all that run may come to.
    pub memory: Option<u64>,
    /// How much memory one has that does not say; half of the host's if none is given.
    pub sandbox_memory: Option<u64>,
    /// How many processes and threads one may have.
    pub pids: u32,
    /// How many bytes of the host's disk are left alone.
    pub host_free: u64,
    /// How many inodes of it are; 65,536 or a sixteenth of all, whichever is less, if none is given.
    pub host_free_inodes: Option<u64>,
    /// How many bytes of disk one has that does not say, where there are project quotas; 0 is no limit.
    pub sandbox_disk: u64,
    /// How many inodes it has then; 0 is no limit.
    pub sandbox_inodes: u64,
}

/// How much is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Only what is broken.
    Error,
    /// What may be.
    Warn,
    /// What happens.
    #[default]
    Info,
    /// Why it happens.
    Debug,
    /// Everything.
    Trace,
}

/// A place where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Where.
    pub grpc: Address,
    /// Who may connect to a socket, besides what its directory says.
    pub mode: u32,
    /// The certificate that clients are shown, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, in PEM.
    pub key: Option<PathBuf>,
    /// Whose certificates clients have to show, in PEM.
    pub client_ca: Option<PathBuf>,
    /// Where the key is that clients have to know.
    pub api_key_file: Option<PathBuf>,
}

/// What is wrong with what an operator says.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is none, or says something unknown.
    #[error("{}, line {line}: {message}", path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// Where in it.
        line: usize,
        /// What.
        message: String,
    },
    /// A value is none of its kind.
    #[error("{}: {key} is {value:?}, and has to be {wanted}", path.display())]
    Value {
        /// Which file.
        path: PathBuf,
        /// Which key.
        key: &'static str,
        /// What it says.
        value: String,
        /// What would do.
        wanted: &'static str,
    },
    /// The template of logs cannot be written to.
    #[error("{}: artifacts.exec_output_template: {source}", path.display())]
    Template {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: BadTemplate,
    },
    /// A place to listen is none.
    #[error("{}: listen.grpc: {source}", path.display())]
    Address {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: BadAddress,
    },
    /// A place to listen has what does not go with it, or lacks what does.
    #[error("{}: listen {address}: {problem}", path.display())]
    Listen {
        /// Which file.
        path: PathBuf,
        /// Which place.
        address: Address,
        /// What is wrong.
        problem: &'static str,
    },
    /// A mirror of a registry is none.
    #[error("{}: registries: {source}", path.display())]
    Mirror {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: BadMirror,
    },
    /// A path does not start at the root.
    #[error("{}: {key}: {value:?} does not start with a slash", path.display())]
    Relative {
        /// Which file.
        path: PathBuf,
        /// Which key.
        key: &'static str,
        /// What it says.
        value: PathBuf,
    },
}

// === impl Config ===

impl Config {
    /// Reads the given file, or the one at its usual place if that is there.
    pub fn load(given: Option<&Path>) -> Result<Self, ConfigError> {
        let usual = usual_path(|key| std::env::var_os(key));
        let Some(path) = given.or(usual.as_deref()) else { return Ok(Self::default()) };
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { file: Some(path.to_owned()), ..Self::parse(path, &text)? }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && given.is_none() => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
        }
    }

    /// Where it was read, in words.
    pub fn file_said(&self) -> String {
        self.file.as_ref().map_or_else(|| "none".to_owned(), |file| file.display().to_string())
    }

    /// Where the output of execs is kept, for a home.
    pub fn log_root(&self, home: &Path) -> PathBuf {
        self.exec_output_root.clone().unwrap_or_else(|| home.join("logs"))
    }

    /// Where that of one sandbox is.
    pub fn log_directory(&self, home: &Path, sandbox: &str) -> PathBuf {
        let directory = self.exec_output_template.rsplit_once('/').map_or("", |(directory, _)| directory);
        self.log_root(home).join(directory.replace("{sandbox_id}", sandbox))
    }

    /// Takes the text of a file.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let said: file::File = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            // A message of several lines shows the place again.
            let message = error.message().lines().next().unwrap_or_default().to_owned();
            ConfigError::Parse { path: path.to_owned(), line, message }
        })?;
        said.checked(path)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            file: None,
            idle_ttl: Duration::from_secs(10 * 60),
            cleanup_ttl: Duration::from_secs(360 * 60 * 60),
            log_level: LogLevel::default(),
            grace: Duration::from_secs(2),
            exec_output_root: None,
            exec_output_template: LogTemplate::DEFAULT.to_owned(),
            limits: Limits {
                sandboxes: None,
                memory: None,
                sandbox_memory: None,
                pids: 1024,
                host_free: 1 << 30,
                host_free_inodes: None,
                sandbox_disk: 10 << 30,
                sandbox_inodes: 1 << 20,
            },
            allow: Vec::new(),
            registries: Registries::default(),
            listen: Vec::new(),
        }
    }
}

// === impl Listen ===

impl Listen {
    /// A place with nothing else said.
    pub fn at(grpc: Address) -> Self {
        Self { grpc, mode: 0o600, certificate: None, key: None, client_ca: None, api_key_file: None }
    }
}

// === impl LogLevel ===

impl LogLevel {
    const ALL: [(&'static str, Self); 5] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, level)| level)
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, level)| *level == self).map_or("info", |(name, _)| name)
    }
}

// === impl ConfigError ===

impl ConfigError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Read { .. } => "--config names another file".to_owned(),
            Self::Parse { .. } | Self::Value { .. } | Self::Relative { .. } => {
                "docs/daemon.md lists every key; `carrel serve --check` shows what is in effect".to_owned()
            }
            Self::Template { .. } => format!("the default is {:?}", LogTemplate::DEFAULT),
            Self::Mirror { .. } => "such as mirrors = [\"mirror.example:5000\"]".to_owned(),
            Self::Address { .. } => "such as grpc = \"tcp:127.0.0.1:7443\"".to_owned(),
            Self::Listen { .. } => {
                "a port needs `api_key_file`, or `certificate`, `key` and `client_ca`; a socket needs neither"
                    .to_owned()
            }
        }
    }
}

/// Where the file is if nobody says.
fn usual_path(own: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = |key: &str| own(key).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = given("XDG_CONFIG_HOME").or_else(|| Some(given("HOME")?.join(".config")))?;
    Some(directory.join("carrel/config.toml"))
}
