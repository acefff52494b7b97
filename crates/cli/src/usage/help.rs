//! How help is shown: of which command, and how wide.

use clap::{Command, CommandFactory};

use super::suggestion;
use crate::arguments::CarrelArguments;
use crate::failure::Failure;

/// How wide help is where the width is not known, and the widest that it is.
const WIDEST: usize = 100;
/// How narrow help is at least: what is narrower is wrapped by the terminal.
const NARROWEST: usize = 30;

/// The definition of the command line, with help for this terminal.
pub(super) fn definition() -> Command {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok().map(|size| size.ws_col.into());
    definition_for(columns.or_else(terminal))
}

/// The same for a width that is known, or is not.
pub(super) fn definition_for(columns: Option<usize>) -> Command {
    // A serial console says that it has no columns.
    let columns = columns.filter(|columns| *columns > 0).unwrap_or(WIDEST);
    CarrelArguments::command().term_width(columns.clamp(NARROWEST, WIDEST))
}

/// The command that `carrel help WORDS…` is about, as words that are followed by `--help`.
pub(super) fn path(words: &[String]) -> Result<Vec<String>, Failure> {
    let mut command = definition_for(None);
    command.build();
    let mut path = Vec::new();
    let mut at = &command;
    for word in words {
        let Some(next) = at.find_subcommand(word) else {
            let name = at.get_bin_name().unwrap_or("carrel");
            let failure = Failure::new("usage", format!("unrecognized subcommand '{word}'")).exit(2);
            let hint = suggestion::for_command(word, at).unwrap_or_else(|| format!("{name} --help"));
            return Err(failure.hint(hint));
        };
        path.push(next.get_name().to_owned());
        at = next;
    }
    Ok(path)
}

/// The command that words belong to, as far as they name one.
pub(super) fn command_of<'a>(words: impl Iterator<Item = &'a str>, definition: &Command) -> Command {
    let mut at = definition;
    for word in words.filter(|word| !word.starts_with('-')) {
        match at.find_subcommand(word) {
            Some(next) => at = next,
            None => break,
        }
    }
    at.clone()
}
