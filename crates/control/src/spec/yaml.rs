//! Parses a draft in YAML. The keys are those of a request; unknown keys are refused.
//!
//! Any caller may send a file, so the cost of parsing is bounded by its length.

mod budget;

use std::collections::BTreeMap;

use carrel_store::Pairs;
use serde::Deserialize;

use super::{
    DraftCopy, DraftDuration, DraftHealthcheck, DraftMount, DraftPort, DraftService, RestartPolicy, SpecDraft, units,
};
use crate::Refusal;

/// The maximum size of a file.
const MAX_BYTES: usize = 256 << 10;

pub fn parse(bytes: &[u8]) -> Result<SpecDraft, Refusal> {
    if bytes.len() > MAX_BYTES {
        return Err(refused(format!("is longer than {} KiB", MAX_BYTES >> 10)));
    }
    budget::check(bytes)
        .and_then(|()| serde_norway::from_slice::<Option<YamlSpec>>(bytes))
        .map_err(|error| refused(error.to_string()))
        .and_then(|file| file.unwrap_or_default().draft())
}

fn refused(message: String) -> Refusal {
    // The message contains text of the file, so it is truncated.
    Refusal::invalid("config_yaml", message.chars().take(500).collect::<String>())
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map")]
struct YamlSpec {
    image: Option<String>,
    mounts: Option<Vec<YamlMount>>,
    copies: Option<Vec<YamlCopy>>,
    ports: Option<Vec<YamlPort>>,
    builtin_tools: Option<Texts>,
    companion_containers: Option<BTreeMap<String, Option<YamlService>>>,
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
struct YamlMount {
    source: Option<String>,
    target: Option<String>,
    writable: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct YamlCopy {
    source: Option<String>,
    target: Option<String>,
    exclude_patterns: Option<Texts>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct YamlPort {
    container_port: Option<u32>,
    host_port: Option<u32>,
    protocol: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct YamlService {
    image: Option<String>,
    envs: Option<TextPairs>,
    healthcheck: Option<YamlHealthcheck>,
    post_start_on_primary: Option<Texts>,
    command: Option<Texts>,
    cpu_limit: Option<String>,
    memory_limit: Option<String>,
    disk_limit: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct YamlHealthcheck {
    test: Option<Texts>,
    interval: Option<String>,
    timeout: Option<String>,
    retries: Option<u32>,
    start_period: Option<String>,
    start_interval: Option<String>,
}

/// A missing value or `~` is an empty text.
type Texts = Vec<Option<String>>;
type TextPairs = BTreeMap<String, Option<String>>;

// === impl YamlSpec ===

impl YamlSpec {
    fn draft(self) -> Result<SpecDraft, Refusal> {
        let services = self.companion_containers.unwrap_or_default().into_iter();
        Ok(SpecDraft {
            image: self.image.unwrap_or_default(),
            mounts: self.mounts.unwrap_or_default().into_iter().map(YamlMount::draft).collect(),
            copies: self.copies.unwrap_or_default().into_iter().map(YamlCopy::draft).collect(),
            builtin_tools: texts(self.builtin_tools),
            services: services
                .map(|(name, service)| service.unwrap_or_default().draft(name))
                .collect::<Result<_, _>>()?,
            labels: pairs(self.labels),
            envs: pairs(self.envs),
            idle_ttl: duration("idle_ttl", self.idle_ttl)?,
            ports: self.ports.unwrap_or_default().into_iter().map(YamlPort::draft).collect::<Result<_, _>>()?,
            command: command("command", self.command)?,
            cpu_limit: self.cpu_limit.unwrap_or_default(),
            memory_limit: self.memory_limit.unwrap_or_default(),
            disk_limit: self.disk_limit.unwrap_or_default(),
            gpus: self.gpus.unwrap_or_default(),
            restart: self.restart,
        })
    }
}

impl YamlMount {
    fn draft(self) -> DraftMount {
        DraftMount {
            source: self.source.unwrap_or_default(),
            target: self.target.unwrap_or_default(),
            writable: self.writable.unwrap_or_default(),
        }
    }
}

impl YamlCopy {
    fn draft(self) -> DraftCopy {
        DraftCopy {
            source: self.source.unwrap_or_default(),
            target: self.target.unwrap_or_default(),
            exclude_patterns: texts(self.exclude_patterns),
        }
    }
}

impl YamlPort {
    fn draft(self) -> Result<DraftPort, Refusal> {
        let protocol = match self.protocol.as_deref().unwrap_or("tcp") {
            "" | "tcp" => 0,
            "udp" => 1,
            "sctp" => 2,
            other => {
                let other = units::quoted(other);
                return Err(refused(format!("ports: {other} is not a protocol; use \"tcp\", \"udp\" or \"sctp\"")));
            }
        };
        Ok(DraftPort {
            container_port: self.container_port.unwrap_or_default(),
            host_port: self.host_port.unwrap_or_default(),
            protocol,
        })
    }
}

impl YamlService {
    fn draft(self, name: String) -> Result<DraftService, Refusal> {
        let key = format!("companion_containers.{}", units::quoted(&name));
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

impl YamlHealthcheck {
    fn draft(self, key: &str) -> Result<DraftHealthcheck, Refusal> {
        let duration = |name: &str, text| duration(&format!("{key}.{name}"), text);
        Ok(DraftHealthcheck {
            test: texts(self.test),
            interval: duration("interval", self.interval)?,
            timeout: duration("timeout", self.timeout)?,
            retries: self.retries.unwrap_or_default(),
            start_period: duration("start_period", self.start_period)?,
            start_interval: duration("start_interval", self.start_interval)?,
        })
    }
}

fn texts(texts: Option<Texts>) -> Vec<String> {
    texts.into_iter().flatten().map(Option::unwrap_or_default).collect()
}

fn pairs(pairs: Option<TextPairs>) -> Pairs {
    pairs.into_iter().flatten().map(|(key, value)| (key, value.unwrap_or_default())).collect()
}

fn duration(key: &str, text: Option<String>) -> Result<Option<DraftDuration>, Refusal> {
    text.map(|text| units::duration(&text)).transpose().map_err(|bad| refused(format!("{key}: {bad}")))
}

/// A command must not be an empty list, because that would look like none and not override the base.
fn command(key: &str, given: Option<Texts>) -> Result<Vec<String>, Refusal> {
    let is_given = given.is_some();
    let words = texts(given);
    if is_given && words.is_empty() {
        return Err(refused(format!("{key}: is empty; leave it out, or give a command")));
    }
    match words.iter().position(String::is_empty) {
        Some(empty) => Err(refused(format!("{key}[{empty}]: is empty"))),
        None => Ok(words),
    }
}
