//! `sandbox-agent credentials`: what agents would find, hidden unless it is asked for.

use std::path::PathBuf;

use clap::Subcommand;

use super::Failure;
use crate::{
    agent::AgentId,
    credentials::{Extract, extract_env},
};

#[derive(Subcommand)]
pub(super) enum Credentials {
    /// Show the credentials that were found
    Extract {
        /// Of this agent
        #[arg(short, long, value_parser = agent)]
        agent: Option<AgentId>,
        /// For this provider
        #[arg(short, long)]
        provider: Option<String>,
        /// Look in this home
        #[arg(short = 'd', long, value_name = "DIR")]
        home_dir: Option<PathBuf>,
        /// Keys only, and no tokens of a login
        #[arg(short, long)]
        no_oauth: bool,
        /// Show them in full
        #[arg(short, long)]
        reveal: bool,
    },
    /// Print them in full, as a shell takes them
    ExtractEnv {
        /// With `export`
        #[arg(short, long)]
        export: bool,
        /// Look in this home
        #[arg(short = 'd', long, value_name = "DIR")]
        home_dir: Option<PathBuf>,
        /// Keys only, and no tokens of a login
        #[arg(short, long)]
        no_oauth: bool,
    },
}

fn agent(name: &str) -> Result<AgentId, String> {
    name.parse().map_err(|()| format!("there is no agent {name}"))
}

impl Credentials {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Extract { agent, provider, home_dir, no_oauth, reveal } => {
                let extract = Extract { agent, provider, home: home_dir, no_oauth, reveal };
                println!("{}", extract.run().map_err(Failure::new)?);
            }
            Self::ExtractEnv { export, home_dir, no_oauth } => print!("{}", extract_env(home_dir, no_oauth, export)),
        }
        Ok(())
    }
}
