//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use carrel_protocol::Generation;

/// The action selected on the command line.
#[derive(Debug, PartialEq, Eq)]
pub enum AgentdCommand {
    Serve(AgentdOptions),
    /// Print the help.
    Help,
    /// Print the version.
    Version,
}

/// Options of the server.
#[derive(Debug, PartialEq, Eq)]
pub struct AgentdOptions {
    /// A socket for clients, instead of standard input and output.
    pub listen: Option<PathBuf>,
    /// The highest generation to announce and accept.
    pub max_generation: Generation,
}

/// An invalid command line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// An option requires a value.
    #[error("{0} requires a value")]
    NoValue(&'static str),
    /// An unsupported generation.
    #[error("invalid value {0:?} for --max-generation: expected a number from 1 to {most}", most = Generation::CURRENT)]
    BadGeneration(String),
    /// An unknown argument.
    #[error("unknown argument {0:?}")]
    Unknown(String),
}

/// The help text.
pub const HELP: &str = "\
carrel-agentd: the program that a sandbox starts with

Usage: carrel-agentd [--listen PATH] [--max-generation N]

Without --listen it speaks on standard input and output, which are a socket or pipes.

  --listen PATH        serve clients on a Unix socket; for development and tests
  --max-generation N   announce and understand no generation above N
  --version            print the version
  --help               print this
";

/// Parses the command line.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<AgentdCommand, UsageError> {
    let mut options = AgentdOptions { listen: None, max_generation: Generation::CURRENT };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--listen") => {
                let path = args.next().filter(|path| !path.is_empty()).ok_or(UsageError::NoValue("--listen"))?;
                options.listen = Some(path.into());
            }
            Some("--max-generation") => {
                let value = args.next().ok_or(UsageError::NoValue("--max-generation"))?;
                options.max_generation = generation(&value.to_string_lossy())?;
            }
            Some("--help" | "-h") => return Ok(AgentdCommand::Help),
            Some("--version" | "-V") => return Ok(AgentdCommand::Version),
            _ => return Err(UsageError::Unknown(arg.to_string_lossy().into_owned())),
        }
    }
    Ok(AgentdCommand::Serve(options))
}

fn generation(value: &str) -> Result<Generation, UsageError> {
    let known = |number: &u8| (Generation::HORIZON.get()..=Generation::CURRENT.get()).contains(number);
    match value.parse().ok().filter(known) {
        Some(number) => Ok(Generation::new(number)),
        None => Err(UsageError::BadGeneration(value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<AgentdCommand, UsageError> {
        parse(args.iter().map(OsString::from))
    }

    #[test]
    fn options_are_parsed_and_invalid_arguments_are_named() {
        let expected = AgentdOptions { listen: Some("/a".into()), max_generation: Generation::new(7) };
        assert_eq!(parsed(&["--listen", "/a", "--max-generation", "7"]), Ok(AgentdCommand::Serve(expected)));
        assert_eq!(parsed(&["--help"]), Ok(AgentdCommand::Help));
        assert_eq!(parsed(&["--listen"]), Err(UsageError::NoValue("--listen")));
        for bad in ["0", "12", "x", ""] {
            assert_eq!(parsed(&["--max-generation", bad]), Err(UsageError::BadGeneration(bad.into())));
        }
        assert_eq!(parsed(&["serve"]), Err(UsageError::Unknown("serve".into())));
    }
}
