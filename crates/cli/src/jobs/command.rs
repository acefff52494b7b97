//! A command, as a person asks for it, and as a supervisor is asked.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use carrel_changes::EscapedName;
use carrel_image::RootFs;
use carrel_shim_client::messages::JobCommand;

use super::session::terminal::TerminalSize;
use crate::environment::Variable;
use crate::failure::Failure;
use crate::size::Time;
use crate::user;

/// A command, as a person asks for it.
#[derive(Clone, Debug)]
pub(crate) struct CommandSpec<'a> {
    pub(crate) words: &'a [OsString],
    /// What the image sets, under what is asked for.
    pub(crate) given: &'a [String],
    pub(crate) env: &'a [Variable],
    pub(crate) cwd: Option<String>,
    pub(crate) user: Option<&'a str>,
    /// The size of the terminal that it gets, if it gets one.
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) stdin: bool,
    pub(crate) timeout: Option<Time>,
}

// === impl CommandSpec ===

impl CommandSpec<'_> {
    /// As a supervisor is asked, for a sandbox with that root.
    pub(crate) fn command(self, root: &RootFs) -> Result<JobCommand, Failure> {
        let mut words = self.words.iter().map(text).collect::<Result<Vec<_>, _>>()?.into_iter();
        let program = words.next().unwrap_or_default();
        let own = |key: &str| std::env::var_os(key);
        let mut env = vec![format!("HOME={}", user::home(self.user, root))];
        env.extend(self.given.iter().cloned());
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
    let words = || format!("the argument {} is not text (UTF-8)", EscapedName(word.as_bytes()));
    word.to_str().map(str::to_owned).ok_or_else(|| Failure::new("invalid_command", words()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[OsString]) -> Result<JobCommand, Failure> {
        let terminal = Some(TerminalSize { rows: 40, cols: 120 });
        let timeout = Some("30s".parse().unwrap());
        CommandSpec { words, given: &[], env: &[], cwd: None, user: None, terminal, stdin: true, timeout }
            .command(&RootFs::default())
    }

    #[test]
    fn a_command_has_its_words_a_home_and_a_terminal_of_our_size() {
        let command = asked(&["ls".into(), "-l".into()]).unwrap();
        assert_eq!((command.program.as_str(), command.args.as_slice()), ("ls", &["-l".to_owned()][..]));
        assert_eq!(command.env.first().map(String::as_str), Some("HOME=/"));
        assert_eq!((command.tty, command.rows, command.cols), (true, 40, 120));
        assert_eq!((command.stdin, command.timeout_ms), (true, Some(30_000)));
    }

    #[test]
    fn a_word_that_is_not_text_is_named() {
        let word = OsString::from(std::ffi::OsStr::from_bytes(b"a\xff"));
        assert_eq!(asked(&["ls".into(), word]).unwrap_err().message, "the argument a\\xff is not text (UTF-8)");
    }
}
