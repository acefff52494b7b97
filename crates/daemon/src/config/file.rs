//! The file as it is written: known keys alone, each value checked.

use std::path::Path;
use std::time::Duration;

use carrel_control::Retention;
use serde::Deserialize;

use super::value::{AbsolutePath, Bounded, Bytes, Checked, SocketMode, TemplateText};
use super::{Config, ConfigError, Limits, Listen, LogConfig, LogFormat, LogLevel, Registries, RetentionConfig};
use crate::address::Address;

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ConfigFile {
    runtime: RuntimeTable,
    log: LogTable,
    artifacts: ArtifactsTable,
    limits: LimitsTable,
    retention: RetentionTable,
    host: HostTable,
    registries: Registries,
    listen: Vec<ListenTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RuntimeTable {
    idle_ttl: Option<Checked<Duration>>,
    cleanup_ttl: Option<Checked<Duration>>,
    /// Before there was a table for the log.
    log_level: Option<Checked<LogLevel>>,
    grace: Option<Checked<Duration>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogTable {
    level: Option<Checked<LogLevel>>,
    format: Option<Checked<LogFormat>>,
    file: Option<Checked<AbsolutePath>>,
    max_size: Option<Bytes>,
    keep: Option<Bounded<0, 1000>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ArtifactsTable {
    exec_output_root: Option<Checked<AbsolutePath>>,
    exec_output_template: Option<Checked<TemplateText>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsTable {
    sandboxes: Option<u64>,
    kept_sandboxes: Option<u64>,
    user_sandboxes: Option<u64>,
    kept_specs: Option<Bytes>,
    memory: Option<Bytes>,
    sandbox_memory: Option<Bytes>,
    pids: Option<Bounded<1, { u32::MAX }>>,
    host_free: Option<Bytes>,
    host_free_inodes: Option<u64>,
    sandbox_disk: Option<Bytes>,
    sandbox_inodes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RetentionTable {
    deleted_age: Option<Checked<Duration>>,
    deleted_count: Option<u64>,
    events_age: Option<Checked<Duration>>,
    events_count: Option<u64>,
    execs_age: Option<Checked<Duration>>,
    execs_count: Option<u64>,
    logs_age: Option<Checked<Duration>>,
    output: Option<Bytes>,
    orphans_age: Option<Checked<Duration>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HostTable {
    allow: Vec<Checked<AbsolutePath>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListenTable {
    grpc: Checked<Address>,
    mode: Option<Checked<SocketMode>>,
    certificate: Option<Checked<AbsolutePath>>,
    key: Option<Checked<AbsolutePath>>,
    client_ca: Option<Checked<AbsolutePath>>,
    api_key_file: Option<Checked<AbsolutePath>>,
}

// === impl ConfigFile ===

impl ConfigFile {
    /// What it says, over the defaults.
    pub(super) fn config(self, path: &Path) -> Result<Config, ConfigError> {
        let (usual, runtime, limits) = (Config::default(), self.runtime, self.limits);
        let template = self.artifacts.exec_output_template;
        Ok(Config {
            file: None,
            idle_ttl: runtime.idle_ttl.map_or(usual.idle_ttl, |said| said.0),
            cleanup_ttl: runtime.cleanup_ttl.map_or(usual.cleanup_ttl, |said| said.0),
            grace: runtime.grace.map_or(usual.grace, |said| said.0),
            log: self.log.config(runtime.log_level),
            exec_output_root: self.artifacts.exec_output_root.map(|said| said.0.0),
            exec_output_template: template.map_or(usual.exec_output_template, |said| said.0.0),
            limits: limits.limits(usual.limits),
            retention: self.retention.config(),
            allow: self.host.allow.into_iter().map(|one| one.0.0).collect(),
            registries: self.registries,
            listen: self.listen.into_iter().map(|one| one.listen(path)).collect::<Result<_, _>>()?,
        })
    }
}

// === impl LogTable ===

impl LogTable {
    fn config(self, former: Option<Checked<LogLevel>>) -> LogConfig {
        let usual = LogConfig::default();
        LogConfig {
            level: self.level.or(former).map_or(usual.level, |said| said.0),
            format: self.format.map_or(usual.format, |said| said.0),
            file: self.file.map(|said| said.0.0),
            max_size: self.max_size.map_or(usual.max_size, |said| said.0),
            keep: self.keep.map_or(usual.keep, |said| said.0),
        }
    }
}

// === impl LimitsTable ===

impl LimitsTable {
    fn limits(self, usual: Limits) -> Limits {
        let bytes = |said: Option<Bytes>| said.map(|said| said.0);
        Limits {
            sandboxes: self.sandboxes,
            kept_sandboxes: self.kept_sandboxes.unwrap_or(usual.kept_sandboxes),
            user_sandboxes: self.user_sandboxes.unwrap_or(usual.user_sandboxes),
            kept_specs: bytes(self.kept_specs).unwrap_or(usual.kept_specs),
            memory: bytes(self.memory),
            sandbox_memory: bytes(self.sandbox_memory),
            pids: self.pids.map_or(usual.pids, |said| said.0),
            host_free: bytes(self.host_free).unwrap_or(usual.host_free),
            host_free_inodes: self.host_free_inodes,
            sandbox_disk: bytes(self.sandbox_disk).unwrap_or(usual.sandbox_disk),
            sandbox_inodes: self.sandbox_inodes.unwrap_or(usual.sandbox_inodes),
        }
    }
}

// === impl RetentionTable ===

impl RetentionTable {
    fn config(self) -> RetentionConfig {
        let usual = RetentionConfig::default();
        let Retention {
            deleted_count, events_age, events_count, execs_age, execs_count, logs_age, orphans_age, ..
        } = usual.history;
        let age = |said: Option<Checked<Duration>>, usual: Duration| said.map_or(usual, |said| said.0);
        RetentionConfig {
            history: Retention {
                deleted_age: self.deleted_age.map(|said| said.0),
                deleted_count: self.deleted_count.unwrap_or(deleted_count),
                events_age: age(self.events_age, events_age),
                events_count: self.events_count.unwrap_or(events_count),
                execs_age: age(self.execs_age, execs_age),
                execs_count: self.execs_count.unwrap_or(execs_count),
                logs_age: age(self.logs_age, logs_age),
                orphans_age: age(self.orphans_age, orphans_age),
            },
            output: self.output.map(|said| said.0),
        }
    }
}

// === impl ListenTable ===

impl ListenTable {
    fn listen(self, path: &Path) -> Result<Listen, ConfigError> {
        let file = |said: Option<Checked<AbsolutePath>>| said.map(|said| said.0.0);
        let listen = Listen {
            grpc: self.grpc.0,
            mode: self.mode.map_or(0o600, |said| said.0.0),
            certificate: file(self.certificate),
            key: file(self.key),
            client_ca: file(self.client_ca),
            api_key_file: file(self.api_key_file),
        };
        match problem(&listen) {
            None => Ok(listen),
            Some((key, problem)) => {
                Err(ConfigError::Listen { path: path.to_owned(), key, address: listen.grpc, problem })
            }
        }
    }
}

/// What does not go together, and the key that it is about.
fn problem(listen: &Listen) -> Option<(&'static str, &'static str)> {
    let Listen { grpc, certificate, key, client_ca, api_key_file, .. } = listen;
    let guard = ("listen.api_key_file", "anybody could connect: it needs `api_key_file` or `client_ca`");
    match (grpc, certificate, key) {
        (Address::Unix(_), None, None) if client_ca.is_none() && api_key_file.is_none() => None,
        (Address::Unix(_), _, _) => {
            let set = [
                ("listen.api_key_file", api_key_file),
                ("listen.client_ca", client_ca),
                ("listen.certificate", certificate),
            ];
            let key = set.into_iter().find(|(_, value)| value.is_some()).map_or("listen.key", |(key, _)| key);
            Some((key, "a socket tells callers apart by their users, and takes no keys"))
        }
        (Address::Tcp(_), Some(_), None) => Some(("listen.key", "a certificate needs its `key`")),
        (Address::Tcp(_), None, Some(_)) => Some(("listen.certificate", "a key needs its `certificate`")),
        (Address::Tcp(_), None, None) if client_ca.is_some() => {
            Some(("listen.client_ca", "`client_ca` needs `certificate` and `key`"))
        }
        (Address::Tcp(address), None, None) if api_key_file.is_some() && !address.ip().is_loopback() => {
            let words = "a key that others could read on their way needs `certificate` and `key`";
            Some(("listen.certificate", words))
        }
        (Address::Tcp(_), _, _) if client_ca.is_none() && api_key_file.is_none() => Some(guard),
        (Address::Tcp(_), _, _) => None,
    }
}
