//! What an operator says: a file, read once, of which every key is known.

mod effective;
mod error;
mod file;
mod log;
mod quantity;
mod registries;
mod show;
#[cfg(test)]
mod tests;
mod value;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_control::Retention;
use carrel_local::LogTemplate;

pub use self::error::{ConfigError, FileError};
pub use self::log::{LogConfig, LogFormat, LogLevel};
pub use self::registries::Registries;
use crate::address::Address;

/// Everything that an operator can say, with defaults for what was not said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file that says it; none if there was none to read.
    pub file: Option<PathBuf>,
    /// How long a sandbox may be idle before it is stopped; 0 is for ever.
    pub idle_ttl: Duration,
    /// How long stopped, failed and deleted ones are kept.
    pub cleanup_ttl: Duration,
    /// How long a sandbox has to end by itself.
    pub grace: Duration,
    /// What is logged, how, and where.
    pub log: LogConfig,
    /// Where the output of execs is kept; below the home if none is given.
    pub exec_output_root: Option<PathBuf>,
    /// How it is named there.
    pub exec_output_template: String,
    /// What all sandboxes and each of them may take.
    pub limits: Limits,
    /// How much of the past is kept.
    pub retention: RetentionConfig,
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
    /// How many may run.
    pub sandboxes: Option<u64>,
    /// How many of all users are kept, running or not; 0 is no limit.
    pub kept_sandboxes: u64,
    /// How many of one user other than the daemon's own are kept; 0 is no limit.
    pub user_sandboxes: u64,
    /// How many bytes the specs of those may have together; 0 is no limit.
    pub kept_specs: u64,
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

/// How much of the past is kept. 0 is no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Of sandboxes, their events, their execs and disks that the store does not know.
    pub history: Retention,
    /// How many bytes of output of all execs of a sandbox are kept; 512 MiB if none is given.
    pub output: Option<u64>,
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

// === impl Config ===

impl Config {
    /// Reads the given file, or the one at its usual place if that is there.
    pub fn load(given: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path(given) else { return Ok(Self::default()) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&path, &text).map(|config| Self { file: Some(path), ..config }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && given.is_none() => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { path, source }),
        }
    }

    /// The format of the log that a file asks for in which something else is wrong.
    pub(crate) fn format_of(given: Option<&Path>) -> LogFormat {
        let text = path(given).and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let table: toml::Table = text.parse().unwrap_or_default();
        let format = table.get("log").and_then(|log| log.get("format")?.as_str());
        format.and_then(LogFormat::from_name).unwrap_or_default()
    }

    /// The same with those keys of another that only a restart changes.
    pub(crate) fn with_fixed_of(self, running: &Self) -> Self {
        Self {
            exec_output_root: running.exec_output_root.clone(),
            exec_output_template: running.exec_output_template.clone(),
            limits: Limits {
                host_free: running.limits.host_free,
                host_free_inodes: running.limits.host_free_inodes,
                ..self.limits
            },
            listen: running.listen.clone(),
            ..self
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

    /// Checks that the files can be read that the configuration names for registries.
    pub(crate) fn check_files(&self) -> Result<(), ConfigError> {
        for (key, file) in self.registries.files() {
            std::fs::File::open(file).map_err(|source| {
                let source = Box::new(FileError::Open { file: file.to_owned(), source });
                ConfigError::File { path: self.file.clone().unwrap_or_default(), key, source }
            })?;
        }
        Ok(())
    }

    /// Takes the text of a file.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let read = toml::Deserializer::parse(text).map_err(|error| broken(path, text, None, &error))?;
        let file: file::ConfigFile = serde_path_to_error::deserialize(read).map_err(|error| {
            let key = error.path().to_string();
            broken(path, text, Some(key), error.inner())
        })?;
        file.config(path)
    }
}

/// What is wrong with a text, with the line and, if it is known, the key.
fn broken(path: &Path, text: &str, key: Option<String>, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (path, line) = (path.to_owned(), before.matches('\n').count() + 1);
    // A message of several lines shows the place again.
    let message = error.message().lines().next().unwrap_or_default().to_owned();
    // The path of the whole file is a dot.
    match key.filter(|key| key != ".") {
        Some(key) => ConfigError::Key { path, line, key, message },
        None => ConfigError::Syntax { path, line, message },
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            file: None,
            idle_ttl: Duration::from_secs(10 * 60),
            cleanup_ttl: Duration::from_secs(360 * 60 * 60),
            grace: Duration::from_secs(2),
            log: LogConfig::default(),
            exec_output_root: None,
            exec_output_template: LogTemplate::DEFAULT.to_owned(),
            limits: Limits {
                sandboxes: None,
                kept_sandboxes: 4096,
                user_sandboxes: 1024,
                kept_specs: 64 << 20,
                memory: None,
                sandbox_memory: None,
                pids: 1024,
                host_free: 1 << 30,
                host_free_inodes: None,
                sandbox_disk: 10 << 30,
                sandbox_inodes: 1 << 20,
            },
            retention: RetentionConfig::default(),
            allow: Vec::new(),
            registries: Registries::default(),
            listen: Vec::new(),
        }
    }
}

// === impl RetentionConfig ===

impl RetentionConfig {
    /// How many bytes of output a supervisor keeps of a sandbox; none is its default.
    pub(crate) fn output_quota(&self) -> Option<u64> {
        // It has no word for no bound.
        self.output.map(|bytes| if bytes == 0 { i64::MAX.unsigned_abs() } else { bytes })
    }
}

// === impl Listen ===

impl Listen {
    /// A place with nothing else said.
    pub fn at(grpc: Address) -> Self {
        Self { grpc, mode: 0o600, certificate: None, key: None, client_ca: None, api_key_file: None }
    }
}

/// Where the file is: where that is said, or at its usual place.
fn path(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_owned).or_else(|| usual_path(|key| std::env::var_os(key)))
}

/// Where the file is if nobody says.
fn usual_path(own: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = |key: &str| own(key).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = given("XDG_CONFIG_HOME").or_else(|| Some(given("HOME")?.join(".config")))?;
    Some(directory.join("carrel/config.toml"))
}
