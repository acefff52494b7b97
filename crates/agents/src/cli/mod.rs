//! The command line of `sandbox-agent`.

mod api;
mod client;
mod completions;
mod credentials;
mod install;
mod manual;
#[cfg(test)]
mod reference;
mod server;
mod token;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::Value;

/// One API over coding agents.
#[derive(Parser)]
#[command(name = "sandbox-agent", version, about)]
struct CliArguments {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Serve the API
    Server(server::ServerCommand),
    /// Call the API of a server
    #[command(subcommand)]
    Api(api::ApiCommand),
    /// Manage agents
    #[command(subcommand)]
    Agents(api::AgentsCommand),
    /// Manage sessions
    #[command(subcommand)]
    Sessions(api::SessionsCommand),
    /// Install an agent on this machine
    InstallAgent(install::InstallArguments),
    /// Show the credentials that agents would use
    #[command(subcommand)]
    Credentials(credentials::CredentialsCommand),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArguments),
    /// Write the manual pages of all commands into a directory
    #[command(hide = true)]
    Man(manual::ManArguments),
}

/// Runs the command of the command line.
pub fn run() -> ExitCode {
    let done = match CliArguments::parse().command {
        CliCommand::Server(server) => server.run(),
        CliCommand::Api(api) => api.run(),
        CliCommand::Agents(agents) => agents.run(),
        CliCommand::Sessions(sessions) => sessions.run(),
        CliCommand::InstallAgent(install) => install.run(),
        CliCommand::Credentials(credentials) => credentials.run(),
        CliCommand::Completions(completions) => completions.run(),
        CliCommand::Man(manual) => manual.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(CliError::Problem(problem)) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
        Err(CliError::Message { what, hint }) => {
            eprintln!("error: {what}");
            if let Some(hint) = hint {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Why a command failed: the server's problem details, or a message with a hint.
enum CliError {
    Problem(String),
    Message { what: String, hint: Option<String> },
}

// === impl CliError ===

impl CliError {
    fn new(what: impl std::fmt::Display) -> Self {
        Self::Message { what: what.to_string(), hint: None }
    }

    fn problem(problem: &Value) -> Self {
        Self::Problem(format!("{problem:#}"))
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        match self {
            Self::Message { what, .. } => Self::Message { what, hint: Some(hint.into()) },
            problem @ Self::Problem(_) => problem,
        }
    }
}
