//! The token, as every command takes it.

use std::path::PathBuf;

use clap::Args;

use super::Failure;

/// The token and where it comes from.
#[derive(Args)]
pub(super) struct TokenArguments {
    /// The token that clients have to send; or the variable SANDBOX_AGENT_TOKEN, which others cannot read
    #[arg(short, long)]
    token: Option<String>,
    /// Read the token from this file
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// There is no token: anybody comes in who can connect
    #[arg(short, long, conflicts_with_all = ["token", "token_file"])]
    no_token: bool,
}

// === impl TokenArguments ===

impl TokenArguments {
    /// The token; `None` if there is to be none or none was given.
    pub(super) fn get(&self) -> Result<Option<String>, Failure> {
        let token = match &self.token_file {
            _ if self.no_token => None,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))?;
                Some(text.trim().to_owned())
            }
            None => self.token.clone().or_else(|| std::env::var("SANDBOX_AGENT_TOKEN").ok()),
        };
        Ok(token)
    }

    /// Whether it was said that there is none.
    pub(super) const fn none(&self) -> bool {
        self.no_token
    }
}
