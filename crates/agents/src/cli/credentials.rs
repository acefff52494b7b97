//! `sandbox-agent credentials`: shows credentials, redacted by default.

use std::path::PathBuf;

use clap::Subcommand;

use super::CliError;
use crate::{
    agent::AgentId,
    credentials::{CredentialQuery, environment_script},
};

#[derive(Subcommand)]
pub(super) enum CredentialsCommand {
    /// Show the credentials that agents would use
    Extract {
        /// Only those of this agent
        #[arg(short, long, value_parser = agent)]
        agent: Option<AgentId>,
        /// Only those of this provider
        #[arg(short, long)]
        provider: Option<String>,
        /// Home directory to search
        #[arg(short = 'd', long, value_name = "DIR")]
        home_dir: Option<PathBuf>,
        /// Exclude OAuth tokens
        #[arg(short, long)]
        no_oauth: bool,
        /// Show secrets in full
        #[arg(short, long)]
        reveal: bool,
    },
    /// Print credentials in full, as shell variables
    ExtractEnv {
        /// Prefix each line with `export`
        #[arg(short, long)]
        export: bool,
        /// Home directory to search
        #[arg(short = 'd', long, value_name = "DIR")]
        home_dir: Option<PathBuf>,
        /// Exclude OAuth tokens
        #[arg(short, long)]
        no_oauth: bool,
    },
}

fn agent(name: &str) -> Result<AgentId, String> {
    name.parse().map_err(|()| format!("unknown agent {name}"))
}

impl CredentialsCommand {
    pub(super) fn run(self) -> Result<(), CliError> {
        match self {
            Self::Extract { agent, provider, home_dir, no_oauth, reveal } => {
                let query = CredentialQuery { agent, provider, home: home_dir, no_oauth, reveal };
                println!("{}", query.run().map_err(CliError::new)?);
            }
            Self::ExtractEnv { export, home_dir, no_oauth } => {
                print!("{}", environment_script(home_dir, no_oauth, export))
            }
        }
        Ok(())
    }
}
