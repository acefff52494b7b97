//! What an install depends on.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use super::{npm::Lookup, pins::Pin, platform::Platform};
use crate::credentials::home;

/// What an install depends on.
#[derive(Clone)]
pub struct Settings {
    /// Where agents are installed.
    pub bin: PathBuf,
    /// The registry that packages come from, before anything that npm was told.
    pub registry: Option<String>,
    /// Whether agents have to be there already.
    pub preinstalled: bool,
    /// What they are to run on; nothing, if none is published for it.
    pub platform: Option<Platform>,
    /// What is known of packages.
    pub pins: Vec<Pin>,
    /// Where agents are published beside a registry.
    pub downloads: Downloads,
    /// How long is waited.
    pub patience: Patience,
    /// Whose settings of npm count.
    pub home: Option<PathBuf>,
    variable: Lookup,
}

/// Where the makers of agents publish them themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downloads {
    /// Of Claude Code: `VERSION/PLATFORM/claude` is below it.
    pub claude: String,
    /// Of Codex: `rust-vVERSION/FILE` is below it.
    pub codex: String,
}

/// How long is waited for a server and for others, and how often a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For the next bytes.
    pub stall: Duration,
    /// Before it is asked again; the next time twice as long.
    pub pause: Duration,
    /// How often in a row without a byte.
    pub tries: u32,
    /// For another process that installs the same agent.
    pub lock: Duration,
}

// === impl Settings ===

impl Settings {
    /// As this process was told.
    pub fn from_environment() -> Self {
        Self::new(home(), |name| std::env::var_os(name))
    }

    /// With these variables and this home.
    pub fn new(home: Option<PathBuf>, variable: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        let data = variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let data = data.or_else(|| Some(home.as_ref()?.join(".local/share")));
        let bin = data.map_or_else(|| PathBuf::from(".sandbox-agent/bin"), |data| data.join("sandbox-agent/bin"));
        Self {
            // An agent is started in other directories than ours.
            bin: std::path::absolute(&bin).unwrap_or(bin),
            registry: None,
            preinstalled: variable("SANDBOX_AGENT_REQUIRE_PREINSTALL").is_some_and(|value| is_true(&value)),
            platform: Platform::here(),
            pins: Pin::all(),
            downloads: Downloads::default(),
            patience: Patience::default(),
            home,
            variable: Arc::new(variable),
        }
    }

    /// A variable.
    pub(super) fn variable(&self) -> &Lookup {
        &self.variable
    }
}

fn is_true(value: &OsString) -> bool {
    value.to_str().is_some_and(|value| matches!(value.trim().to_lowercase().as_str(), "1" | "true" | "yes" | "on"))
}

// === impl Downloads ===

impl Default for Downloads {
    fn default() -> Self {
        let bucket = "claude-code-dist-86c565f3-f756-42ad-8dfa-d59b1c096819";
        Self {
            claude: format!("https://storage.googleapis.com/{bucket}/claude-code-releases/"),
            codex: "https://github.com/openai/codex/releases/download/".to_owned(),
        }
    }
}

// === impl Patience ===

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            pause: Duration::from_millis(300),
            tries: 4,
            lock: Duration::from_secs(600),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(home: Option<&str>, variables: &'static [(&str, &str)]) -> Settings {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Settings::new(home.map(PathBuf::from), find)
    }

    #[test]
    fn agents_are_with_the_data_of_their_user() {
        let bin = |home, variables| settings(home, variables).bin;
        assert_eq!(bin(Some("/home/ada"), &[]), PathBuf::from("/home/ada/.local/share/sandbox-agent/bin"));
        assert_eq!(bin(Some("/x"), &[("XDG_DATA_HOME", "/data")]), PathBuf::from("/data/sandbox-agent/bin"));
        assert_eq!(bin(Some("/x"), &[("XDG_DATA_HOME", "data")]), PathBuf::from("/x/.local/share/sandbox-agent/bin"));
        assert!(bin(None, &[]).is_absolute() && bin(None, &[]).ends_with(".sandbox-agent/bin"));
    }

    #[test]
    fn to_have_agents_installed_before_is_asked_for_by_a_variable() {
        assert!(settings(None, &[("SANDBOX_AGENT_REQUIRE_PREINSTALL", "1")]).preinstalled);
        assert!(settings(None, &[("SANDBOX_AGENT_REQUIRE_PREINSTALL", "true")]).preinstalled);
        assert!(!settings(None, &[("SANDBOX_AGENT_REQUIRE_PREINSTALL", "0")]).preinstalled);
        assert!(!settings(None, &[]).preinstalled);
    }
}
