//! The image of a run, and what it says about how commands are run.

use std::ffi::OsString;
use std::io::IsTerminal;

use carrel_fetch::{FetchError, Image};
use carrel_image::{ImageRef, RootFs};
use carrel_layers::Config;
use carrel_shim_client::Programs;

use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::images;
use crate::images::progress::ImageProgress;

/// The image, fetched if need be, with the directory in it that commands start in.
pub(super) fn chosen(
    arguments: &RunArguments,
    home: &CarrelHome,
    programs: &Programs,
    quiet: bool,
) -> Result<Image, Failure> {
    // What needs no store is not kept waiting for one.
    let mut image = match &arguments.image {
        reference @ ImageRef::Host => Image::from(RootFs::resolve(reference).map_err(FetchError::from)?),
        reference => {
            // A file of this host is there soon, and a program that starts us need not hear of it.
            let is_file = reference.path().is_some() && !std::io::stderr().is_terminal();
            let progress = ImageProgress::new(&reference.to_string(), quiet || is_file);
            images::open(home, programs)?.get(reference, arguments.pull.into(), &progress)?
        }
    };
    let elsewhere = arguments.workdir.is_some() || arguments.project.is_some();
    if let (false, Some(workdir)) = (elsewhere, image.config.workdir.clone()) {
        image.ensure_directory(&workdir);
    }
    Ok(image)
}

/// Who the command runs as.
pub(super) fn user<'a>(arguments: &'a RunArguments, image: &'a Image) -> Option<&'a str> {
    arguments.user.as_deref().or(image.config.user.as_deref())
}

/// The words of the command: what was asked for, or what the image runs, behind what that begins every command with.
pub(super) fn words(arguments: &RunArguments, config: &Config) -> Result<Vec<OsString>, Failure> {
    let entrypoint = match &arguments.entrypoint {
        Some(text) => images::split_words(text).ok_or_else(|| images::unquoted("--entrypoint", text))?,
        None => config.entrypoint.clone(),
    };
    let all = entrypoint.into_iter().map(OsString::from);
    // What replaces the beginning of a command is not followed by the rest of another.
    let usual: &[String] = if arguments.entrypoint.is_some() { &[] } else { &config.cmd };
    let all: Vec<OsString> = match arguments.command.is_empty() {
        true => all.chain(usual.iter().map(OsString::from)).collect(),
        false => all.chain(arguments.command.iter().cloned()).collect(),
    };
    if all.is_empty() {
        let words = format!("there is nothing to run: the image {} names no command", arguments.image);
        return Err(Failure::new("no_command", words).hint(format!("carrel run {} -- CMD", arguments.image)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::CarrelCommand;

    fn said(words: &[&str], config: &Config) -> Result<Vec<OsString>, Failure> {
        let words = ["carrel", "run"].iter().chain(words).map(OsString::from);
        let CarrelCommand::Run(arguments) = crate::usage::parse(words).unwrap().command else { panic!("it is no run") };
        super::words(&arguments, config)
    }

    fn of(entrypoint: &[&str], cmd: &[&str]) -> Config {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Config { entrypoint: owned(entrypoint), cmd: owned(cmd), ..Config::default() }
    }

    #[test]
    fn what_an_image_begins_commands_with_stands_before_the_words_or_what_it_runs() {
        let both = of(&["run", "it"], &["usual"]);
        assert_eq!(said(&["x"], &both).unwrap(), ["run", "it", "usual"]);
        assert_eq!(said(&["x", "--", "a", "b"], &both).unwrap(), ["run", "it", "a", "b"]);
        assert_eq!(said(&["--entrypoint", "sh -c", "x", "--", "a b"], &both).unwrap(), ["sh", "-c", "a b"]);
        assert_eq!(said(&["--entrypoint", "", "x", "--", "a"], &both).unwrap(), ["a"]);
        assert_eq!(said(&["--entrypoint", "sh", "x"], &both).unwrap(), ["sh"]);
        assert_eq!(said(&["x"], &of(&[], &["usual"])).unwrap(), ["usual"]);
    }

    #[test]
    fn where_there_is_nothing_to_run_that_is_told() {
        for words in [&["host"][..], &["--entrypoint", "", "host"]] {
            let failure = said(words, &of(&[], &[])).unwrap_err();
            assert_eq!(failure.message, "there is nothing to run: the image host names no command");
            assert_eq!(failure.hint.as_deref(), Some("carrel run host -- CMD"));
        }
        assert!(said(&["--entrypoint", "'", "host"], &of(&[], &[])).is_err());
    }

    #[test]
    fn a_user_that_is_asked_for_goes_before_that_of_the_image() {
        let words = ["carrel", "run", "host", "true"].map(OsString::from);
        let CarrelCommand::Run(mut arguments) = crate::usage::parse(words).unwrap().command else {
            panic!("it is no run")
        };
        let mut image = Image::from(RootFs::default());
        assert_eq!(user(&arguments, &image), None);
        image.config.user = Some("node".to_owned());
        assert_eq!(user(&arguments, &image), Some("node"));
        arguments.user = Some("0".to_owned());
        assert_eq!(user(&arguments, &image), Some("0"));
    }
}
