//! Settings of the installer.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use super::{npm::VariableLookup, pins::PackagePin, platform::AgentPlatform};
use crate::credentials::home;

#[derive(Clone)]
pub struct InstallSettings {
    /// Directory of the installs.
    pub bin: PathBuf,
    /// Registry that takes precedence over npm's configuration.
    pub registry: Option<String>,
    /// Whether installation is disabled.
    pub preinstalled: bool,
    /// Target platform; `None` if no agent is published for it.
    pub platform: Option<AgentPlatform>,
    pub pins: Vec<PackagePin>,
    /// Download URLs of the vendors.
    pub downloads: VendorDownloads,
    /// Timeouts and retries.
    pub timeouts: InstallTimeouts,
    /// Home directory with npm's user configuration.
    pub home: Option<PathBuf>,
    variable: VariableLookup,
}

/// Base URLs of the vendors' own downloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorDownloads {
    /// Claude Code: `VERSION/PLATFORM/claude` is below it.
    pub claude: String,
    /// Codex: `rust-vVERSION/FILE` is below it.
    pub codex: String,
}

/// Timeouts and retries of an install.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstallTimeouts {
    /// Timeout of a connection.
    pub connect: Duration,
    pub read: Duration,
    /// Delay before the first retry; it doubles with each further one.
    pub retry_delay: Duration,
    /// Consecutive attempts without progress.
    pub attempts: u32,
    /// How long to wait for the lock of another process.
    pub lock: Duration,
}

// === impl InstallSettings ===

impl InstallSettings {
    /// From the environment of this process.
    pub fn from_environment() -> Self {
        Self::new(home(), |name| std::env::var_os(name))
    }

    /// With this home and these variables.
    pub fn new(home: Option<PathBuf>, variable: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        let data = variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let data = data.or_else(|| Some(home.as_ref()?.join(".local/share")));
        let bin = data.map_or_else(|| PathBuf::from(".sandbox-agent/bin"), |data| data.join("sandbox-agent/bin"));
        Self {
            // Agents run in other directories.
            bin: std::path::absolute(&bin).unwrap_or(bin),
            registry: None,
            preinstalled: variable("SANDBOX_AGENT_REQUIRE_PREINSTALL").is_some_and(|value| is_true(&value)),
            platform: AgentPlatform::current(),
            pins: PackagePin::all(),
            downloads: VendorDownloads::default(),
            timeouts: InstallTimeouts::default(),
            home,
            variable: Arc::new(variable),
        }
    }

    pub(super) fn variable(&self) -> &VariableLookup {
        &self.variable
    }
}

fn is_true(value: &OsString) -> bool {
    value.to_str().is_some_and(|value| matches!(value.trim().to_lowercase().as_str(), "1" | "true" | "yes" | "on"))
}

// === impl VendorDownloads ===

impl Default for VendorDownloads {
    fn default() -> Self {
        let bucket = "claude-code-dist-86c565f3-f756-42ad-8dfa-d59b1c096819";
        Self {
            claude: format!("https://storage.googleapis.com/{bucket}/claude-code-releases/"),
            codex: "https://github.com/openai/codex/releases/download/".to_owned(),
        }
    }
}

// === impl InstallTimeouts ===

impl Default for InstallTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
            retry_delay: Duration::from_millis(300),
            attempts: 4,
            lock: Duration::from_secs(600),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(home: Option<&str>, variables: &'static [(&str, &str)]) -> InstallSettings {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        InstallSettings::new(home.map(PathBuf::from), find)
    }

    #[test]
    fn agents_are_installed_in_the_users_data_directory() {
        let bin = |home, variables| settings(home, variables).bin;
        assert_eq!(bin(Some("/home/ada"), &[]), PathBuf::from("/home/ada/.local/share/sandbox-agent/bin"));
        assert_eq!(bin(Some("/x"), &[("XDG_DATA_HOME", "/data")]), PathBuf::from("/data/sandbox-agent/bin"));
        assert_eq!(bin(Some("/x"), &[("XDG_DATA_HOME", "data")]), PathBuf::from("/x/.local/share/sandbox-agent/bin"));
        assert!(bin(None, &[]).is_absolute() && bin(None, &[]).ends_with(".sandbox-agent/bin"));
    }

    #[test]
    fn a_variable_disables_installation() {
        assert!(settings(None, &[("SANDBOX_AGENT_REQUIRE_PREINSTALL", "1")]).preinstalled);
        assert!(settings(None, &[("SANDBOX_AGENT_REQUIRE_PREINSTALL", "true")]).preinstalled);
        assert!(!settings(None, &[("SANDBOX_AGENT_REQUIRE_PREINSTALL", "0")]).preinstalled);
        assert!(!settings(None, &[]).preinstalled);
    }
}
