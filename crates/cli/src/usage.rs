//! Parses the command line, and reports usage errors.

mod help;
#[cfg(test)]
mod reference;
mod suggestion;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use carrel_changes::EscapedName;
use clap::FromArgMatches;
use clap::error::ErrorKind;

pub(crate) use self::suggestion::PUBLISH;
use crate::arguments::{CarrelArguments, CarrelCommand};
use crate::failure::{EXIT_CARREL_FAILED, Failure};

/// Commands that exit with the code of the command that they run.
const PASS_THROUGH: [&str; 3] = ["run", "exec", "attach"];

/// Why there is no command to execute.
#[derive(Debug)]
pub(crate) enum EarlyExit {
    /// Help or version text to print.
    Printed(String),
    /// A usage error, and whether to report it as JSON.
    Invalid(Failure, bool),
}

/// Parses arguments.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<CarrelArguments, EarlyExit> {
    parse_as(words.into_iter().collect(), help::definition())
}

fn parse_as(words: Vec<OsString>, mut definition: clap::Command) -> Result<CarrelArguments, EarlyExit> {
    let matched = definition.try_get_matches_from_mut(&words);
    let parsed = matched.and_then(|mut matches| {
        CarrelArguments::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut definition))
    });
    match parsed {
        Ok(CarrelArguments { command: CarrelCommand::Help(help), json }) => {
            let path = help::path(&help.command).map_err(|failure| EarlyExit::Invalid(failure, json))?;
            parse_as(help_of(words, path), definition)
        }
        Ok(parsed) => Ok(parsed),
        // As in `carrel image help pull`.
        Err(error) if suggestion::invalid_subcommand(&error) == Some("help") => {
            let is_option = |word: &&str| word.starts_with('-');
            let json = words.iter().any(|word| word == "--json");
            let path = words.iter().skip(1).filter_map(|word| word.to_str());
            let path: Vec<String> =
                path.filter(|word| !is_option(word) && *word != "help").map(str::to_owned).collect();
            let path = help::path(&path).map_err(|failure| EarlyExit::Invalid(failure, json))?;
            parse_as(help_of(words, path), definition)
        }
        Err(error) => Err(early_exit(&error, &words, definition)),
    }
}

/// The command line that prints the help of a command.
fn help_of(words: Vec<OsString>, path: Vec<String>) -> Vec<OsString> {
    let path = path.into_iter().map(OsString::from);
    words.into_iter().take(1).chain(path).chain([OsString::from("--help")]).collect()
}

fn early_exit(error: &clap::Error, words: &[OsString], mut definition: clap::Command) -> EarlyExit {
    let before_command = || words.iter().skip(1).take_while(|word| *word != "--").map(OsString::as_os_str);
    let json = before_command().any(|word| word == "--json");
    match error.kind() {
        ErrorKind::DisplayHelp => return EarlyExit::Printed(error.to_string()),
        ErrorKind::DisplayVersion => return EarlyExit::Printed(crate::version(json)),
        _ => {}
    }
    definition.build();
    let command = help::command_of(before_command().filter_map(OsStr::to_str), &definition);
    let bytes = words.iter().find(|word| word.to_str().is_none());
    let failure = match (error.kind(), bytes) {
        (ErrorKind::InvalidUtf8, Some(word)) => not_utf8(word, usage_failure(error, &command)),
        _ => usage_failure(error, &command),
    };
    EarlyExit::Invalid(failure, json)
}

/// The failure for a usage error: the first paragraph of clap's message, and a suggestion or the help command as its hint.
fn usage_failure(error: &clap::Error, command: &clap::Command) -> Failure {
    let text = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "error: no command given".to_owned()
    } else {
        error.to_string()
    };
    let lines: Vec<&str> = text.split("\n\n").next().unwrap_or_default().lines().map(str::trim).collect();
    let text = lines.join(" ");
    let help = || format!("{} --help", command.get_bin_name().unwrap_or("carrel"));
    // The exit code must differ from those of the command that was not run.
    let exit = if PASS_THROUGH.contains(&command.get_name()) { EXIT_CARREL_FAILED } else { 2 };
    let message = text.strip_prefix("error: ").unwrap_or(&text);
    Failure::new("usage", message).hint(suggestion::suggestion(error, command).unwrap_or_else(help)).exit(exit)
}

/// Names the argument that is not UTF-8.
fn not_utf8(word: &OsString, failure: Failure) -> Failure {
    Failure { message: format!("the argument {} is not UTF-8", EscapedName(word.as_bytes())), ..failure }
}

