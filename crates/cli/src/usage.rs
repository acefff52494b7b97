//! From words to arguments, and what is said about words that make none.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use carrel_changes::Shown;
use clap::Parser;
use clap::error::ErrorKind;

use crate::arguments::Carrel;
use crate::failure::{Failure, OURS};

/// Commands that exit with what the command they run exits with.
const RUNNING: [&str; 3] = ["run", "exec", "attach"];

/// Why there is nothing to do.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Help or the version was asked for.
    Answered(String),
    /// The words make no sense.
    Wrong(Failure, bool),
}

/// Reads the arguments.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Carrel, Stop> {
    let words: Vec<OsString> = words.into_iter().collect();
    Carrel::try_parse_from(&words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop::Answered(error.to_string()),
        _ => {
            let before_command = || words.iter().skip(1).take_while(|word| *word != "--");
            let json = before_command().any(|word| word == "--json");
            // A code that a command could have does not do for what never ran one.
            let command = before_command().find(|word| *word != "--json").and_then(|word| word.to_str());
            let run = command.and_then(|word| RUNNING.into_iter().find(|running| *running == word));
            let bytes = words.iter().find(|word| word.to_str().is_none());
            let failure = match (error.kind(), bytes) {
                (ErrorKind::InvalidUtf8, Some(word)) => not_text(word, wrong(&error, run)),
                _ => wrong(&error, run),
            };
            Stop::Wrong(failure, json)
        }
    })
}

/// The first paragraph is what is wrong; a tip in what follows is a hint.
fn wrong(error: &clap::Error, run: Option<&str>) -> Failure {
    let text = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "error: what is to be done?".to_owned()
    } else {
        error.to_string()
    };
    let mut paragraphs = text.split("\n\n");
    let said: Vec<&str> = paragraphs.next().unwrap_or_default().lines().map(str::trim).collect();
    let said = said.join(" ");
    let tip = paragraphs.flat_map(str::lines).find_map(|line| line.trim().strip_prefix("tip: "));
    let help = run.map_or_else(|| "carrel --help".to_owned(), |run| format!("carrel {run} --help"));
    let exit = if run.is_some() { OURS } else { 2 };
    let message = said.strip_prefix("error: ").unwrap_or(&said);
    Failure::new("usage", message).hint(tip.map_or(help, str::to_owned)).exit(exit)
}

/// An argument that has to be text is named.
fn not_text(word: &OsString, failure: Failure) -> Failure {
    Failure { message: format!("the argument {} is not text (UTF-8)", Shown(word.as_bytes())), ..failure }
}

// === impl Stop ===

