//! What is in effect where nobody says anything: what depends on the host, the home, the command line or another key.

use std::path::Path;

use carrel_shim_client::messages::JobRetention;

use super::{Config, Limits, Listen, LogConfig, RetentionConfig};

impl Config {
    /// The memory of a sandbox that does not say: half of the host's, unless the configuration says.
    pub(crate) fn sandbox_memory(&self) -> u64 {
        let info = rustix::system::sysinfo();
        self.limits.sandbox_memory.unwrap_or(info.totalram.saturating_mul(u64::from(info.mem_unit)) / 2)
    }

    /// The same with every key that has a value in effect. Only limits that are none stay without.
    pub(crate) fn effective(self, home: &Path, listen: Vec<Listen>, own_log: Option<&Path>) -> Self {
        let mut history = self.retention.history.clone();
        history.deleted_age = history.deleted_age.or(Some(self.cleanup_ttl));
        let output = self.retention.output.or(Some(JobRetention::default().total_bytes));
        let limits = Limits {
            sandbox_memory: Some(self.sandbox_memory()),
            host_free_inodes: carrel_local::reserved_inodes(home, self.limits.host_free_inodes),
            ..self.limits.clone()
        };
        let file = self.log.file.clone().or_else(|| own_log.map(Path::to_owned));
        Self {
            exec_output_root: Some(self.log_root(home)),
            log: LogConfig { file, ..self.log },
            limits,
            retention: RetentionConfig { history, output },
            listen,
            ..self
        }
    }

    /// The limits that are none.
    pub(crate) fn unlimited(&self) -> Vec<&'static str> {
        let limits = [("limits.sandboxes", self.limits.sandboxes), ("limits.memory", self.limits.memory)];
        limits.into_iter().filter(|(_, limit)| limit.is_none()).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    #[test]
    fn every_key_has_the_value_that_is_in_effect() {
        let home = tempfile::tempdir().unwrap();
        let config = Config::parse(Path::new("/c"), "[runtime]\ncleanup_ttl = \"1h\"").unwrap();
        let listen = vec![Listen::at(Address::Unix("/s".into()))];
        // A home that is to be made is where its parent is.
        let path = home.path().join("to/be/made");
        let effective = config.clone().effective(&path, listen.clone(), None);
        assert_eq!(effective.exec_output_root, Some(path.join("logs")));
        assert_eq!(effective.retention.history.deleted_age, Some(config.cleanup_ttl));
        assert_eq!(effective.retention.output, Some(512 << 20));
        assert_eq!(effective.limits.sandbox_memory, Some(config.sandbox_memory()));
        assert_eq!(effective.listen, listen);
        assert_eq!(effective.unlimited(), ["limits.sandboxes", "limits.memory"]);
        let text = effective.to_string();
        for key in ["deleted_age = \"1h\"", "output = 536870912", "sandbox_memory = ", "exec_output_root = "] {
            assert!(text.contains(key), "{key}: {text}");
        }
        // What is shown can be said, and is then in effect.
        let said = Config::parse(Path::new("/c"), &text).unwrap();
        assert_eq!(said.clone().effective(&path, said.listen.clone(), None), effective);
        let own = config.effective(&path, listen, Some(Path::new("/l")));
        assert_eq!(own.log.file.as_deref(), Some(Path::new("/l")));
    }

    #[test]
    fn what_the_file_says_is_in_effect() {
        let everything = Config::parse(Path::new("/c"), include_str!("everything.toml")).unwrap();
        let effective = everything.clone().effective(Path::new("/"), everything.listen.clone(), Some(Path::new("/l")));
        assert_eq!(effective, everything);
        assert!(everything.unlimited().is_empty());
    }
}
