//! The spec of a sandbox: as requested, and as validated.

mod caller_access;
mod check;
mod host;
mod merge;
mod services;
mod source;
#[cfg(test)]
mod tests;
mod tools;
pub mod units;
pub mod yaml;

use std::path::PathBuf;
use std::time::Duration;

use carrel_store::Pairs;
use serde::{Deserialize, Serialize};

pub use self::caller_access::HostIds;
pub use self::host::Host;
pub use self::source::{check_image, open_source};

/// A spec as a client or a file requests it, not validated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecDraft {
    pub image: String,
    /// Directories and files of the host to mount.
    pub mounts: Vec<DraftMount>,
    /// Directories and files of the host to copy in.
    pub copies: Vec<DraftCopy>,
    /// Names of tools.
    pub builtin_tools: Vec<String>,
    /// Services of the sandbox.
    pub services: Vec<DraftService>,
    pub labels: Pairs,
    /// The environment.
    pub envs: Pairs,
    /// The idle timeout.
    pub idle_ttl: Option<DraftDuration>,
    /// Published ports.
    pub ports: Vec<DraftPort>,
    /// The command that runs when the sandbox starts.
    pub command: Vec<String>,
    /// The number of processors.
    pub cpu_limit: String,
    pub memory_limit: String,
    pub disk_limit: String,
    /// Graphics processors.
    pub gpus: String,
    /// When it is resumed without a request.
    pub restart: Option<RestartPolicy>,
}

/// A duration of the wire; it may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftDuration {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds, with the same sign.
    pub nanos: i32,
}

/// A mount as requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftMount {
    /// The path on the host.
    pub source: String,
    /// The path in the sandbox.
    pub target: String,
    /// Whether the sandbox can write to it.
    pub writable: bool,
}

/// A copy as requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftCopy {
    /// The path on the host.
    pub source: String,
    /// The path in the sandbox.
    pub target: String,
    /// Patterns of names that are not copied.
    pub exclude_patterns: Vec<String>,
}

/// A published port as requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftPort {
    /// The port in the sandbox.
    pub container_port: u32,
    pub host_port: u32,
    /// The number of the protocol: 0 is TCP, 1 UDP, 2 SCTP.
    pub protocol: i32,
}

/// A service as requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftService {
    pub name: String,
    pub image: String,
    /// The environment.
    pub envs: Pairs,
    /// The health check.
    pub healthcheck: Option<DraftHealthcheck>,
    /// The command that runs in the sandbox when the service is healthy.
    pub post_start_on_primary: Vec<String>,
    pub command: Vec<String>,
    /// The number of processors.
    pub cpu_limit: String,
    pub memory_limit: String,
    pub disk_limit: String,
}

/// A health check as requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftHealthcheck {
    /// `CMD …`, `CMD-SHELL …` or `NONE`.
    pub test: Vec<String>,
    /// The time between two checks.
    pub interval: Option<DraftDuration>,
    /// The timeout of a check.
    pub timeout: Option<DraftDuration>,
    /// How many failures in a row make the service unhealthy.
    pub retries: u32,
    /// How long failures do not count after the start.
    pub start_period: Option<DraftDuration>,
    /// The time between two checks during that period.
    pub start_interval: Option<DraftDuration>,
}

/// A validated spec, which is stored with the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    /// The image reference.
    pub image: String,
    /// Mounts of the host's paths, including those of tools.
    pub mounts: Vec<Mount>,
    /// Paths of the host to copy in.
    pub copies: Vec<CopySpec>,
    /// Names of tools.
    pub builtin_tools: Vec<String>,
    /// Services of the sandbox.
    pub services: Vec<Service>,
    pub labels: Pairs,
    /// The environment, including that of tools.
    pub envs: Pairs,
    /// The idle timeout: `None` is the default of the daemon, 0 is forever.
    pub idle_ttl: Option<Duration>,
    /// Published ports, all of them TCP.
    pub ports: Vec<Port>,
    /// The command that runs when the sandbox starts; empty if there is none.
    pub command: Vec<String>,
    /// The resource limits.
    pub limits: Limits,
    /// Whether the caller may use only what the operator allows.
    #[serde(rename = "stranger")]
    pub untrusted: bool,
    /// The ids of an untrusted caller on the host.
    pub caller: Option<HostIds>,
    /// Whether it runs although this host cannot enforce a limit.
    pub allow_unenforced_limits: bool,
    /// When it is resumed without a request.
    pub restart: RestartPolicy,
    /// The user of its command and its execs; `None` is that of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The working directory of its command and its execs; `None` is the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// The maximum number of processes; `None` is the default of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

/// When a sandbox is resumed without a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// Never.
    #[default]
    No,
    /// When the host boots after it stopped the sandbox.
    OnBoot,
}

/// A mount of a path of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The path on the host: absolute, and without links when it was checked.
    pub source: PathBuf,
    /// The absolute path in the sandbox.
    pub target: String,
    /// Whether the sandbox can write to it.
    pub writable: bool,
}

/// A copy of a path of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopySpec {
    /// The path on the host: absolute, and without links when it was checked.
    pub source: PathBuf,
    /// The absolute path in the sandbox.
    pub target: String,
    /// Patterns of names that are not copied.
    pub exclude_patterns: Vec<String>,
}

/// A published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The port in the sandbox.
    pub inside: u16,
    /// The port on the loopback interface of the host.
    pub host: u16,
}

/// A service of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    pub name: String,
    pub image: String,
    /// The environment.
    pub envs: Pairs,
    /// The health check.
    pub healthcheck: Option<Healthcheck>,
    /// The command that runs in the sandbox when the service is healthy.
    pub post_start_on_primary: Vec<String>,
    pub command: Vec<String>,
    /// The requested number of processors.
    pub cpu_limit: String,
    /// The requested memory limit.
    pub memory_limit: String,
    /// The requested disk limit.
    pub disk_limit: String,
    /// The resource limits.
    pub limits: Limits,
}

/// The health check of a service. `None` is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Healthcheck {
    /// `CMD …`, `CMD-SHELL …` or `NONE`.
    pub test: Vec<String>,
    /// The time between two checks.
    pub interval: Option<Duration>,
    /// The timeout of a check.
    pub timeout: Option<Duration>,
    /// How many failures in a row make the service unhealthy; 0 is the default.
    pub retries: u32,
    /// How long failures do not count after the start.
    pub start_period: Option<Duration>,
    /// The time between two checks during that period.
    pub start_interval: Option<Duration>,
}

/// Resource limits; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of disk.
    pub disk: Option<u64>,
}

// === impl Spec ===

impl Spec {
    /// The ids with whose rights paths of the host are read; `None` is those of their owner.
    pub fn host_owner(&self) -> Option<HostIds> {
        self.untrusted.then(|| self.caller.unwrap_or(HostIds::UNKNOWN))
    }
}
