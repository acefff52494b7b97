//! The file as it is written: unchecked, but of known keys alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_local::LogTemplate;
use serde::Deserialize;

use super::{Config, ConfigError, Limits, Listen, LogLevel, Registries, quantity};
use crate::address::Address;

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    runtime: Runtime,
    artifacts: Artifacts,
    limits: LimitsSaid,
    host: Host,
    registries: Registries,
    listen: Vec<ListenSaid>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Runtime {
    idle_ttl: Option<String>,
    cleanup_ttl: Option<String>,
    log_level: Option<String>,
    grace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Artifacts {
    exec_output_root: Option<PathBuf>,
    exec_output_template: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsSaid {
    sandboxes: Option<u64>,
    memory: Option<Bytes>,
    sandbox_memory: Option<Bytes>,
    pids: Option<u32>,
    host_free: Option<Bytes>,
    host_free_inodes: Option<u64>,
    sandbox_disk: Option<Bytes>,
    sandbox_inodes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Host {
    allow: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListenSaid {
    grpc: String,
    mode: Option<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    api_key_file: Option<PathBuf>,
}

/// A number of bytes, as a number or with a unit.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Bytes {
    Number(u64),
    Text(String),
}

/// The file, and where it is.
struct Checked<'p> {
    path: &'p Path,
}

// === impl File ===

impl File {
    /// What it says, over the defaults.
    pub(super) fn checked(self, path: &Path) -> Result<Config, ConfigError> {
        let (usual, at) = (Config::default(), Checked { path });
        let runtime = self.runtime;
        let level = |name: String| {
            let wanted = "one of error, warn, info, debug, trace";
            LogLevel::from_name(&name).ok_or_else(|| at.value("runtime.log_level", name, wanted))
        };
        let template = self.artifacts.exec_output_template.unwrap_or(usual.exec_output_template);
        LogTemplate::new("/", &template).map_err(|source| ConfigError::Template { path: path.to_owned(), source })?;
        let root = self.artifacts.exec_output_root;
        let root = root.map(|root| at.absolute("artifacts.exec_output_root", root)).transpose()?;
        self.registries.settings().map_err(|source| ConfigError::Mirror { path: path.to_owned(), source })?;
        self.registries.files().try_for_each(|file| at.absolute("registries.ca", file.to_owned()).map(drop))?;
        let limits = self.limits;
        Ok(Config {
            file: None,
            idle_ttl: at.time("runtime.idle_ttl", runtime.idle_ttl, usual.idle_ttl)?,
            cleanup_ttl: at.time("runtime.cleanup_ttl", runtime.cleanup_ttl, usual.cleanup_ttl)?,
            log_level: runtime.log_level.map_or(Ok(usual.log_level), level)?,
            grace: at.time("runtime.grace", runtime.grace, usual.grace)?,
            exec_output_root: root,
            exec_output_template: template,
            limits: Limits {
                sandboxes: limits.sandboxes,
                memory: at.size("limits.memory", limits.memory)?,
                sandbox_memory: at.size("limits.sandbox_memory", limits.sandbox_memory)?,
                pids: limits.pids.unwrap_or(usual.limits.pids),
                host_free: at.size("limits.host_free", limits.host_free)?.unwrap_or(usual.limits.host_free),
                host_free_inodes: limits.host_free_inodes,
                sandbox_disk: at.size("limits.sandbox_disk", limits.sandbox_disk)?.unwrap_or(usual.limits.sandbox_disk),
                sandbox_inodes: limits.sandbox_inodes.unwrap_or(usual.limits.sandbox_inodes),
            },
            allow: self.host.allow.into_iter().map(|one| at.absolute("host.allow", one)).collect::<Result<_, _>>()?,
            registries: self.registries,
            listen: self.listen.into_iter().map(|one| at.listen(one)).collect::<Result<_, _>>()?,
        })
    }
}

// === impl Checked ===

impl Checked<'_> {
    fn value(&self, key: &'static str, value: String, wanted: &'static str) -> ConfigError {
        ConfigError::Value { path: self.path.to_owned(), key, value, wanted }
    }

    fn time(&self, key: &'static str, said: Option<String>, usual: Duration) -> Result<Duration, ConfigError> {
        let Some(text) = said else { return Ok(usual) };
        quantity::time(&text).ok_or_else(|| self.value(key, text, quantity::TIME))
    }

    fn size(&self, key: &'static str, said: Option<Bytes>) -> Result<Option<u64>, ConfigError> {
        match said {
            None => Ok(None),
            Some(Bytes::Number(bytes)) => Ok(Some(bytes)),
            Some(Bytes::Text(text)) => match quantity::size(&text) {
                Some(bytes) => Ok(Some(bytes)),
                None => Err(self.value(key, text, quantity::SIZE)),
            },
        }
    }

    fn absolute(&self, key: &'static str, value: PathBuf) -> Result<PathBuf, ConfigError> {
        if value.is_absolute() {
            Ok(value)
        } else {
            Err(ConfigError::Relative { path: self.path.to_owned(), key, value })
        }
    }

    fn listen(&self, said: ListenSaid) -> Result<Listen, ConfigError> {
        let path = self.path.to_owned();
        let grpc: Address = said.grpc.parse().map_err(|source| ConfigError::Address { path: path.clone(), source })?;
        let mode = match said.mode {
            None => 0o600,
            Some(text) => {
                let bits = u32::from_str_radix(&text, 8).ok().filter(|bits| *bits <= 0o777);
                bits.ok_or_else(|| self.value("listen.mode", text, "permissions such as \"0600\""))?
            }
        };
        let file = |key, said: Option<PathBuf>| said.map(|said| self.absolute(key, said)).transpose();
        let listen = Listen {
            mode,
            certificate: file("listen.certificate", said.certificate)?,
            key: file("listen.key", said.key)?,
            client_ca: file("listen.client_ca", said.client_ca)?,
            api_key_file: file("listen.api_key_file", said.api_key_file)?,
            grpc,
        };
        match problem(&listen) {
            None => Ok(listen),
            Some(problem) => Err(ConfigError::Listen { path, address: listen.grpc, problem }),
        }
    }
}

/// What does not go together.
fn problem(listen: &Listen) -> Option<&'static str> {
    let Listen { grpc, certificate, key, client_ca, api_key_file, .. } = listen;
    match (grpc, certificate, key) {
        (Address::Unix(_), None, None) if client_ca.is_none() && api_key_file.is_none() => None,
        (Address::Unix(_), _, _) => Some("a socket tells callers apart by their users, and takes no keys"),
        (Address::Tcp(_), Some(_), None) => Some("a certificate needs its `key`"),
        (Address::Tcp(_), None, Some(_)) => Some("a key needs its `certificate`"),
        (Address::Tcp(_), None, None) if client_ca.is_some() => Some("`client_ca` needs `certificate` and `key`"),
        (Address::Tcp(address), None, None) if api_key_file.is_some() && !address.ip().is_loopback() => {
            Some("a key that others could read on their way needs `certificate` and `key`")
        }
        (Address::Tcp(_), _, _) if client_ca.is_none() && api_key_file.is_none() => {
            Some("anybody could connect: it needs `api_key_file` or `client_ca`")
        }
        (Address::Tcp(_), _, _) => None,
    }
}
