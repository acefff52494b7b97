//! A draft as a file has it: the same keys as a request, strictly.
//!
//! A file is written by whoever may ask for a sandbox, so reading it costs no more than its length allows.

mod measured;

use std::collections::BTreeMap;

use carrel_store::Pairs;
use serde::Deserialize;

use super::{
    Draft, DraftCopy, DraftDuration, DraftHealthcheck, DraftMount, DraftPort, DraftService, RestartPolicy, units,
};
use crate::Refusal;

/// The longest file.
const LONGEST: usize = 256 << 10;

/// Reads a draft.
pub fn parse(bytes: &[u8]) -> Result<Draft, Refusal> {
    if bytes.len() > LONGEST {
        return Err(refused(format!("is longer than {} KiB", LONGEST >> 10)));
    }
    measured::measure(bytes)
        .and_then(|()| serde_norway::from_slice::<Option<File>>(bytes))
        .map_err(|error| refused(error.to_string()))
        .and_then(|file| file.unwrap_or_default().draft())
}

fn refused(message: String) -> Refusal {
    // A file's own text is in there, and an answer has to stay small.
    Refusal::invalid("config_yaml", message.chars().take(500).collect::<String>())
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    image: Option<String>,
    mounts: Option<Vec<Mount>>,
    copies: Option<Vec<Copy>>,
    ports: Option<Vec<Port>>,
    builtin_tools: Option<Texts>,
    companion_containers: Option<BTreeMap<String, Option<Service>>>,
    labels: Option<TextPairs>,
    envs: Option<TextPairs>,
    idle_ttl: Option<String>,
    command: Option<Texts>,
    cpu_limit: Option<String>,
    memory_limit: Option<String>,
    disk_limit: Option<String>,
    gpus: Option<String>,
    restart: Option<RestartPolicy>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Mount {
    source: Option<String>,
    target: Option<String>,
    writable: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Copy {
    source: Option<String>,
    target: Option<String>,
    exclude_patterns: Option<Texts>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Port {
    container_port: Option<u32>,
    host_port: Option<u32>,
    protocol: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Service {
    image: Option<String>,
    envs: Option<TextPairs>,
    healthcheck: Option<Healthcheck>,
    post_start_on_primary: Option<Texts>,
    command: Option<Texts>,
    cpu_limit: Option<String>,
    memory_limit: Option<String>,
    disk_limit: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Healthcheck {
    test: Option<Texts>,
    interval: Option<String>,
    timeout: Option<String>,
    retries: Option<u32>,
    start_period: Option<String>,
    start_interval: Option<String>,
}

/// Where a file says nothing, or `~`, the text is empty.
type Texts = Vec<Option<String>>;
type TextPairs = BTreeMap<String, Option<String>>;

// === impl File ===

impl File {
    fn draft(self) -> Result<Draft, Refusal> {
        let services = self.companion_containers.unwrap_or_default().into_iter();
        Ok(Draft {
            image: self.image.unwrap_or_default(),
            mounts: self.mounts.unwrap_or_default().into_iter().map(Mount::draft).collect(),
            copies: self.copies.unwrap_or_default().into_iter().map(Copy::draft).collect(),
            builtin_tools: texts(self.builtin_tools),
            services: services
                .map(|(name, service)| service.unwrap_or_default().draft(name))
                .collect::<Result<_, _>>()?,
            labels: pairs(self.labels),
            envs: pairs(self.envs),
            idle_ttl: span("idle_ttl", self.idle_ttl)?,
            ports: self.ports.unwrap_or_default().into_iter().map(Port::draft).collect::<Result<_, _>>()?,
            command: command("command", self.command)?,
            cpu_limit: self.cpu_limit.unwrap_or_default(),
            memory_limit: self.memory_limit.unwrap_or_default(),
            disk_limit: self.disk_limit.unwrap_or_default(),
            gpus: self.gpus.unwrap_or_default(),
            restart: self.restart,
        })
    }
}

impl Mount {
    fn draft(self) -> DraftMount {
        DraftMount {
            source: self.source.unwrap_or_default(),
            target: self.target.unwrap_or_default(),
            writable: self.writable.unwrap_or_default(),
        }
    }
}

impl Copy {
    fn draft(self) -> DraftCopy {
        DraftCopy {
            source: self.source.unwrap_or_default(),
            target: self.target.unwrap_or_default(),
            exclude_patterns: texts(self.exclude_patterns),
        }
    }
}

impl Port {
    fn draft(self) -> Result<DraftPort, Refusal> {
        let protocol = match self.protocol.as_deref().unwrap_or("tcp") {
            "" | "tcp" => 0,
            "udp" => 1,
            "sctp" => 2,
            other => {
                let other = units::shown(other);
                return Err(refused(format!("ports: {other} is no protocol: give \"tcp\", \"udp\" or \"sctp\"")));
            }
        };
        Ok(DraftPort {
            container_port: self.container_port.unwrap_or_default(),
            host_port: self.host_port.unwrap_or_default(),
            protocol,
        })
    }
}

impl Service {
    fn draft(self, name: String) -> Result<DraftService, Refusal> {
        let key = format!("companion_containers.{}", units::shown(&name));
        let healthcheck = self.healthcheck.map(|check| check.draft(&format!("{key}.healthcheck")));
        Ok(DraftService {
            command: command(&format!("{key}.command"), self.command)?,
            name,
            image: self.image.unwrap_or_default(),
            envs: pairs(self.envs),
            healthcheck: healthcheck.transpose()?,
            post_start_on_primary: texts(self.post_start_on_primary),
            cpu_limit: self.cpu_limit.unwrap_or_default(),
            memory_limit: self.memory_limit.unwrap_or_default(),
            disk_limit: self.disk_limit.unwrap_or_default(),
        })
    }
}

impl Healthcheck {
    fn draft(self, key: &str) -> Result<DraftHealthcheck, Refusal> {
        let span = |name: &str, text| span(&format!("{key}.{name}"), text);
        Ok(DraftHealthcheck {
            test: texts(self.test),
            interval: span("interval", self.interval)?,
            timeout: span("timeout", self.timeout)?,
            retries: self.retries.unwrap_or_default(),
            start_period: span("start_period", self.start_period)?,
            start_interval: span("start_interval", self.start_interval)?,
        })
    }
}

fn texts(texts: Option<Texts>) -> Vec<String> {
    texts.into_iter().flatten().map(Option::unwrap_or_default).collect()
}

fn pairs(pairs: Option<TextPairs>) -> Pairs {
    pairs.into_iter().flatten().map(|(key, value)| (key, value.unwrap_or_default())).collect()
}

fn span(key: &str, text: Option<String>) -> Result<Option<DraftDuration>, Refusal> {
    text.map(|text| units::duration(&text)).transpose().map_err(|bad| refused(format!("{key}: {bad}")))
}

/// A command that is there says something: it would otherwise not be seen to replace nothing.
fn command(key: &str, given: Option<Texts>) -> Result<Vec<String>, Refusal> {
    let there = given.is_some();
    let words = texts(given);
    if there && words.is_empty() {
        return Err(refused(format!("{key}: is empty; leave it out, or give a program")));
    }
    match words.iter().position(String::is_empty) {
        Some(empty) => Err(refused(format!("{key}[{empty}]: is empty"))),
        None => Ok(words),
    }
}
