//! The image of a run, and its defaults for commands.

use std::ffi::OsString;
use std::io::IsTerminal;

use carrel_fetch::{FetchError, Image};
use carrel_image::{ImageRef, RootFs};
use carrel_layers::ImageConfig;
use carrel_shim_client::Programs;

use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::images;
use crate::images::progress::ImageProgress;

/// Pulls the image if necessary, and ensures that its working directory exists.
pub(super) fn prepare(
    arguments: &RunArguments,
    home: &CarrelHome,
    programs: &Programs,
    quiet: bool,
) -> Result<Image, Failure> {
    images::check_root(&arguments.image)?;
    // The host image needs no store.
    let mut image = match &arguments.image {
        reference @ ImageRef::Host => Image::from(RootFs::resolve(reference).map_err(FetchError::from)?),
        reference => {
            // A local file is imported quickly, so a program needs no progress.
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

/// The user of the command.
pub(super) fn user<'a>(arguments: &'a RunArguments, image: &'a Image) -> Option<&'a str> {
    arguments.user.as_deref().or(image.config.user.as_deref())
}

/// The command line: the entrypoint, followed by the given command or the default command of the image.
pub(super) fn command_words(arguments: &RunArguments, config: &ImageConfig) -> Result<Vec<OsString>, Failure> {
    let entrypoint = match &arguments.entrypoint {
        Some(text) => images::split_words(text).ok_or_else(|| images::unclosed_quote("--entrypoint", text))?,
        None => config.entrypoint.clone(),
    };
    let all = entrypoint.into_iter().map(OsString::from);
    // Another entrypoint drops the default command, as in Docker.
    let default: &[String] = if arguments.entrypoint.is_some() { &[] } else { &config.cmd };
    let all: Vec<OsString> = match arguments.command.is_empty() {
        true => all.chain(default.iter().map(OsString::from)).collect(),
        false => all.chain(arguments.command.iter().cloned()).collect(),
    };
    if all.is_empty() {
        let message = format!("no command given, and the image {} has no default command", arguments.image);
        return Err(Failure::new("no_command", message).hint(format!("carrel run {} -- CMD", arguments.image)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::CarrelCommand;

    fn command(words: &[&str], config: &ImageConfig) -> Result<Vec<OsString>, Failure> {
        let words = ["carrel", "run"].iter().chain(words).map(OsString::from);
        let CarrelCommand::Run(arguments) = crate::usage::parse(words).unwrap().command else {
            panic!("not a run command")
        };
        command_words(&arguments, config)
    }

    fn of(entrypoint: &[&str], cmd: &[&str]) -> ImageConfig {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        ImageConfig { entrypoint: owned(entrypoint), cmd: owned(cmd), ..ImageConfig::default() }
    }

    #[test]
    fn the_entrypoint_precedes_the_command_or_the_default_command() {
        let both = of(&["run", "it"], &["default"]);
        assert_eq!(command(&["x"], &both).unwrap(), ["run", "it", "default"]);
        assert_eq!(command(&["x", "--", "a", "b"], &both).unwrap(), ["run", "it", "a", "b"]);
        assert_eq!(command(&["--entrypoint", "sh -c", "x", "--", "a b"], &both).unwrap(), ["sh", "-c", "a b"]);
        assert_eq!(command(&["--entrypoint", "", "x", "--", "a"], &both).unwrap(), ["a"]);
        assert_eq!(command(&["--entrypoint", "sh", "x"], &both).unwrap(), ["sh"]);
        assert_eq!(command(&["x"], &of(&[], &["default"])).unwrap(), ["default"]);
    }

    #[test]
    fn a_missing_command_is_reported() {
        for words in [&["host"][..], &["--entrypoint", "", "host"]] {
            let failure = command(words, &of(&[], &[])).unwrap_err();
            assert_eq!(failure.message, "no command given, and the image host has no default command");
            assert_eq!(failure.hint.as_deref(), Some("carrel run host -- CMD"));
        }
        assert!(command(&["--entrypoint", "'", "host"], &of(&[], &[])).is_err());
    }

    #[test]
    fn the_given_user_overrides_that_of_the_image() {
        let words = ["carrel", "run", "host", "true"].map(OsString::from);
        let CarrelCommand::Run(mut arguments) = crate::usage::parse(words).unwrap().command else {
            panic!("not a run command")
        };
        let mut image = Image::from(RootFs::default());
        assert_eq!(user(&arguments, &image), None);
        image.config.user = Some("node".to_owned());
        assert_eq!(user(&arguments, &image), Some("node"));
        arguments.user = Some("0".to_owned());
        assert_eq!(user(&arguments, &image), Some("0"));
    }
}
