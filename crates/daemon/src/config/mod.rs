//! The configuration file, in which every key must be known.

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

pub use self::error::{ConfigError, ConfigFileError};
pub use self::log::{LogConfig, LogFormat, LogLevel};
pub use self::registries::Registries;
use crate::address::Address;

/// The configuration, with defaults for keys that are not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file that it was read from, if any.
    pub file: Option<PathBuf>,
    /// How long a sandbox may be idle before it is stopped; 0 is forever.
    pub idle_ttl: Duration,
    /// How long stopped, failed and deleted sandboxes are kept.
    pub cleanup_ttl: Duration,
    /// How long a sandbox has to exit after a stop request.
    pub grace: Duration,
    /// Level, format and target of the log.
    pub log: LogConfig,
    /// The directory for the output of execs; below the home if `None`.
    pub exec_output_root: Option<PathBuf>,
    /// The file name template for the output of execs.
    pub exec_output_template: String,
    /// Limits of all sandboxes together and of each of them.
    pub limits: LimitsConfig,
    /// How much history is kept.
    pub retention: RetentionConfig,
    /// The host paths that callers other than the daemon's own user may mount.
    pub allow: Vec<PathBuf>,
    /// Mirrors and certificates of image registries.
    pub registries: Registries,
    /// The listeners, in addition to those of the command line.
    pub listen: Vec<ListenConfig>,
}

/// Limits of all sandboxes together and of each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// The maximum number of running sandboxes.
    pub sandboxes: Option<u64>,
    /// The maximum number of sandboxes of all users, running or not; 0 is no limit.
    pub kept_sandboxes: u64,
    /// The maximum number of sandboxes of one user other than the daemon's own; 0 is no limit.
    pub user_sandboxes: u64,
    /// The maximum size of all their specs in bytes; 0 is no limit.
    pub kept_specs: u64,
    /// The maximum sum of the memory limits of all running sandboxes.
    pub memory: Option<u64>,
    /// The default memory of a sandbox; half of the host's if `None`.
    pub sandbox_memory: Option<u64>,
    /// The maximum number of processes and threads in a sandbox.
    pub pids: u32,
    /// How many bytes of the host's disk stay free.
    pub host_free: u64,
    /// How many inodes of it stay free; 65,536 or a sixteenth of all, whichever is less, if `None`.
    pub host_free_inodes: Option<u64>,
    /// The default disk size of a sandbox in bytes, on file systems with project quotas; 0 is no limit.
    pub sandbox_disk: u64,
    /// The default number of inodes of a sandbox there; 0 is no limit.
    pub sandbox_inodes: u64,
}

/// How much history is kept. 0 is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionConfig {
    /// The retention of sandboxes, events, execs and orphaned disks.
    pub history: Retention,
    /// How many bytes of output of all execs of a sandbox are kept; 512 MiB if `None`.
    pub output: Option<u64>,
}

/// The configuration of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    pub grpc: Address,
    /// The mode of a Unix socket.
    pub mode: u32,
    /// The server certificate, a PEM file.
    pub certificate: Option<PathBuf>,
    /// Its private key, a PEM file.
    pub key: Option<PathBuf>,
    /// The CA of client certificates, a PEM file.
    pub client_ca: Option<PathBuf>,
    /// The file with the API key.
    pub api_key_file: Option<PathBuf>,
}

// === impl Config ===

impl Config {
    /// Reads the given file, or the default one if it exists.
    pub fn load(given: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path(given) else { return Ok(Self::default()) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&path, &text).map(|config| Self { file: Some(path), ..config }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && given.is_none() => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { path, source }),
        }
    }

    /// The log format of a file that is otherwise invalid.
    pub(crate) fn log_format_of(given: Option<&Path>) -> LogFormat {
        let text = path(given).and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let table: toml::Table = text.parse().unwrap_or_default();
        let format = table.get("log").and_then(|log| log.get("format")?.as_str());
        format.and_then(LogFormat::from_name).unwrap_or_default()
    }

    /// Replaces the keys that only a restart changes by those of the running configuration.
    pub(crate) fn with_fixed_of(self, running: &Self) -> Self {
        Self {
            exec_output_root: running.exec_output_root.clone(),
            exec_output_template: running.exec_output_template.clone(),
            limits: LimitsConfig {
                host_free: running.limits.host_free,
                host_free_inodes: running.limits.host_free_inodes,
                ..self.limits
            },
            listen: running.listen.clone(),
            ..self
        }
    }

    /// The path of the file, for messages.
    pub fn file_description(&self) -> String {
        self.file.as_ref().map_or_else(|| "none".to_owned(), |file| file.display().to_string())
    }

    /// The directory for the output of execs, for a home.
    pub fn log_root(&self, home: &Path) -> PathBuf {
        self.exec_output_root.clone().unwrap_or_else(|| home.join("logs"))
    }

    /// The directory for the output of one sandbox.
    pub fn log_directory(&self, home: &Path, sandbox: &str) -> PathBuf {
        let directory = self.exec_output_template.rsplit_once('/').map_or("", |(directory, _)| directory);
        self.log_root(home).join(directory.replace("{sandbox_id}", sandbox))
    }

    /// Checks that the files that the configuration names for registries can be read.
    pub(crate) fn check_files(&self) -> Result<(), ConfigError> {
        for (key, file) in self.registries.files() {
            std::fs::File::open(file).map_err(|source| {
                let source = Box::new(ConfigFileError::Open { file: file.to_owned(), source });
                ConfigError::File { path: self.file.clone().unwrap_or_default(), key, source }
            })?;
        }
        Ok(())
    }

    /// Parses the text of a file.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let read = toml::Deserializer::parse(text).map_err(|error| parse_error(path, text, None, &error))?;
        let file: file::ConfigFile = serde_path_to_error::deserialize(read).map_err(|error| {
            let key = error.path().to_string();
            parse_error(path, text, Some(key), error.inner())
        })?;
        file.config(path)
    }
}

/// Converts a parse error, with its line and, if known, its key.
fn parse_error(path: &Path, text: &str, key: Option<String>, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (path, line) = (path.to_owned(), before.matches('\n').count() + 1);
    // Further lines of the message repeat the source.
    let message = error.message().lines().next().unwrap_or_default().to_owned();
    // The path of the whole document is a dot.
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
            limits: LimitsConfig {
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
    /// How many bytes of output a supervisor keeps of a sandbox; `None` is its default.
    pub(crate) fn output_quota(&self) -> Option<u64> {
        // A supervisor has no value for unlimited.
        self.output.map(|bytes| if bytes == 0 { i64::MAX.unsigned_abs() } else { bytes })
    }
}

// === impl ListenConfig ===

impl ListenConfig {
    /// A listener with default settings.
    pub fn at(grpc: Address) -> Self {
        Self { grpc, mode: 0o600, certificate: None, key: None, client_ca: None, api_key_file: None }
    }
}

/// The given path, or the default one.
fn path(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_owned).or_else(|| default_path(|key| std::env::var_os(key)))
}

/// The default path of the file.
fn default_path(own: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = |key: &str| own(key).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = given("XDG_CONFIG_HOME").or_else(|| Some(given("HOME")?.join(".config")))?;
    Some(directory.join("carrel/config.toml"))
}