// === impl EarlyExit ===

impl EarlyExit {
    /// Prints it, and returns the exit code.
    pub(crate) fn finish(self) -> ExitCode {
        match self {
            Self::Printed(text) => match crate::write_stdout(text.as_bytes()) {
                Ok(code) => code.into(),
                Err(failure) => {
                    failure.report(false);
                    failure.exit.into()
                }
            },
            Self::Invalid(failure, json) => {
                failure.report(json);
                failure.exit.into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_image::ImageRef;

    use super::*;
    use crate::arguments::RunArguments;

    fn parsed(words: &[&str]) -> Result<CarrelArguments, EarlyExit> {
        parse(std::iter::once("carrel").chain(words.iter().copied()).map(OsString::from))
    }

    fn run(words: &[&str]) -> RunArguments {
        match parsed(words).unwrap().command {
            CarrelCommand::Run(run) => *run,
            other => panic!("{other:?}"),
        }
    }

    fn refused(words: &[&str]) -> (String, u8) {
        match parsed(words).unwrap_err() {
            EarlyExit::Invalid(failure, _) => {
                (format!("{} | {}", failure.message, failure.hint.unwrap_or_default()), failure.exit)
            }
            EarlyExit::Printed(text) => panic!("{text}"),
        }
    }

    #[test]
    fn the_command_follows_the_image() {
        for words in [&["run", "host", "--", "ls", "-l", "--", "x"][..], &["run", "host", "ls", "-l", "--", "x"]] {
            let run = run(words);
            assert_eq!(run.image, ImageRef::Host);
            assert_eq!(run.command, ["ls", "-l", "--", "x"], "{words:?}");
        }
        assert_eq!(run(&["run", "host", "--", "--json"]).command, ["--json"]);
        assert_eq!(run(&["run", "./root", "env", "--memory", "x"]).command, ["env", "--memory", "x"]);
    }

    #[test]
    fn the_command_of_a_job_follows_the_sandbox() {
        for words in [&["exec", "-it", "web", "--", "ls", "-d"][..], &["exec", "-it", "web", "ls", "-d"]] {
            let CarrelCommand::Exec(exec) = parsed(words).unwrap().command else { panic!("{words:?}") };
            assert_eq!((exec.name.as_str(), exec.detach, exec.interactive, exec.tty), ("web", false, true, true));
            assert_eq!(exec.command, ["ls", "-d"]);
        }
        assert_eq!(refused(&["exec", "web"]).1, 125);
        assert!(refused(&["--json", "exec", "web"]).0.ends_with(" | carrel exec --help"));
        assert_eq!(refused(&["attach"]).1, 125);
        let expected =
            "invalid value '../x' for '[JOB]': not a job id; `carrel ps NAME` lists jobs | carrel logs --help";
        assert_eq!(refused(&["logs", "web", "../x"]), (expected.to_owned(), 2));
    }

    #[test]
    fn aliases_are_the_same_commands() {
        assert!(matches!(parsed(&["ls"]).unwrap().command, CarrelCommand::Ps(_)));
        assert!(matches!(parsed(&["top"]).unwrap().command, CarrelCommand::Stats(_)));
        let CarrelCommand::Stop(stop) = parsed(&["stop", "--time", "0", "web"]).unwrap().command else {
            panic!("not a stop command")
        };
        assert_eq!(stop.time, Some(std::time::Duration::ZERO));
    }

    //= promises.command.defaults
    #[test]
    fn the_defaults_are_safe() {
        let run = run(&["run", "host", "true"]);
        assert_eq!((run.pids, run.disk.0), (1024, 1 << 30));
        assert!(!run.allow_unenforced_limits && run.mounts.is_empty() && run.env.is_empty());
    }

    #[test]
    fn a_usage_error_is_one_line_with_a_hint() {
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
            ("unrecognized subcommand 'rum' | did you mean carrel run or carrel rm?".to_owned(), 2)
        );
        assert_eq!(refused(&[]), ("no command given | carrel --help".to_owned(), 2));
        assert_eq!(refused(&["image"]), ("no command given | carrel image --help".to_owned(), 2));
        assert!(refused(&["image", "pull"]).0.ends_with(" | carrel image pull --help"));
        assert_eq!(refused(&["run", "--keep-changes", "x", "host", "true"]).1, 125);
        assert!(refused(&["run", "a b", "true"]).0.contains("\"a b\" is not an image"));
    }

    #[test]
    fn the_suggestion_is_the_nearest_command_or_option() {
        let hint = |words: &[&str]| refused(words).0.split_once(" | ").map(|(_, hint)| hint.to_owned()).unwrap();
        assert_eq!(hint(&["runn", "host"]), "did you mean carrel run?");
        assert_eq!(hint(&["image", "pul", "x"]), "did you mean carrel image pull?");
        assert_eq!(hint(&["images"]), "carrel image ls");
        assert_eq!(hint(&["zzz"]), "carrel --help");
        assert_eq!(hint(&["up"]), "carrel --help");
        assert_eq!(hint(&["run", "--memroy", "1G", "host"]), "did you mean --memory?");
        for option in ["--publish", "--publish=8080:80"] {
            let answer = hint(&["run", option, "8080:80", "host"]);
            assert!(answer.starts_with("carrel create --port HOST:INSIDE") && !answer.contains("--pull"), "{answer}");
        }
        for option in ["-p", "--publish"] {
            assert!(hint(&["create", option, "8080:80", "host"]).starts_with("--port HOST:INSIDE"), "{option}");
        }
        for (command, option) in [("run", "-v"), ("run", "--volume"), ("create", "-v")] {
            assert!(hint(&[command, option, "/a:/b", "host"]).starts_with("--mount SRC:DST"), "{command} {option}");
        }
        assert!(hint(&["create", "-it", "host"]).contains("carrel exec -it"));
        assert!(hint(&["run", "-d", "host"]).starts_with("carrel create"));
        assert_eq!(hint(&["ps", "--nonsense"]), "carrel ps --help");
        assert_eq!(hint(&["run", "--pull", "nevr", "host"]), "did you mean never?");
    }

    #[test]
    fn words_of_docker_have_an_answer() {
        let hint = |words: &[&str]| refused(words).0.split_once(" | ").map(|(_, hint)| hint.to_owned()).unwrap();
        for (words, answer) in [
            (&["list"][..], "carrel ls"),
            (&["delete", "web"], "carrel rm "),
            (&["shell", "web"], "carrel exec -it "),
            (&["pause", "web"], "carrel stop "),
            (&["rename", "web", "desk"], "carrel create --name "),
            (&["tag", "a", "b"], "carrel image save "),
            (&["image", "list"], "carrel image ls"),
            (&["image", "load"], "carrel image import "),
            (&["help", "image", "list"], "carrel image ls"),
            (&["logs", "-n", "5", "web"], "--tail "),
            (&["run", "--network", "none", "host"], "leave it out: "),
            (&["create", "--network=none", "host"], "leave it out: "),
            (&["create", "--isolation", "gvisor", "host"], "leave it out: only `carrel run` has it"),
            (&["create", "--project", ".", "host"], "leave it out: only `carrel run` has it"),
            (&["create", "--hostname", "x", "host"], "leave it out: only `carrel run` has it"),
        ] {
            assert!(hint(words).starts_with(answer), "{words:?}: {}", hint(words));
        }
    }

    #[test]
    fn options_of_docker_are_accepted() {
        let run = run(&["run", "--rm", "-it", "host", "sh"]);
        assert!(run.interactive && run.tty);
        let CarrelCommand::Ps(ps) = parsed(&["ps", "-a"]).unwrap().command else { panic!("not a ps command") };
        let CarrelCommand::Rm(remove) = parsed(&["rm", "-f", "web"]).unwrap().command else {
            panic!("not an rm command")
        };
        assert!(ps.all && remove.force);
    }

    #[test]
    fn the_help_command_prints_the_same_as_the_help_option() {
        let answered = |words: &[&str]| match parsed(words).unwrap_err() {
            EarlyExit::Printed(text) => text,
            EarlyExit::Invalid(failure, _) => panic!("{words:?}: {failure:?}"),
        };
        for path in [&[][..], &["run"], &["ls"], &["image"], &["image", "pull"], &["store", "check"], &["help"]] {
            let (before, after) = ([&["help"], path].concat(), [path, &["--help"]].concat());
            assert_eq!(answered(&before), answered(&after), "{path:?}");
        }
        for path in [&["image"][..], &["image", "pull"], &["store", "check"]] {
            let (command, sub) = path.split_at(1);
            let help = [command, &["help"], sub].concat();
            assert_eq!(answered(&help), answered(&[path, &["--help"]].concat()), "{help:?}");
        }
        assert_eq!(
            refused(&["image", "help", "pul"]),
            ("unrecognized subcommand 'pul' | did you mean carrel image pull?".to_owned(), 2)
        );
        assert_eq!(
            refused(&["help", "image", "pul"]),
            ("unrecognized subcommand 'pul' | did you mean carrel image pull?".to_owned(), 2)
        );
        assert_eq!(refused(&["help", "run", "host"]).0, "unrecognized subcommand 'host' | carrel run --help");
    }

    #[test]
    fn the_version_is_printed_as_json_on_request() {
        let printed = |words: &[&str]| match parsed(words).unwrap_err() {
            EarlyExit::Printed(text) => text,
            EarlyExit::Invalid(failure, _) => panic!("{words:?}: {failure:?}"),
        };
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(printed(&["--version"]), format!("carrel {version}\n"));
        for words in [["--json", "--version"], ["--version", "--json"]] {
            assert_eq!(printed(&words), format!("{{\"version\":\"{version}\"}}\n"));
        }
    }

    /// All commands, with their paths.
    fn commands(command: &clap::Command) -> Vec<clap::Command> {
        let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        std::iter::once(command.clone()).chain(visible.flat_map(commands)).collect()
    }

    #[test]
    fn every_command_has_the_same_layout_of_help() {
        let mut definition = help::definition_for(None);
        definition.build();
        for mut command in commands(&definition).into_iter().skip(1) {
            let path = command.get_bin_name().unwrap().to_owned();
            let words = path.split(' ').chain(["--help"]).map(OsString::from).collect();
            let EarlyExit::Printed(text) = parse_as(words, help::definition_for(None)).unwrap_err() else {
                panic!("{path}")
            };
            assert_eq!(text, command.render_help().to_string(), "{path}");
        }
    }

    #[test]
    fn an_example_fits_a_terminal_of_80_columns() {
        let mut definition = help::definition_for(None);
        definition.build();
        for mut command in commands(&definition) {
            let text = command.render_help().to_string();
            let examples = text.split_once("Examples:\n").map_or("", |(_, examples)| examples);
            for line in examples.lines() {
                assert!(line.chars().count() <= 78, "{:?}: {line}", command.get_bin_name());
            }
        }
    }

    #[test]
    fn help_is_as_wide_as_the_terminal() {
        let widest = |columns| {
            let mut definition = help::definition_for(columns);
            definition.build();
            let commands = ["run", "create", "exec", "cp", "serve", "apply"];
            let widths = commands.map(|name| {
                let text = definition.find_subcommand_mut(name).unwrap().render_help().to_string();
                // Examples are not wrapped, and no line is broken within a word.
                let prose = text.split("Examples:").next().unwrap_or_default().lines();
                prose.filter(|line| line.trim().contains(' ')).map(|line| line.chars().count()).max().unwrap_or(0)
            });
            widths.into_iter().max().unwrap_or(0)
        };
        assert!(widest(Some(60)) <= 60, "{}", widest(Some(60)));
        assert!((61..=100).contains(&widest(Some(200))) && widest(None) == widest(Some(100)), "{}", widest(None));
    }

    #[test]
    fn an_argument_that_is_not_utf8_is_named() {
        let word = |bytes: &[u8]| OsString::from(OsStr::from_bytes(bytes));
        let refused = |option: &str, value: &[u8]| {
            let words = [word(b"carrel"), word(b"run"), word(option.as_bytes()), word(value)];
            match parse(words.into_iter().chain([word(b"host"), word(b"true")])).unwrap_err() {
                EarlyExit::Invalid(failure, _) => failure.message,
                EarlyExit::Printed(text) => panic!("{text}"),
            }
        };
        assert_eq!(refused("--name", b"a\xff"), "the argument a\\xff is not UTF-8");
        assert_eq!(
            refused("--env", b"KEY=a\xff"),
            "invalid value 'KEY=a\u{fffd}' for '--env <KEY[=VALUE]>': a variable and its value must be UTF-8"
        );
        // A path need not be UTF-8.
        let words = [&b"carrel"[..], b"run", b"--mount", b"/a\xff:/b\xfe:rw", b"--project", b"\xff", b"host", b"true"];
        let CarrelCommand::Run(run) = parse(words.map(word)).unwrap().command else { panic!("not a run command") };
        assert_eq!(run.mounts.first().unwrap().source.as_os_str().as_bytes(), b"/a\xff");
    }
}
