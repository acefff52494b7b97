//! The command line of `sandbox-agent`.

mod api;
mod client;
mod credentials;
mod install;
mod server;
mod token;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::Value;

/// One API over coding agents.
#[derive(Parser)]
#[command(name = "sandbox-agent", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API
    Server(server::Server),
    /// Ask a server
    #[command(subcommand)]
    Api(api::Api),
    /// The agents of a server
    #[command(subcommand)]
    Agents(api::Agents),
    /// Its sessions
    #[command(subcommand)]
    Sessions(api::Sessions),
    /// Install an agent on this machine
    InstallAgent(install::Install),
    /// The credentials that agents would find
    #[command(subcommand)]
    Credentials(credentials::Credentials),
}

/// Runs a command.
pub fn run() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Server(server) => server.run(),
        Command::Api(api) => api.run(),
        Command::Agents(agents) => agents.run(),
        Command::Sessions(sessions) => sessions.run(),
        Command::InstallAgent(install) => install.run(),
        Command::Credentials(credentials) => credentials.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Problem(problem)) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
        Err(Failure::Words { what, hint }) => {
            eprintln!("error: {what}");
            if let Some(hint) = hint {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Why a command failed: a server's refusal as it came, or what happened and what to do about it.
enum Failure {
    Problem(String),
    Words { what: String, hint: Option<String> },
}

// === impl Failure ===

impl Failure {
    fn new(what: impl std::fmt::Display) -> Self {
        Self::Words { what: what.to_string(), hint: None }
    }

    fn problem(problem: &Value) -> Self {
        Self::Problem(format!("{problem:#}"))
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        match self {
            Self::Words { what, .. } => Self::Words { what, hint: Some(hint.into()) },
            problem @ Self::Problem(_) => problem,
        }
    }
}
