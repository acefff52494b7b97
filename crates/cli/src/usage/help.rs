//! Help texts: their command and their width.

use clap::{Command, CommandFactory};

use super::suggestion;
use crate::arguments::CarrelArguments;
use crate::failure::Failure;

/// The default and maximum width of help.
const MAX_WIDTH: usize = 100;
/// The minimum width of help; a narrower terminal wraps it.
const MIN_WIDTH: usize = 30;

/// The definition of the command line, with help for this terminal.
pub(super) fn definition() -> Command {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok().map(|size| size.ws_col.into());
    definition_for(columns.or_else(terminal))
}

/// The definition for a width, or for an unknown one.
pub(super) fn definition_for(columns: Option<usize>) -> Command {
    // A serial console reports zero columns.
    let columns = columns.filter(|columns| *columns > 0).unwrap_or(MAX_WIDTH);
    CarrelArguments::command().term_width(columns.clamp(MIN_WIDTH, MAX_WIDTH))
}

/// The command path of `carrel help WORDS…`, to be followed by `--help`.
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

/// The deepest subcommand that the words name.
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
