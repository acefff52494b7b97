//! Words about jobs: `carrel exec`, `carrel attach`, `carrel logs`.

use std::ffi::OsString;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::parsers::bytes;
use crate::environment::Variable;
use crate::size::Time;

/// The keys that leave a job, unless others are given.
pub(super) const DETACH_KEYS: &str = "ctrl-p,ctrl-q";
/// The longest id of a job.
const LONGEST_JOB: usize = 220;

/// `carrel exec`.
#[derive(Args, Debug)]
#[command(override_usage = "carrel exec [OPTIONS] <NAME> -- <CMD>...", after_help = EXEC_HELP)]
pub(crate) struct ExecArguments {
    /// Pass standard input on, which is the default; with --detach, leave it open for `carrel attach`
    #[arg(short, long, conflicts_with = "no_stdin")]
    pub(crate) interactive: bool,
    /// Give the command an empty standard input, and leave ours alone
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// Give it a terminal [default: if standard input and output are one]
    #[arg(short, long, conflicts_with = "no_tty")]
    pub(crate) tty: bool,
    /// Give it no terminal
    #[arg(long)]
    pub(crate) no_tty: bool,
    /// Start it, print the id of its job, and leave it alone
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// An id for its job: the same again attaches instead of running twice [default: a new one]
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub(crate) job: Option<String>,
    /// Set a variable, or pass one on from this environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = OsStringValueParser::new().try_map(Variable::parse))]
    pub(crate) env: Vec<Variable>,
    /// Where the command starts
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Who it runs as inside: a name or a number, with or without a group [default: root; in one that stays, its own user]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// End it after a time, such as 30s or 5m, with exit code 124
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Time>,
    /// Keys that leave the command running and end this one; none if empty
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: String,
    /// Say nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The sandbox
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

const EXEC_HELP: &str = "\
The command is a job of the sandbox: it goes on when this one is killed or its terminal is gone.

Exit codes: the command's own; 128 + n if signal n ended it; 124 after --timeout; 125 if it could not be run at all; \
126 if the command cannot be executed; 127 if there is no such command.

Examples:
  carrel exec web -- ps aux
  carrel exec --detach --job build web -- make
  carrel logs -f web build";

/// `carrel attach`.
#[derive(Args, Debug)]
pub(crate) struct AttachArguments {
    /// Only look: take no part in its input
    #[arg(long, conflicts_with = "take_over")]
    pub(crate) read_only: bool,
    /// Take its input from whoever holds it
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Begin with what it writes from now on, instead of what it wrote before
    #[arg(long)]
    pub(crate) no_replay: bool,
    /// Keys that leave the job running and end this one; none if empty
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: String,
    /// Say nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The sandbox
    pub(crate) name: String,
    /// The job [default: the only one that runs, or `run`, the command of `carrel run`]
    #[arg(value_parser = job_id)]
    pub(crate) job: Option<String>,
}

/// `carrel logs`.
#[derive(Args, Debug)]
pub(crate) struct LogsArguments {
    /// Go on until the job has ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only its standard output
    #[arg(long, conflicts_with = "stderr")]
    pub(crate) stdout: bool,
    /// Only its standard error
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Show only the last lines of each output
    #[arg(long, value_name = "LINES", conflicts_with = "from")]
    pub(crate) tail: Option<u64>,
    /// Begin with this byte of each output, counted from 0
    #[arg(long, value_name = "BYTE", value_parser = bytes)]
    pub(crate) from: Option<u64>,
    /// The sandbox
    pub(crate) name: String,
    /// The job [default: the only one that runs, or `run`, the command of `carrel run`]
    #[arg(value_parser = job_id)]
    pub(crate) job: Option<String>,
}

/// Text that is no id of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadJobId;

/// The id of a job, as a supervisor takes it.
pub(super) fn job_id(text: &str) -> Result<String, BadJobId> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~');
    let fits = (1..=LONGEST_JOB).contains(&text.len()) && !text.starts_with('.') && text.chars().all(plain);
    if fits { Ok(text.to_owned()) } else { Err(BadJobId) }
}

// === impl BadJobId ===

impl std::fmt::Display for BadJobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a job has an id of 1 to {LONGEST_JOB} letters, digits, `-`, `_`, `.` or `~`, not beginning with `.`")
    }
}

impl std::error::Error for BadJobId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_job_is_what_a_supervisor_takes() {
        for id in ["a", "run", "exec-0123abcd", "A_b.c-9", &"x".repeat(LONGEST_JOB)] {
            assert_eq!(job_id(id).as_deref(), Ok(id));
        }
        for id in ["", ".", "..", ".a", "a/b", "a b", "ä", &"x".repeat(LONGEST_JOB + 1)] {
            assert_eq!(job_id(id), Err(BadJobId), "{id}");
        }
    }
}
