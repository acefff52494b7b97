//! The command line of `sandbox-agent`.

mod server;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// One API over coding agents.
#[derive(Parser)]
#[command(name = "sandbox-agent", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API.
    Server(server::Server),
}

/// Runs a command.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Server(server) => server.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { what, hint }) => {
            eprintln!("error: {what}");
            if let Some(hint) = hint {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Why a command failed, and what to do about it.
pub(crate) struct Failure {
    what: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(what: impl std::fmt::Display) -> Self {
        Self { what: what.to_string(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
