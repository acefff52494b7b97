//! `sandbox-agent completions`: what a shell needs to complete commands and options.

use std::io::{self, Write};

use clap::{Args, CommandFactory, ValueEnum};

use super::{CliArguments, CliError};

/// `sandbox-agent completions`.
#[derive(Args)]
pub(super) struct CompletionsArguments {
    /// Shell to complete for: bash, zsh or fish
    #[arg(value_enum, hide_possible_values = true)]
    shell: CompletionShell,
}

/// A shell with completion.
#[derive(Clone, Copy, ValueEnum)]
enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

// === impl CompletionsArguments ===

impl CompletionsArguments {
    pub(super) fn run(self) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        match out.write_all(&self.script()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::new(format!("write to standard output: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn script(&self) -> Vec<u8> {
        let shell = match self.shell {
            CompletionShell::Bash => clap_complete::Shell::Bash,
            CompletionShell::Zsh => clap_complete::Shell::Zsh,
            CompletionShell::Fish => clap_complete::Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut CliArguments::command(), "sandbox-agent", &mut script);
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_every_visible_command() {
        for shell in [CompletionShell::Bash, CompletionShell::Zsh, CompletionShell::Fish] {
            let script = String::from_utf8(CompletionsArguments { shell }.script()).unwrap();
            for command in CliArguments::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{}", command.get_name());
            }
        }
    }
}
