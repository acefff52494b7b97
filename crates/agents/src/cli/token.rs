//! The token arguments of every command.

use std::path::PathBuf;

use clap::Args;

use super::CliError;

#[derive(Args)]
pub(super) struct TokenArguments {
    /// Token that clients have to send. Prefer SANDBOX_AGENT_TOKEN, which other users cannot read
    #[arg(short, long)]
    token: Option<String>,
    /// Read the token from this file
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Use no token: every client that can connect has access
    #[arg(short, long, conflicts_with_all = ["token", "token_file"])]
    no_token: bool,
}

// === impl TokenArguments ===

impl TokenArguments {
    /// The token; `None` if there is none.
    pub(super) fn get(&self) -> Result<Option<String>, CliError> {
        let token = match &self.token_file {
            _ if self.no_token => None,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| CliError::new(format!("cannot read {}: {error}", path.display())))?;
                Some(text.trim().to_owned())
            }
            None => self.token.clone().or_else(|| std::env::var("SANDBOX_AGENT_TOKEN").ok()),
        };
        Ok(token)
    }

    /// Whether `--no-token` was given.
    pub(super) const fn none(&self) -> bool {
        self.no_token
    }
}
