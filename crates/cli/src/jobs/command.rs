//! Converts a command from arguments to a job for the shim.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use carrel_changes::EscapedName;
use carrel_image::RootFs;
use carrel_shim_client::messages::JobCommand;
use carrel_units::TimeSpan;

use super::session::terminal::TerminalSize;
use crate::environment::Variable;
use crate::failure::Failure;
use crate::user;

/// A command as given in arguments.
#[derive(Clone, Debug)]
pub(crate) struct CommandSpec<'a> {
    pub(crate) argv: &'a [OsString],
    /// Variables of the image, which `env` overrides.
    pub(crate) image_env: &'a [String],
    pub(crate) env: &'a [Variable],
    pub(crate) cwd: Option<String>,
    pub(crate) user: Option<&'a str>,
    /// The size of its terminal; none without a terminal.
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) stdin: bool,
    pub(crate) timeout: Option<TimeSpan>,
}

// === impl CommandSpec ===

impl CommandSpec<'_> {
    /// The job command for a sandbox with a root file system.
    pub(crate) fn command(self, root: &RootFs) -> Result<JobCommand, Failure> {
        let mut words = self.argv.iter().map(text).collect::<Result<Vec<_>, _>>()?.into_iter();
        let program = words.next().unwrap_or_default();
        let own = |key: &str| std::env::var_os(key);
        let mut env = vec![format!("HOME={}", user::home(self.user, root))];
        env.extend(self.image_env.iter().cloned());
        if let (Some(_), Some(term)) = (self.terminal, own("TERM").and_then(|term| term.into_string().ok())) {
            env.push(format!("TERM={term}"));
        }
        for variable in self.env {
            env.extend(variable.resolve(own)?);
        }
        let size = self.terminal.unwrap_or_default();
        Ok(JobCommand {
            program,
            args: words.collect(),
            env,
            cwd: self.cwd,
            user: self.user.map(str::to_owned),
            tty: self.terminal.is_some(),
            rows: size.rows,
            cols: size.cols,
            stdin: self.stdin,
            timeout_ms: self.timeout.map(|time| u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX)),
            ..JobCommand::default()
        })
    }
}

fn text(word: &OsString) -> Result<String, Failure> {
    let message = || format!("the argument {} is not UTF-8", EscapedName(word.as_bytes()));
    word.to_str().map(str::to_owned).ok_or_else(|| Failure::new("invalid_command", message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(argv: &[OsString]) -> Result<JobCommand, Failure> {
        let terminal = Some(TerminalSize { rows: 40, cols: 120 });
        let timeout = Some("30s".parse().unwrap());
        CommandSpec { argv, image_env: &[], env: &[], cwd: None, user: None, terminal, stdin: true, timeout }
            .command(&RootFs::default())
    }

    #[test]
    fn a_command_has_its_arguments_a_home_and_a_terminal_of_the_same_size() {
        let command = command(&["ls".into(), "-l".into()]).unwrap();
        assert_eq!((command.program.as_str(), command.args.as_slice()), ("ls", &["-l".to_owned()][..]));
        assert_eq!(command.env.first().map(String::as_str), Some("HOME=/"));
        assert_eq!((command.tty, command.rows, command.cols), (true, 40, 120));
        assert_eq!((command.stdin, command.timeout_ms), (true, Some(30_000)));
    }

    #[test]
    fn an_argument_that_is_not_utf8_is_named() {
        let word = OsString::from(std::ffi::OsStr::from_bytes(b"a\xff"));
        assert_eq!(command(&["ls".into(), word]).unwrap_err().message, "the argument a\\xff is not UTF-8");
    }
}
