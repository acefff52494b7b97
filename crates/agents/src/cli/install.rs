//! `sandbox-agent install-agent`: installs an agent's program.

use clap::Args;

use super::CliError;
use crate::{
    agent::AgentId,
    install::{InstallProgressBar, InstallSettings, Installer},
};

/// Install an agent.
#[derive(Args)]
pub(super) struct InstallArguments {
    /// Agents to install: claude, codex
    #[arg(required_unless_present = "all", value_parser = agent)]
    agents: Vec<AgentId>,
    /// Install all agents
    #[arg(long, conflicts_with = "agents")]
    all: bool,
    /// Install it even if it is installed already
    #[arg(short, long)]
    reinstall: bool,
    /// Version to install instead of the pinned one
    #[arg(long, value_name = "VERSION", conflicts_with = "all")]
    version: Option<String>,
    /// Package registry to use
    #[arg(long, value_name = "URL")]
    registry: Option<String>,
}

fn agent(name: &str) -> Result<AgentId, String> {
    name.parse().map_err(|()| format!("unknown agent {name}"))
}

// === impl InstallArguments ===

impl InstallArguments {
    pub(super) fn run(self) -> Result<(), CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::new)?;
        let mut settings = InstallSettings::from_environment();
        settings.registry = self.registry.or(settings.registry);
        let installer = Installer::new(settings);
        let agents = if self.all { AgentId::ALL.to_vec() } else { self.agents };
        for agent in agents {
            let mut bar = InstallProgressBar::new(agent);
            let install = installer.install(agent, self.reinstall, self.version.as_deref(), |now| bar.update(now));
            let installed = runtime.block_on(install).map_err(CliError::new)?;
            let version = installed.version.as_deref().unwrap_or("of an unknown version");
            println!("{agent} {version} {}", installed.path.display());
        }
        Ok(())
    }
}
