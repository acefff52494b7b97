//! Suggestions for unknown commands and options: the equivalent of a Docker command, or the nearest name.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 2;

/// Commands of Docker, and their equivalents.
const DOCKER_COMMANDS: [(&str, &str); 25] = [
    ("build", "carrel image save SANDBOX NAME saves a sandbox as an image; carrel image import imports an image"),
    ("commit", "carrel image save SANDBOX NAME"),
    ("container", "carrel ps lists sandboxes; carrel --help lists all commands"),
    ("delete", "carrel rm NAME"),
    ("history", "carrel image inspect IMAGE"),
    ("images", "carrel image ls"),
    ("info", "carrel doctor"),
    ("kill", "carrel stop --time 0 NAME"),
    ("list", "carrel ls"),
    ("load", "carrel image import FILE NAME"),
    ("login", "carrel uses the credentials of `docker login` and `podman login`"),
    ("pause", "carrel stop NAME; a persistent sandbox keeps its files, and carrel resume NAME resumes it"),
    ("port", "carrel get NAME shows published ports"),
    ("pull", "carrel image pull IMAGE"),
    ("push", "carrel image save --push SANDBOX NAME"),
    ("rename", "carrel create --name NAME IMAGE names a new sandbox; the name of an existing one cannot be changed"),
    ("restart", "carrel stop NAME && carrel resume NAME"),
    ("rmi", "carrel image rm IMAGE"),
    ("save", "carrel image save SANDBOX NAME"),
    ("shell", "carrel exec -it NAME -- sh"),
    ("start", "carrel resume NAME"),
    ("system", "carrel df shows disk usage; carrel prune removes unused images"),
    ("tag", TAG),
    ("unpause", "carrel resume NAME"),
    ("wait", "carrel logs --follow NAME JOB returns when the job has exited"),
];

/// Commands of `docker image`, and their equivalents.
const DOCKER_IMAGE_COMMANDS: [(&str, &str); 9] = [
    ("build", "carrel image save SANDBOX NAME saves a sandbox as an image; carrel image import imports an image"),
    ("delete", "carrel image rm IMAGE"),
    ("history", "carrel image inspect IMAGE"),
    ("list", "carrel image ls"),
    ("load", "carrel image import FILE NAME"),
    ("prune", "carrel prune removes unused images"),
    ("push", "carrel image save --push SANDBOX NAME"),
    ("remove", "carrel image rm IMAGE"),
    ("tag", TAG),
];

/// The hint for naming images.
const TAG: &str = "carrel image save SANDBOX NAME and carrel image import FILE NAME name an image";

/// Options of Docker, the commands that lack them, and their equivalents.
const DOCKER_OPTIONS: [(&[&str], &[&str], &str); 12] = [
    (&["-p", "--publish", "--port", "-P", "--publish-all"], &["run", "exec"], PUBLISH),
    (
        &["-p", "--publish", "-P", "--publish-all"],
        &["create"],
        "--port HOST:INSIDE publishes a port, such as --port 8080:80",
    ),
    (
        &["-v", "--volume", "--volumes-from", "--tmpfs"],
        &["run", "create"],
        "--mount SRC:DST[:ro|rw|copy] mounts a path of the host",
    ),
    (
        &["-d", "--detach"],
        &["run"],
        "carrel create IMAGE -- CMD runs a command in the background, in a persistent sandbox",
    ),
    (&["-d", "--detach"], &["create"], "leave it out: a persistent sandbox always runs in the background"),
    (&["-i", "-t", "--interactive", "--tty"], &["create"], "leave it out: carrel exec -it NAME -- sh opens a terminal"),
    (
        &["--rm"],
        &["create"],
        "leave it out: carrel rm --force NAME removes a persistent sandbox, carrel run creates an ephemeral one",
    ),
    (&["--cidfile"], &["run", "create"], "--name NAME gives the sandbox a name of your choice"),
    (&["--pids-limit"], &["run", "create"], "--pids COUNT"),
    (&["-n"], &["logs"], "--tail LINES"),
    (
        &["--network", "--net"],
        &["run", "create"],
        "leave it out: the network of a sandbox is its loopback interface only",
    ),
    (&["--isolation", "--project", "--hostname"], &["create"], "leave it out: only `carrel run` has it"),
];

