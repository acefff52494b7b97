//! Reload of the configuration on `SIGHUP`.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use carrel_control::Control;
use carrel_local::LocalProvider;
use tokio::signal::unix::Signal;

use crate::config::{Config, ConfigError, LogConfig};
use crate::error::ServeError;
use crate::listen::ListenPlan;
use crate::log;
use crate::notify::ServiceManager;
use crate::serve::{control_settings, provider_settings};

/// Everything that a reload updates.
pub(crate) struct Reloader {
    /// The path of the configuration file from the command line.
    pub(crate) given: Option<PathBuf>,
    pub(crate) home: PathBuf,
    /// The log file of a daemon that a command started.
    pub(crate) own_log: Option<PathBuf>,
    pub(crate) plan: ListenPlan,
    pub(crate) control: Control,
    pub(crate) local: LocalProvider,
    /// The effective configuration.
    pub(crate) running: Mutex<Config>,
}

/// The keys that differ between two configurations.
#[derive(Debug, Default, PartialEq, Eq)]
struct ChangedKeys {
    /// Keys that take effect at once.
    applied: Vec<&'static str>,
    /// Keys that need a restart.
    fixed: Vec<&'static str>,
}

/// Reloads on every signal.
pub(crate) async fn reload_on(mut hangup: Signal, reload: std::sync::Arc<Reloader>) {
    let manager = ServiceManager::find();
    while hangup.recv().await.is_some() {
        manager.notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_usec()));
        let reload = std::sync::Arc::clone(&reload);
        // Reading files may block, and must not delay the signals that stop the daemon.
        match tokio::task::spawn_blocking(move || reload.run()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let (code, key, hint) = (error.code(), error.key(), error.hint());
                tracing::error!(
                    code,
                    key,
                    %error,
                    hint,
                    "the configuration was not reloaded: the former one stays in effect"
                );
            }
            Err(error) => tracing::error!(%error, "the configuration was not reloaded"),
        }
        manager.notify("READY=1");
    }
}

fn monotonic_usec() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000
}

// === impl Reloader ===

impl Reloader {
    /// Reloads the configuration as a whole or not at all. The log file is reopened in both cases, because log rotation
    /// waits for that.
    pub(crate) fn run(&self) -> Result<(), ServeError> {
        self.apply().inspect_err(|_| {
            let log = self.running.lock().unwrap_or_else(PoisonError::into_inner).log.clone();
            if let Err(error) = self.reopen_log(&log, None) {
                tracing::error!(%error, "the log file cannot be opened again: lines go to the former one");
            }
        })
    }

    fn apply(&self) -> Result<(), ServeError> {
        let new = Config::load(self.given.as_deref())?;
        new.check_files()?;
        let secrets = self.plan.secrets(&new)?;
        let settings = provider_settings(&self.home, &new)?;
        self.reopen_log(&new.log, new.file.as_deref())?;
        self.plan.replace(secrets);
        self.local.reload(settings);
        self.control.reload(control_settings(&new));
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let ChangedKeys { applied, fixed } = ChangedKeys::between(&running, &new);
        tracing::info!(config = new.file_description(), changed = applied.join(" "), "configuration reloaded");
        if !fixed.is_empty() {
            tracing::warn!(keys = fixed.join(" "), "restart the daemon to apply these keys: systemctl restart carrel");
        }
        *running = new.with_fixed_of(&running);
        Ok(())
    }

    fn reopen_log(&self, config: &LogConfig, file: Option<&Path>) -> Result<(), ConfigError> {
        let target = config.file.as_deref().or(self.own_log.as_deref());
        // The log file of a moved home moved with it, and is still open.
        if target.is_some_and(|target| target.starts_with(&self.home)) && self.local.check_home().is_err() {
            return Ok(());
        }
        log::reconfigure(config, file, self.own_log.as_deref())
    }
}

// === impl ChangedKeys ===

