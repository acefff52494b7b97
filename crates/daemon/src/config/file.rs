//! The TOML file: only known keys, each value validated.

use std::path::Path;
use std::time::Duration;

use carrel_control::Retention;
use serde::Deserialize;

use super::value::{AbsolutePath, BoundedNumber, ByteSize, SocketMode, TemplateText, ValidatedText};
use super::{
    Config, ConfigError, LimitsConfig, ListenConfig, LogConfig, LogFormat, LogLevel, Registries, RetentionConfig,
};
use crate::address::Address;

/// The top level of the file.
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
    idle_ttl: Option<ValidatedText<Duration>>,
    cleanup_ttl: Option<ValidatedText<Duration>>,
    /// The former name of `log.level`.
    log_level: Option<ValidatedText<LogLevel>>,
    grace: Option<ValidatedText<Duration>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogTable {
    level: Option<ValidatedText<LogLevel>>,
    format: Option<ValidatedText<LogFormat>>,
    file: Option<ValidatedText<AbsolutePath>>,
    max_size: Option<ByteSize>,
    keep: Option<BoundedNumber<0, 1000>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ArtifactsTable {
    exec_output_root: Option<ValidatedText<AbsolutePath>>,
    exec_output_template: Option<ValidatedText<TemplateText>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsTable {
    sandboxes: Option<u64>,
    kept_sandboxes: Option<u64>,
    user_sandboxes: Option<u64>,
    kept_specs: Option<ByteSize>,
    memory: Option<ByteSize>,
    sandbox_memory: Option<ByteSize>,
    pids: Option<BoundedNumber<1, { u32::MAX }>>,
    host_free: Option<ByteSize>,
    host_free_inodes: Option<u64>,
    sandbox_disk: Option<ByteSize>,
    sandbox_inodes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RetentionTable {
    deleted_age: Option<ValidatedText<Duration>>,
    deleted_count: Option<u64>,
    events_age: Option<ValidatedText<Duration>>,
    events_count: Option<u64>,
    execs_age: Option<ValidatedText<Duration>>,
    execs_count: Option<u64>,
    logs_age: Option<ValidatedText<Duration>>,
    output: Option<ByteSize>,
    orphans_age: Option<ValidatedText<Duration>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HostTable {
    allow: Vec<ValidatedText<AbsolutePath>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListenTable {
    grpc: ValidatedText<Address>,
    mode: Option<ValidatedText<SocketMode>>,
    certificate: Option<ValidatedText<AbsolutePath>>,
    key: Option<ValidatedText<AbsolutePath>>,
    client_ca: Option<ValidatedText<AbsolutePath>>,
    api_key_file: Option<ValidatedText<AbsolutePath>>,
}

// === impl ConfigFile ===

impl ConfigFile {
    /// The configuration of the file, with defaults.
    pub(super) fn config(self, path: &Path) -> Result<Config, ConfigError> {
        let (defaults, runtime, limits) = (Config::default(), self.runtime, self.limits);
        let template = self.artifacts.exec_output_template;
        Ok(Config {
            file: None,
            idle_ttl: runtime.idle_ttl.map_or(defaults.idle_ttl, |value| value.0),
            cleanup_ttl: runtime.cleanup_ttl.map_or(defaults.cleanup_ttl, |value| value.0),
            grace: runtime.grace.map_or(defaults.grace, |value| value.0),
            log: self.log.config(runtime.log_level),
            exec_output_root: self.artifacts.exec_output_root.map(|value| value.0.0),
            exec_output_template: template.map_or(defaults.exec_output_template, |value| value.0.0),
            limits: limits.limits(defaults.limits),
            retention: self.retention.config(),
            allow: self.host.allow.into_iter().map(|one| one.0.0).collect(),
            registries: self.registries,
            listen: self.listen.into_iter().map(|one| one.listen(path)).collect::<Result<_, _>>()?,
        })
    }
}

// === impl LogTable ===

impl LogTable {
    fn config(self, former: Option<ValidatedText<LogLevel>>) -> LogConfig {
        let defaults = LogConfig::default();
        LogConfig {
            level: self.level.or(former).map_or(defaults.level, |value| value.0),
            format: self.format.map_or(defaults.format, |value| value.0),
            file: self.file.map(|value| value.0.0),
            max_size: self.max_size.map_or(defaults.max_size, |value| value.0),
            keep: self.keep.map_or(defaults.keep, |value| value.0),
        }
    }
}

// === impl LimitsTable ===

impl LimitsTable {
    fn limits(self, defaults: LimitsConfig) -> LimitsConfig {
        let bytes = |value: Option<ByteSize>| value.map(|value| value.0);
        LimitsConfig {
            sandboxes: self.sandboxes,
            kept_sandboxes: self.kept_sandboxes.unwrap_or(defaults.kept_sandboxes),
            user_sandboxes: self.user_sandboxes.unwrap_or(defaults.user_sandboxes),
            kept_specs: bytes(self.kept_specs).unwrap_or(defaults.kept_specs),
            memory: bytes(self.memory),
            sandbox_memory: bytes(self.sandbox_memory),
            pids: self.pids.map_or(defaults.pids, |value| value.0),
            host_free: bytes(self.host_free).unwrap_or(defaults.host_free),
            host_free_inodes: self.host_free_inodes,
            sandbox_disk: bytes(self.sandbox_disk).unwrap_or(defaults.sandbox_disk),
            sandbox_inodes: self.sandbox_inodes.unwrap_or(defaults.sandbox_inodes),
        }
    }
}

// === impl RetentionTable ===

impl RetentionTable {
    fn config(self) -> RetentionConfig {
        let defaults = RetentionConfig::default();
        let Retention {
            deleted_count, events_age, events_count, execs_age, execs_count, logs_age, orphans_age, ..
        } = defaults.history;
        let age = |value: Option<ValidatedText<Duration>>, default: Duration| value.map_or(default, |value| value.0);
        RetentionConfig {
            history: Retention {
                deleted_age: self.deleted_age.map(|value| value.0),
                deleted_count: self.deleted_count.unwrap_or(deleted_count),
                events_age: age(self.events_age, events_age),
                events_count: self.events_count.unwrap_or(events_count),
                execs_age: age(self.execs_age, execs_age),
                execs_count: self.execs_count.unwrap_or(execs_count),
                logs_age: age(self.logs_age, logs_age),
                orphans_age: age(self.orphans_age, orphans_age),
            },
            output: self.output.map(|value| value.0),
        }
    }
}

// === impl ListenTable ===

impl ListenTable {
    fn listen(self, path: &Path) -> Result<ListenConfig, ConfigError> {
        let file = |value: Option<ValidatedText<AbsolutePath>>| value.map(|value| value.0.0);
        let listen = ListenConfig {
            grpc: self.grpc.0,
            mode: self.mode.map_or(0o600, |value| value.0.0),
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

/// Contradicting keys of a listener: the key and the problem.
fn problem(listen: &ListenConfig) -> Option<(&'static str, &'static str)> {
    let ListenConfig { grpc, certificate, key, client_ca, api_key_file, .. } = listen;
    let guard = ("listen.api_key_file", "clients would not be authenticated: it needs `api_key_file` or `client_ca`");
    match (grpc, certificate, key) {
        (Address::Unix(_), None, None) if client_ca.is_none() && api_key_file.is_none() => None,
        (Address::Unix(_), _, _) => {
            let set = [
                ("listen.api_key_file", api_key_file),
                ("listen.client_ca", client_ca),
                ("listen.certificate", certificate),
            ];
            let key = set.into_iter().find(|(_, value)| value.is_some()).map_or("listen.key", |(key, _)| key);
            Some((key, "a Unix socket authenticates callers by their uid, and takes no keys"))
        }
        (Address::Tcp(_), Some(_), None) => Some(("listen.key", "a certificate needs its `key`")),
        (Address::Tcp(_), None, Some(_)) => Some(("listen.certificate", "a key needs its `certificate`")),
        (Address::Tcp(_), None, None) if client_ca.is_some() => {
            Some(("listen.client_ca", "`client_ca` needs `certificate` and `key`"))
        }
        (Address::Tcp(address), None, None) if api_key_file.is_some() && !address.ip().is_loopback() => {
            let words = "an API key over the network needs TLS: `certificate` and `key`";
            Some(("listen.certificate", words))
        }
        (Address::Tcp(_), _, _) if client_ca.is_none() && api_key_file.is_none() => Some(guard),
        (Address::Tcp(_), _, _) => None,
    }
}
