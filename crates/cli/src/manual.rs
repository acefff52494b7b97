//! `carrel man`: the manual pages, from the definition of the command line.

use std::io;
use std::path::Path;

use clap::CommandFactory;

use crate::arguments::CarrelArguments;
use crate::failure::Failure;

/// Writes `carrel.1` and one page for each command into a directory.
pub(crate) fn write(directory: &Path) -> Result<u8, Failure> {
    let mut carrel = CarrelArguments::command();
    carrel.build();
    write_pages(&carrel, directory).map_err(|error| {
        Failure::new("output_failed", format!("write manual pages to {}: {error}", directory.display())).exit(1)
    })?;
    Ok(0)
}

fn write_pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .source(concat!("carrel ", env!("CARGO_PKG_VERSION")))
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
        assert_eq!(write(directory.path()).unwrap(), 0);
        let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        let carrel = page("carrel.1");
        for command in CarrelArguments::command().get_subcommands() {
            let name = format!("carrel-{}.1", command.get_name());
            assert_eq!(directory.path().join(&name).exists(), !command.is_hide_set(), "{name}");
            assert_eq!(
                carrel.contains(&name.replace('-', "\\-").replace(".1", "(1)")),
                !command.is_hide_set(),
                "{name}"
            );
        }
        assert!(page("carrel-store-backup.1").contains("carrel store backup"));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let failure = write(Path::new("/nowhere/at/all")).unwrap_err();
        assert_eq!(failure.exit, 1);
        assert!(failure.message.contains("/nowhere/at/all"), "{failure:?}");
    }
}