impl Stop {
    /// Says it, and returns what to exit with.
    pub(crate) fn finish(self) -> ExitCode {
        match self {
            Self::Answered(text) => match crate::say(text.as_bytes()) {
                Ok(code) => code.into(),
                Err(failure) => {
                    failure.report(false);
                    failure.exit.into()
                }
            },
            Self::Wrong(failure, json) => {
                failure.report(json);
                failure.exit.into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_image::ImageRef;
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::{Command, RunArguments};

    fn parsed(words: &[&str]) -> Result<Carrel, Stop> {
        parse(std::iter::once("carrel").chain(words.iter().copied()).map(OsString::from))
    }

    fn run(words: &[&str]) -> RunArguments {
        match parsed(words).unwrap().command {
            Command::Run(run) => *run,
            other => panic!("{other:?}"),
        }
    }

    fn refused(words: &[&str]) -> (String, u8) {
        match parsed(words).unwrap_err() {
            Stop::Wrong(failure, _) => {
                (format!("{} | {}", failure.message, failure.hint.unwrap_or_default()), failure.exit)
            }
            Stop::Answered(text) => panic!("{text}"),
        }
    }

    fn help(command: Option<&str>) -> String {
        let mut carrel = Carrel::command();
        carrel.build();
        match command.and_then(|command| carrel.find_subcommand_mut(command)) {
            Some(command) => command.render_help().to_string(),
            None => carrel.render_help().to_string(),
        }
    }

    #[test]
    fn a_command_is_what_follows_the_image() {
        for words in [&["run", "host", "--", "ls", "-l", "--", "x"][..], &["run", "host", "ls", "-l", "--", "x"]] {
            let run = run(words);
            assert_eq!(run.image, ImageRef::Host);
            assert_eq!(run.command, ["ls", "-l", "--", "x"], "{words:?}");
        }
        assert_eq!(run(&["run", "host", "--", "--json"]).command, ["--json"]);
        assert_eq!(run(&["run", "./root", "env", "--memory", "x"]).command, ["env", "--memory", "x"]);
    }

    #[test]
    fn the_command_of_a_job_is_what_follows_the_sandbox() {
        for words in [&["exec", "-it", "web", "--", "ls", "-d"][..], &["exec", "-it", "web", "ls", "-d"]] {
            let Command::Exec(exec) = parsed(words).unwrap().command else { panic!("{words:?}") };
            assert_eq!((exec.name.as_str(), exec.detach, exec.interactive, exec.tty), ("web", false, true, true));
            assert_eq!(exec.command, ["ls", "-d"]);
        }
        assert_eq!(refused(&["exec", "web"]).1, 125);
        assert!(refused(&["--json", "exec", "web"]).0.ends_with(" | carrel exec --help"));
        assert_eq!(refused(&["attach"]).1, 125);
        let said = "invalid value '../x' for '[JOB]': a job has an id of 1 to 220 letters, digits, `-`, `_`, `.` or `~`, \
                    not beginning with `.` | carrel --help";
        assert_eq!(refused(&["logs", "web", "../x"]), (said.to_owned(), 2));
    }

    #[test]
    fn other_names_for_commands_are_the_same_commands() {
        assert!(matches!(parsed(&["ls"]).unwrap().command, Command::Ps(_)));
        assert!(matches!(parsed(&["top"]).unwrap().command, Command::Stats(_)));
        let Command::Stop(stop) = parsed(&["stop", "--time", "0", "web"]).unwrap().command else { panic!("no stop") };
        assert!(stop.time.is_zero());
    }

    //= promises.command.defaults
    #[test]
    fn the_defaults_are_safe() {
        let run = run(&["run", "host", "true"]);
        assert_eq!((run.pids, run.disk.0), (1024, 1 << 30));
        assert!(!run.allow_unenforced_limits && run.mounts.is_empty() && run.env.is_empty());
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_line_with_a_hint() {
        assert_eq!(
            refused(&["run", "--memory", "lots", "host", "true"]),
            (
                "invalid value 'lots' for '--memory <SIZE>': not a size such as 512M, 1.5G or 64KiB | \
                 carrel run --help"
                    .to_owned(),
                125
            )
        );
        assert_eq!(
            refused(&["run"]),
            ("the following required arguments were not provided: <IMAGE> | carrel run --help".to_owned(), 125)
        );
        assert_eq!(
            refused(&["rum", "host"]),
            ("unrecognized subcommand 'rum' | some similar subcommands exist: 'run', 'resume'".to_owned(), 2)
        );
        assert_eq!(refused(&[]), ("what is to be done? | carrel --help".to_owned(), 2));
        assert_eq!(refused(&["run", "--keep-changes", "x", "host", "true"]).1, 125);
        assert!(refused(&["run", "a b", "true"]).0.contains("\"a b\" is not an image"));
    }

    #[test]
    fn an_argument_that_is_not_text_is_named() {
        let word = |bytes: &[u8]| OsString::from(std::ffi::OsStr::from_bytes(bytes));
        let refused = |option: &str, value: &[u8]| {
            let words = [word(b"carrel"), word(b"run"), word(option.as_bytes()), word(value)];
            match parse(words.into_iter().chain([word(b"host"), word(b"true")])).unwrap_err() {
                Stop::Wrong(failure, _) => failure.message,
                Stop::Answered(text) => panic!("{text}"),
            }
        };
        assert_eq!(refused("--name", b"a\xff"), "the argument a\\xff is not text (UTF-8)");
        assert_eq!(
            refused("--env", b"KEY=a\xff"),
            "invalid value 'KEY=a\u{fffd}' for '--env <KEY[=VALUE]>': a variable and its value are text (UTF-8)"
        );
        // A path need not be.
        let words = [&b"carrel"[..], b"run", b"--mount", b"/a\xff:/b\xfe:rw", b"--project", b"\xff", b"host", b"true"];
        let Command::Run(run) = parse(words.map(word)).unwrap().command else { panic!("it is no run") };
        assert_eq!(run.mounts.first().unwrap().source.as_os_str().as_bytes(), b"/a\xff");
    }

    //= promises.command.defaults
    #[test]
    fn what_help_says_is_what_we_reviewed() {
        let commands = ["run", "create", "exec", "ps", "cp", "serve", "apply", "image"].map(Some);
        for command in commands.into_iter().chain([None]) {
            let file = format!("{}.txt", command.unwrap_or("carrel"));
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help").join(file);
            if std::env::var_os("UPDATE_HELP").is_some() {
                std::fs::write(&path, help(command)).unwrap();
            }
            assert_eq!(help(command), std::fs::read_to_string(&path).unwrap(), "UPDATE_HELP=1 writes it anew");
        }
    }
}
