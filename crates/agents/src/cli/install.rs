//! `sandbox-agent install-agent`: brings an agent's program to this machine.

use clap::Args;

use super::Failure;
use crate::{
    agent::AgentId,
    install::{Bar, Installer, Settings},
};

/// Install an agent.
#[derive(Args)]
pub(super) struct Install {
    /// claude or codex
    #[arg(required_unless_present = "all", value_parser = agent)]
    agents: Vec<AgentId>,
    /// All of them
    #[arg(long, conflicts_with = "agents")]
    all: bool,
    /// Even if it is here
    #[arg(short, long)]
    reinstall: bool,
    /// Another version than the one that this program was made for
    #[arg(long, value_name = "VERSION", conflicts_with = "all")]
    version: Option<String>,
    /// The package registry to ask
    #[arg(long, value_name = "URL")]
    registry: Option<String>,
}

fn agent(name: &str) -> Result<AgentId, String> {
    name.parse().map_err(|()| format!("there is no agent {name}"))
}

// === impl Install ===

impl Install {
    pub(super) fn run(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::new)?;
        let mut settings = Settings::from_environment();
        settings.registry = self.registry.or(settings.registry);
        let installer = Installer::new(settings);
        let agents = if self.all { AgentId::ALL.to_vec() } else { self.agents };
        for agent in agents {
            let mut bar = Bar::new(agent);
            let install = installer.install(agent, self.reinstall, self.version.as_deref(), |now| bar.tell(now));
            let installed = runtime.block_on(install).map_err(Failure::new)?;
            let version = installed.version.as_deref().unwrap_or("of an unknown version");
            println!("{agent} {version} {}", installed.path.display());
        }
        Ok(())
    }
}
