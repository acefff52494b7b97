//! Arguments of `run`.

use std::ffi::OsString;
use std::path::PathBuf;

use carrel_changes::ChangeName;
use carrel_image::ImageRef;
use carrel_sandbox::cgroup::CpuShare;
use carrel_units::{ByteSize, TimeSpan};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::images::{IMAGE, PullPolicyArgument};
use super::isolation::IsolationKind;
use super::jobs::DETACH_KEYS;
use super::parsers::{positive_size, positive_span};
use crate::environment::Variable;
use crate::mount::MountPair;

/// `carrel run`.
#[derive(Args, Debug)]
#[command(override_usage = "carrel run [OPTIONS] <IMAGE> [-- <CMD>...]", after_help = RUN_HELP)]
pub(crate) struct RunArguments {
    /// Mount a directory, file or socket of the host; read-only unless it ends in `:rw`, copied with `:copy`
    #[arg(long = "mount", value_name = "SRC:DST[:ro|rw|copy]", value_parser = OsStringValueParser::new().try_map(MountPair::parse))]
    pub(crate) mounts: Vec<MountPair>,
    /// Set an environment variable, or pass one through from this environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = OsStringValueParser::new().try_map(Variable::parse))]
    pub(crate) env: Vec<Variable>,
    /// Working directory of the command [default: /workspace with --project, else that of the image, else /]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User inside, by name or number, with an optional group [default: that of the image, else root]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// Memory limit, such as 512M or 2G [default: half of the host's memory]
    #[arg(short, long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) memory: Option<ByteSize>,
    /// CPU limit, such as 1.5 [default: all CPUs]
    #[arg(long, value_name = "CORES")]
    pub(crate) cpus: Option<CpuShare>,
    /// Limit on processes and threads
    #[arg(long, value_name = "COUNT", default_value_t = 1024)]
    pub(crate) pids: u32,
    /// Disk limit; files are stored in memory, and count towards the memory limit
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = positive_size)]
    pub(crate) disk: ByteSize,
    /// Isolation: namespaces, or gvisor, which has its own kernel and needs runsc
    #[arg(long, value_enum, default_value_t, value_name = "KIND", hide_possible_values = true)]
    pub(crate) isolation: IsolationKind,
    /// Kill the command after a time, such as 30s or 5m, with exit code 124
    #[arg(long, value_name = "TIME", value_parser = positive_span)]
    pub(crate) timeout: Option<TimeSpan>,
    /// Name of the sandbox, by which clients find its socket
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Host name inside the sandbox
    #[arg(long, value_name = "NAME", default_value = "carrel")]
    pub(crate) hostname: String,
    /// Mount a directory at /workspace as a copy-on-write layer; the directory itself does not change
    #[arg(short, long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Save changes to the project under this name, for `carrel diff` and `carrel apply`
    #[arg(long, value_name = "NAME", requires = "project")]
    pub(crate) keep_changes: Option<ChangeName>,
    /// Forward standard input, which is the default
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
    /// Keys that detach from the command and leave it running; empty for none
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: String,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Run even if this host cannot enforce a limit, and warn about each such limit
    #[arg(long)]
    pub(crate) allow_unenforced_limits: bool,
    /// When to pull the image: always, missing or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) pull: PullPolicyArgument,
    /// Prefix of the command, split into words as in a shell, instead of that of the image; '' for none
    #[arg(long, value_name = "WORDS")]
    pub(crate) entrypoint: Option<String>,
    /// Accepted for compatibility: the sandbox is always removed
    #[arg(long = "rm", hide = true)]
    pub(crate) _remove: bool,
    #[arg(help = IMAGE)]
    pub(crate) image: ImageRef,
    /// Command and arguments [default: those of the image]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

const RUN_HELP: &str = "\
Exit codes: that of the command; 128 + n if signal n killed it; 124 after --timeout; 125 if the sandbox failed; \
126 if the command cannot be executed; 127 if the command is not found.

Examples:
  carrel run host -- uname -a
  carrel run python:3.12 -- python -c 'print(6 * 7)'
  carrel run --project . --keep-changes try1 host -- make
  carrel run --memory 512M --timeout 30s host -- python3 -c 'print(6 * 7)'";
