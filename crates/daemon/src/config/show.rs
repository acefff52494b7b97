//! Prints the effective configuration as a file that can be parsed again. Secrets are only named by their files.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use carrel_units::TimeSpan;

use super::{Config, ListenConfig, LogConfig, RetentionConfig};

/// A string in TOML quotes.
pub(super) struct QuotedText<'t>(pub(super) &'t str);

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[runtime]")?;
        writeln!(f, "idle_ttl = {}", QuotedText(&TimeSpan(self.idle_ttl).to_string()))?;
        writeln!(f, "cleanup_ttl = {}", QuotedText(&TimeSpan(self.cleanup_ttl).to_string()))?;
        writeln!(f, "grace = {}", QuotedText(&TimeSpan(self.grace).to_string()))?;
        self.log.fmt(f)?;
        writeln!(f, "\n[artifacts]")?;
        path(f, "exec_output_root", self.exec_output_root.as_deref())?;
        writeln!(f, "exec_output_template = {}", QuotedText(&self.exec_output_template))?;
        writeln!(f, "\n[limits]")?;
        number(f, "sandboxes", self.limits.sandboxes)?;
        number(f, "kept_sandboxes", Some(self.limits.kept_sandboxes))?;
        number(f, "user_sandboxes", Some(self.limits.user_sandboxes))?;
        number(f, "kept_specs", Some(self.limits.kept_specs))?;
        number(f, "memory", self.limits.memory)?;
        number(f, "sandbox_memory", self.limits.sandbox_memory)?;
        number(f, "pids", Some(self.limits.pids.into()))?;
        number(f, "host_free", Some(self.limits.host_free))?;
        number(f, "host_free_inodes", self.limits.host_free_inodes)?;
        number(f, "sandbox_disk", Some(self.limits.sandbox_disk))?;
        number(f, "sandbox_inodes", Some(self.limits.sandbox_inodes))?;
        self.retention.fmt(f)?;
        let allowed: Vec<_> = self.allow.iter().map(|one| one.to_string_lossy()).collect();
        writeln!(f, "\n[host]\nallow = {}", quoted_all(allowed.iter().map(AsRef::as_ref)))?;
        self.registries.fmt(f)?;
        self.listen.iter().try_for_each(|listen| listen.fmt(f))
    }
}

impl fmt::Display for LogConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n[log]\nlevel = {}", QuotedText(self.level.name()))?;
        writeln!(f, "format = {}", QuotedText(self.format.name()))?;
        path(f, "file", self.file.as_deref())?;
        writeln!(f, "max_size = {}\nkeep = {}", self.max_size, self.keep)
    }
}

impl fmt::Display for RetentionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { history, output } = self;
        writeln!(f, "\n[retention]")?;
        if let Some(deleted_age) = history.deleted_age {
            age(f, "deleted_age", deleted_age)?;
        }
        number(f, "deleted_count", Some(history.deleted_count))?;
        age(f, "events_age", history.events_age)?;
        number(f, "events_count", Some(history.events_count))?;
        age(f, "execs_age", history.execs_age)?;
        number(f, "execs_count", Some(history.execs_count))?;
        age(f, "logs_age", history.logs_age)?;
        number(f, "output", *output)?;
        age(f, "orphans_age", history.orphans_age)
    }
}

impl fmt::Display for ListenConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n[[listen]]\ngrpc = {}", QuotedText(&self.grpc.to_string()))?;
        writeln!(f, "mode = \"{:04o}\"", self.mode)?;
        path(f, "certificate", self.certificate.as_deref())?;
        path(f, "key", self.key.as_deref())?;
        path(f, "client_ca", self.client_ca.as_deref())?;
        path(f, "api_key_file", self.api_key_file.as_deref())
    }
}

/// A TOML array of strings.
pub(super) fn quoted_all<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    let texts: Vec<String> = texts.map(|text| QuotedText(text).to_string()).collect();
    format!("[{}]", texts.join(", "))
}

pub(super) fn path(f: &mut fmt::Formatter<'_>, key: &str, value: Option<&Path>) -> fmt::Result {
    value.map_or(Ok(()), |value| writeln!(f, "{key} = {}", QuotedText(&value.to_string_lossy())))
}

fn age(f: &mut fmt::Formatter<'_>, key: &str, value: Duration) -> fmt::Result {
    writeln!(f, "{key} = {}", QuotedText(&TimeSpan(value).to_string()))
}

fn number(f: &mut fmt::Formatter<'_>, key: &str, value: Option<u64>) -> fmt::Result {
    value.map_or(Ok(()), |value| writeln!(f, "{key} = {value}"))
}

impl fmt::Display for QuotedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                control if control.is_control() => write!(f, "\\u{:04X}", u32::from(control))?,
                plain => f.write_char(plain)?,
            }
        }
        f.write_char('"')
    }
}
