//! What a sandbox is made from: as somebody asks for it, and as it was found to be right.

mod check;
mod host;
mod identity;
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

pub use self::host::Host;
pub use self::identity::HostIds;
pub use self::source::{check_image, open_source};

/// As it is asked for: whatever a client or a file says, unchecked. A request lies over a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The image.
    pub image: String,
    /// Trees of the host.
    pub mounts: Vec<DraftMount>,
    /// What is copied in.
    pub copies: Vec<DraftCopy>,
    /// Names of tools.
    pub builtin_tools: Vec<String>,
    /// Services beside it.
    pub services: Vec<DraftService>,
    /// Labels.
    pub labels: Pairs,
    /// Its environment.
    pub envs: Pairs,
    /// How long it may be idle.
    pub idle_ttl: Option<DraftDuration>,
    /// Its ports.
    pub ports: Vec<DraftPort>,
    /// What it runs by itself.
    pub command: Vec<String>,
    /// Processors.
    pub cpu_limit: String,
    /// Memory.
    pub memory_limit: String,
    /// Disk.
    pub disk_limit: String,
    /// Graphics processors.
    pub gpus: String,
    /// When it is resumed without a request.
    pub restart: Option<RestartPolicy>,
}

/// A duration as the wire has it; it may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftDuration {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, with the same sign.
    pub nanos: i32,
}

/// A tree of the host, as asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftMount {
    /// On the host.
    pub source: String,
    /// Inside.
    pub target: String,
    /// Whether it can be written.
    pub writable: bool,
}

/// A copy, as asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftCopy {
    /// On the host.
    pub source: String,
    /// Inside.
    pub target: String,
    /// What is left out.
    pub exclude_patterns: Vec<String>,
}

/// A port, as asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftPort {
    /// Inside.
    pub container_port: u32,
    /// On the host.
    pub host_port: u32,
    /// The number of the protocol: 0 is TCP, 1 UDP, 2 SCTP.
    pub protocol: i32,
}

/// A service, as asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftService {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// Its environment.
    pub envs: Pairs,
    /// How it is seen to be well.
    pub healthcheck: Option<DraftHealthcheck>,
    /// What runs in the sandbox when it is.
    pub post_start_on_primary: Vec<String>,
    /// What it runs.
    pub command: Vec<String>,
    /// Processors.
    pub cpu_limit: String,
    /// Memory.
    pub memory_limit: String,
    /// Disk.
    pub disk_limit: String,
}

/// A check of a service, as asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftHealthcheck {
    /// `CMD …`, `CMD-SHELL …` or `NONE`.
    pub test: Vec<String>,
    /// From one check to the next.
    pub interval: Option<DraftDuration>,
    /// How long a check may take.
    pub timeout: Option<DraftDuration>,
    /// How many may fail in a row.
    pub retries: u32,
    /// How long failures do not count.
    pub start_period: Option<DraftDuration>,
    /// From one check to the next in that time.
    pub start_interval: Option<DraftDuration>,
}

/// As it was found to be right; kept with the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    /// The image, as named.
    pub image: String,
    /// Trees of the host, those of the tools among them.
    pub mounts: Vec<Mount>,
    /// What is copied in.
    pub copies: Vec<Copy>,
    /// Names of tools.
    pub builtin_tools: Vec<String>,
    /// Services beside it.
    pub services: Vec<Service>,
    /// Labels.
    pub labels: Pairs,
    /// Its environment, that of the tools included.
    pub envs: Pairs,
    /// How long it may be idle: none is what the daemon says, 0 for ever.
    pub idle_ttl: Option<Duration>,
    /// Its ports; TCP all of them.
    pub ports: Vec<Port>,
    /// What it runs by itself; empty if nothing.
    pub command: Vec<String>,
    /// Its limits.
    pub limits: Limits,
    /// Whether somebody asked for it who may name only what the operator allows.
    pub stranger: bool,
    /// Who that is on the host.
    pub caller: Option<HostIds>,
    /// Whether it runs, now and whenever it is resumed, although this host cannot enforce a limit.
    pub allow_unenforced_limits: bool,
    /// When it is resumed without a request.
    pub restart: RestartPolicy,
    /// Who its command and its execs run as; none is who the image says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where its command and its execs start; none is the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// How many processes it may have; none is what the provider says.
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

/// A tree of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// On the host: absolute, and no link when it was checked.
    pub source: PathBuf,
    /// Inside, absolute.
    pub target: String,
    /// Whether it can be written.
    pub writable: bool,
}

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// On the host: absolute, and no link when it was checked.
    pub source: PathBuf,
    /// Inside, absolute.
    pub target: String,
    /// What is left out.
    pub exclude_patterns: Vec<String>,
}

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Inside.
    pub inside: u16,
    /// On the loopback interface of the host.
    pub host: u16,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// Its environment.
    pub envs: Pairs,
    /// How it is seen to be well.
    pub healthcheck: Option<Healthcheck>,
    /// What runs in the sandbox when it is.
    pub post_start_on_primary: Vec<String>,
    /// What it runs.
    pub command: Vec<String>,
    /// Its limits, as asked for.
    pub cpu_limit: String,
    /// Its limits, as asked for.
    pub memory_limit: String,
    /// Its limits, as asked for.
    pub disk_limit: String,
    /// Its limits.
    pub limits: Limits,
}

/// A check of a service. What was not said is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Healthcheck {
    /// `CMD …`, `CMD-SHELL …` or `NONE`.
    pub test: Vec<String>,
    /// From one check to the next.
    pub interval: Option<Duration>,
    /// How long a check may take.
    pub timeout: Option<Duration>,
    /// How many may fail in a row; 0 is the default.
    pub retries: u32,
    /// How long failures do not count.
    pub start_period: Option<Duration>,
    /// From one check to the next in that time.
    pub start_interval: Option<Duration>,
}

/// Limits; none is no limit of its own.
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
    /// On whose behalf trees of the host are read, if not on behalf of whoever owns them.
    pub fn host_owner(&self) -> Option<HostIds> {
        self.stranger.then(|| self.caller.unwrap_or(HostIds::UNKNOWN))
    }
}
