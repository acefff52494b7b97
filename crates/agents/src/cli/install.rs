//! `sandbox-agent install-agent`: brings an agent's program to this machine.

use std::io::IsTerminal as _;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::Failure;
use crate::{
    agent::AgentId,
    install::{Installer, Phase, Progress, Settings},
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
            let mut shown = Shown::new(agent);
            let install = installer.install(agent, self.reinstall, self.version.as_deref(), |now| shown.show(now));
            let installed = runtime.block_on(install).map_err(Failure::new)?;
            shown.end();
            let version = installed.version.as_deref().unwrap_or("of an unknown version");
            println!("{agent} {version} {}", installed.path.display());
        }
        Ok(())
    }
}

/// How an install is shown: a bar for people, a line for each step for everybody else.
struct Shown {
    agent: AgentId,
    bar: Option<ProgressBar>,
    phase: Option<Phase>,
}

impl Shown {
    fn new(agent: AgentId) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { agent, bar, phase: None }
    }

    fn show(&mut self, now: Progress) {
        let new = self.phase != Some(now.phase);
        self.phase = Some(now.phase);
        match &self.bar {
            Some(bar) => {
                bar.set_message(format!("{}: {}", self.agent, now.phase));
                bar.set_length(now.total.unwrap_or(now.bytes));
                bar.set_position(now.bytes);
            }
            None if new => eprintln!("{}: {}", self.agent, now.phase),
            None => {}
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
