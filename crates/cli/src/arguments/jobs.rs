//! Arguments of `exec`, `attach` and `logs`.

use std::ffi::OsString;

use carrel_units::TimeSpan;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::parsers::{bytes, positive_span};
use crate::environment::Variable;

/// The default keys that detach from a job.
pub(super) const DETACH_KEYS: &str = "ctrl-p,ctrl-q";
/// The longest id that a job can have.
const LONGEST_JOB: usize = 220;

/// `carrel exec`.
#[derive(Args, Debug)]
#[command(override_usage = "carrel exec [OPTIONS] <NAME> -- <CMD>...", after_help = EXEC_HELP)]
pub(crate) struct ExecArguments {
    /// Forward standard input, which is the default; with --detach, keep it open for `carrel attach`
    #[arg(short, long, conflicts_with = "no_stdin")]
    pub(crate) interactive: bool,
    /// Give the command an empty standard input
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// Allocate a terminal [default: if standard input and output are terminals]
    #[arg(short, long, conflicts_with = "no_tty")]
    pub(crate) tty: bool,
    /// Do not allocate a terminal
    #[arg(long)]
    pub(crate) no_tty: bool,
    /// Start the command, print the id of its job, and exit
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Id for the job; a retry with the same id attaches instead of running twice [default: a new id]
    #[arg(long, value_name = "ID", value_parser = new_job_id)]
    pub(crate) job: Option<String>,
    /// Set an environment variable, or pass one through from this environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = OsStringValueParser::new().try_map(Variable::parse))]
    pub(crate) env: Vec<Variable>,
    /// Working directory of the command
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User inside, by name or number, with an optional group [default: root; in a persistent sandbox, its user]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// Kill the command after a time, such as 30s or 5m, with exit code 124
    #[arg(long, value_name = "TIME", value_parser = positive_span)]
    pub(crate) timeout: Option<TimeSpan>,
    /// Keys that detach from the command and leave it running; empty for none
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: String,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Name of the sandbox
    pub(crate) name: String,
    /// Command and arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

const EXEC_HELP: &str = "\
The command is a job of the sandbox: it continues if `carrel exec` is killed or its terminal closes.

Exit codes: that of the command; 128 + n if signal n killed it; 124 after --timeout; 125 if it could not be started; \
126 if the command cannot be executed; 127 if the command is not found.

Examples:
  carrel exec web -- ps aux
  carrel exec --detach --job build web -- make
  carrel logs -f web build";

/// `carrel attach`.
#[derive(Args, Debug)]
pub(crate) struct AttachArguments {
    /// Show output only, and send no input
    #[arg(long, conflicts_with = "take_over")]
    pub(crate) read_only: bool,
    /// Take over input from the client that has it
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Show only new output, and not what the job wrote before
    #[arg(long)]
    pub(crate) no_replay: bool,
    /// Keys that detach from the job and leave it running; empty for none
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: String,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Name of the sandbox
    pub(crate) name: String,
    /// Id of the job [default: the only running one, or `run`, the command of `carrel run`]
    #[arg(value_parser = job_id)]
    pub(crate) job: Option<String>,
}

/// `carrel logs`.
#[derive(Args, Debug)]
pub(crate) struct LogsArguments {
    /// Follow output until the job exits
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Show only standard output
    #[arg(long, conflicts_with = "stderr")]
    pub(crate) stdout: bool,
    /// Show only standard error
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Show only the last lines of each stream
    #[arg(long, value_name = "LINES", conflicts_with = "from")]
    pub(crate) tail: Option<u64>,
    /// Start at this byte of each stream, counted from 0
    #[arg(long, value_name = "BYTE", value_parser = bytes)]
    pub(crate) from: Option<u64>,
    /// Name of the sandbox
    pub(crate) name: String,
    /// Id of the job [default: the only running one, or `run`, the command of `carrel run`]
    #[arg(value_parser = job_id)]
    pub(crate) job: Option<String>,
}

/// Text that is not the id of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidJobId;

/// Parses an id for a new job, which must be a valid exec id in any sandbox.
fn new_job_id(text: &str) -> Result<String, carrel_store::InvalidId> {
    carrel_store::ExecId::new(text).map(|id| id.as_str().to_owned())
}

/// Parses the id of an existing job: other clients and Carrel itself may choose shorter ids.
pub(super) fn job_id(text: &str) -> Result<String, InvalidJobId> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~');
    let fits = (1..=LONGEST_JOB).contains(&text.len()) && !text.starts_with('.') && text.chars().all(plain);
    if fits { Ok(text.to_owned()) } else { Err(InvalidJobId) }
}

// === impl InvalidJobId ===

impl std::fmt::Display for InvalidJobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a job id; `carrel ps NAME` lists jobs")
    }
}

impl std::error::Error for InvalidJobId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_job_id_must_be_a_valid_exec_id() {
        for id in ["build", "exec-0123abcd", "A_b9"] {
            assert_eq!(new_job_id(id).as_deref(), Ok(id));
        }
        for id in ["", "run", "a.b.c", "-build", "build_", &"x".repeat(201)] {
            let refused = new_job_id(id).unwrap_err().to_string();
            assert!(refused.contains("4 to 200 letters, digits, `-` or `_`"), "{refused}");
        }
    }

    #[test]
    fn the_id_of_an_existing_job_is_what_a_shim_accepts() {
        for id in ["a", "run", "exec-0123abcd", "A_b.c-9", &"x".repeat(LONGEST_JOB)] {
            assert_eq!(job_id(id).as_deref(), Ok(id));
        }
        for id in ["", ".", "..", ".a", "a/b", "a b", "ä", &"x".repeat(LONGEST_JOB + 1)] {
            assert_eq!(job_id(id), Err(InvalidJobId), "{id}");
        }
    }
}