impl ChangedKeys {
    fn between(old: &Config, new: &Config) -> Self {
        let (before, after) = (&old.limits, &new.limits);
        let (past, kept) = (&old.retention.history, &new.retention.history);
        let applied = [
            ("runtime.idle_ttl", old.idle_ttl != new.idle_ttl),
            ("runtime.cleanup_ttl", old.cleanup_ttl != new.cleanup_ttl),
            ("runtime.grace", old.grace != new.grace),
            ("log.level", old.log.level != new.log.level),
            ("log.format", old.log.format != new.log.format),
            ("log.file", old.log.file != new.log.file),
            ("log.max_size", old.log.max_size != new.log.max_size),
            ("log.keep", old.log.keep != new.log.keep),
            ("limits.sandboxes", before.sandboxes != after.sandboxes),
            ("limits.kept_sandboxes", before.kept_sandboxes != after.kept_sandboxes),
            ("limits.user_sandboxes", before.user_sandboxes != after.user_sandboxes),
            ("limits.kept_specs", before.kept_specs != after.kept_specs),
            ("limits.memory", before.memory != after.memory),
            ("limits.sandbox_memory", before.sandbox_memory != after.sandbox_memory),
            ("limits.pids", before.pids != after.pids),
            ("limits.sandbox_disk", before.sandbox_disk != after.sandbox_disk),
            ("limits.sandbox_inodes", before.sandbox_inodes != after.sandbox_inodes),
            ("retention.deleted_age", past.deleted_age != kept.deleted_age),
            ("retention.deleted_count", past.deleted_count != kept.deleted_count),
            ("retention.events_age", past.events_age != kept.events_age),
            ("retention.events_count", past.events_count != kept.events_count),
            ("retention.execs_age", past.execs_age != kept.execs_age),
            ("retention.execs_count", past.execs_count != kept.execs_count),
            ("retention.logs_age", past.logs_age != kept.logs_age),
            ("retention.output", old.retention.output != new.retention.output),
            ("retention.orphans_age", past.orphans_age != kept.orphans_age),
            ("host.allow", old.allow != new.allow),
            ("registries", old.registries != new.registries),
        ];
        let fixed = [
            ("artifacts.exec_output_root", old.exec_output_root != new.exec_output_root),
            ("artifacts.exec_output_template", old.exec_output_template != new.exec_output_template),
            ("limits.host_free", before.host_free != after.host_free),
            ("limits.host_free_inodes", before.host_free_inodes != after.host_free_inodes),
            ("listen", old.listen != new.listen),
        ];
        let changed = |keys: &[(&'static str, bool)]| keys.iter().filter(|key| key.1).map(|key| key.0).collect();
        Self { applied: changed(&applied), fixed: changed(&fixed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(Path::new("/c"), text).unwrap()
    }

    #[test]
    fn a_key_that_needs_a_restart_is_reported_until_the_restart() {
        let old = config("[runtime]\nidle_ttl = \"1m\"");
        let new =
            config("[artifacts]\nexec_output_root = \"/x\"\n[[listen]]\ngrpc = \"unix:/s\"\n[host]\nallow = [\"/y\"]");
        let changed = ChangedKeys::between(&old, &new);
        assert_eq!(changed.applied, ["runtime.idle_ttl", "host.allow"]);
        assert_eq!(changed.fixed, ["artifacts.exec_output_root", "listen"]);
        let running = new.clone().with_fixed_of(&old);
        let again = ChangedKeys::between(&running, &new);
        assert_eq!((again.applied, again.fixed), (Vec::new(), changed.fixed));
    }

    #[test]
    fn every_key_is_applied_or_fixed() {
        let text = include_str!("config/everything.toml");
        let ChangedKeys { applied, fixed } = ChangedKeys::between(&Config::default(), &config(text));
        let mut expected = Vec::new();
        let mut table = String::new();
        for line in text.lines() {
            match line.split_once('=') {
                Some((key, _)) if table != "listen" && !table.starts_with("registries") => {
                    expected.push(format!("{table}.{}", key.trim()));
                }
                Some(_) => {}
                None => table = line.trim_matches(['[', ']']).to_owned(),
            }
        }
        let mut found: Vec<&str> = applied.into_iter().chain(fixed).collect();
        found.retain(|key| !matches!(*key, "listen" | "registries"));
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
