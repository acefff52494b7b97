//! `sandbox-agent man`: the manual pages, from the definition of the command line.

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::{Args, CommandFactory};

use super::{CliArguments, CliError};

/// `sandbox-agent man`.
#[derive(Args)]
pub(super) struct ManArguments {
    /// Existing directory, such as share/man/man1
    directory: PathBuf,
}

// === impl ManArguments ===

impl ManArguments {
    /// Writes `sandbox-agent.1` and one page for each command.
    pub(super) fn run(self) -> Result<(), CliError> {
        let mut command = CliArguments::command().disable_help_subcommand(true);
        command.build();
        write_pages(&command, &self.directory)
            .map_err(|error| CliError::new(format!("write manual pages to {}: {error}", self.directory.display())))
    }
}

fn write_pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .source(concat!("sandbox-agent ", env!("CARGO_PKG_VERSION")))
        .manual("Carrel Manual");
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(directory.join(format!("{name}.1")), text)?;
    command.get_subcommands().filter(|sub| !sub.is_hide_set()).try_for_each(|sub| write_pages(sub, directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        assert!(ManArguments { directory: directory.path().to_owned() }.run().is_ok());
        let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        for command in CliArguments::command().get_subcommands() {
            let name = format!("sandbox-agent-{}.1", command.get_name());
            assert_eq!(directory.path().join(&name).exists(), !command.is_hide_set(), "{name}");
        }
        assert!(page("sandbox-agent.1").contains("sandbox\\-agent\\-server(1)"));
        assert!(page("sandbox-agent-sessions-create.1").contains("sandbox\\-agent sessions create"));
    }

    #[test]
    fn a_missing_directory_is_named() {
        match (ManArguments { directory: "/nowhere/at/all".into() }).run() {
            Err(CliError::Message { what, .. }) => assert!(what.contains("/nowhere/at/all"), "{what}"),
            _ => panic!("pages were written to a directory that does not exist"),
        }
    }
}