/// The hint for publishing ports.
pub(crate) const PUBLISH: &str = "carrel create --port HOST:INSIDE IMAGE -- CMD publishes a port, such as --port 8080:80; an ephemeral sandbox has no ports";

/// A suggestion for a usage error.
pub(super) fn suggestion(error: &clap::Error, command: &Command) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => for_command(invalid_subcommand(error)?, command),
        ErrorKind::UnknownArgument => {
            let word = context(error, ContextKind::InvalidArg)?;
            docker_option(word, command.get_name()).map(str::to_owned).or_else(|| similar_options(word, command))
        }
        ErrorKind::InvalidValue => similar_values(error),
        _ => None,
    }
}

/// The word that is not a subcommand, if that is the error.
pub(super) fn invalid_subcommand(error: &clap::Error) -> Option<&str> {
    context(error, ContextKind::InvalidSubcommand).filter(|_| error.kind() == ErrorKind::InvalidSubcommand)
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        _ => None,
    }
}

/// A suggestion for a word that is not a subcommand of `command`.
pub(super) fn for_command(word: &str, command: &Command) -> Option<String> {
    let known: &[(&str, &str)] = match command.get_name() {
        "carrel" => &DOCKER_COMMANDS,
        "image" => &DOCKER_IMAGE_COMMANDS,
        _ => &[],
    };
    let answer = known.iter().find(|(docker, _)| *docker == word);
    answer.map(|(_, answer)| (*answer).to_owned()).or_else(|| similar_commands(word, command))
}

/// The equivalent of an option of Docker.
fn docker_option(word: &str, command: &str) -> Option<&'static str> {
    let lacks = |(words, commands, _): &&(&[&str], &[&str], &str)| words.contains(&word) && commands.contains(&command);
    DOCKER_OPTIONS.iter().find(lacks).map(|(_, _, answer)| *answer)
}

fn similar_commands(word: &str, command: &Command) -> Option<String> {
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let names = visible.flat_map(|sub| std::iter::once(sub.get_name()).chain(sub.get_visible_aliases()));
    let path = command.get_bin_name().unwrap_or(command.get_name());
    shown(nearest(word, names), |name| format!("{path} {name}"))
}

fn similar_options(word: &str, command: &Command) -> Option<String> {
    let word = word.strip_prefix("--")?;
    let visible = command.get_arguments().filter(|argument| !argument.is_hide_set());
    shown(nearest(word, visible.filter_map(clap::Arg::get_long)), |name| format!("--{name}"))
}

fn similar_values(error: &clap::Error) -> Option<String> {
    let (Some(ContextValue::String(word)), Some(ContextValue::Strings(values))) =
        (error.get(ContextKind::InvalidValue), error.get(ContextKind::ValidValue))
    else {
        return None;
    };
    shown(nearest(word, values.iter().map(String::as_str)), str::to_owned)
}

/// The words within a small edit distance, the nearest first.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // Any two words of two letters are one edit apart if they share one.
    let most = match word.chars().count() {
        0..3 => 0,
        length => (length / 4).max(1),
    };
    let mut near: Vec<(usize, &str)> = known
        .map(|known| (strsim::osa_distance(word, known), known))
        .filter(|(distance, known)| *distance <= most && *distance < known.chars().count())
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    // Words further away than the nearest are dropped.
    let best = near.first().map(|(distance, _)| *distance);
    near.into_iter()
        .filter(|(distance, _)| Some(*distance) == best)
        .map(|(_, known)| known)
        .take(MAX_SUGGESTIONS)
        .collect()
}

fn shown(near: Vec<&str>, show: impl Fn(&str) -> String) -> Option<String> {
    let near: Vec<String> = near.into_iter().map(show).collect();
    (!near.is_empty()).then(|| format!("did you mean {}?", near.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_words_have_the_smallest_edit_distance() {
        let known = ["run", "prune", "rm", "resume", "ps", "pull", "port"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(near("runn"), ["run"]);
        assert_eq!(near("rum"), ["run", "rm"]);
        assert_eq!(near("rnu"), ["run"]);
        assert_eq!(near("resmue"), ["resume"]);
        assert!(near("up").is_empty() && near("rename").is_empty(), "another word");
        assert!(near("publish").is_empty() && near("x").is_empty() && near("").is_empty());
    }
}
