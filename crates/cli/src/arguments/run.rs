//! Words of `carrel run`.

use std::ffi::OsString;
use std::path::PathBuf;

use carrel_changes::ChangeName;
use carrel_image::ImageRef;
use carrel_sandbox::cgroup::CpuShare;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::images::{IMAGE, PullPolicyArgument};
use super::isolation::IsolationKind;
use super::jobs::DETACH_KEYS;
use crate::environment::Variable;
use crate::mount::MountPair;
use crate::size::{Size, Time};

/// `carrel run`.
#[derive(Args, Debug)]
#[command(override_usage = "carrel run [OPTIONS] <IMAGE> [-- <CMD>...]", after_help = RUN_HELP)]
pub(crate) struct RunArguments {
    /// Show a directory, file or socket of the host inside; read-only unless it ends in `:rw`, copied with `:copy`
    #[arg(long = "mount", value_name = "SRC:DST[:ro|rw|copy]", value_parser = OsStringValueParser::new().try_map(MountPair::parse))]
    pub(crate) mounts: Vec<MountPair>,
    /// Set a variable, or pass one on from this environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = OsStringValueParser::new().try_map(Variable::parse))]
    pub(crate) env: Vec<Variable>,
    /// Where the command starts [default: /workspace with --project, else what the image says, else /]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Who it runs as inside: a name or a number, with or without a group [default: what the image says, else root]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// How much memory it may use, such as 512M or 2G [default: half of the host's]
    #[arg(short, long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// How many processors it may use, such as 1.5 [default: all]
    #[arg(long, value_name = "CORES")]
    pub(crate) cpus: Option<CpuShare>,
    /// How many processes and threads it may have
    #[arg(long, value_name = "COUNT", default_value_t = 1024)]
    pub(crate) pids: u32,
    /// How much it may write to its own files; kept in memory, and counted there
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(crate) disk: Size,
    /// Isolate it by namespaces, or by gvisor, which has a kernel of its own and needs runsc
    #[arg(long, value_enum, default_value_t, value_name = "KIND", hide_possible_values = true)]
    pub(crate) isolation: IsolationKind,
    /// End it after a time, such as 30s or 5m, with exit code 124
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Time>,
    /// A name for the sandbox, by which clients find its socket
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The sandbox's name for itself
    #[arg(long, value_name = "NAME", default_value = "carrel")]
    pub(crate) hostname: String,
    /// Work on a copy of this directory, at /workspace; the directory itself stays as it is
    #[arg(short, long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Keep what was changed in the project under this name, for `carrel diff` and `carrel apply`
    #[arg(long, value_name = "NAME", requires = "project")]
    pub(crate) keep_changes: Option<ChangeName>,
    /// Pass standard input on, which is the default
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
    /// Keys that leave the command running and end this one; none if empty
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: String,
    /// Say nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Run even where this host cannot enforce a limit, and warn of each such limit
    #[arg(long)]
    pub(crate) allow_unenforced_limits: bool,
    /// When to ask a registry for the image: always, missing or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) pull: PullPolicyArgument,
    /// What the command begins with, in words, instead of what the image says; '' for nothing
    #[arg(long, value_name = "WORDS")]
    pub(crate) entrypoint: Option<String>,
    /// A sandbox of this command is always removed
    #[arg(long = "rm", hide = true)]
    pub(crate) _remove: bool,
    #[arg(help = IMAGE)]
    pub(crate) image: ImageRef,
    /// The command and its arguments [default: what the image says]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

const RUN_HELP: &str = "\
Exit codes: the command's own; 128 + n if signal n ended it; 124 after --timeout; 125 if the sandbox failed; \
126 if the command cannot be executed; 127 if there is no such command.

Examples:
  carrel run host -- uname -a
  carrel run python:3.12 -- python -c 'print(6 * 7)'
  carrel run --project . --keep-changes try1 host -- make
  carrel run --memory 512M --timeout 30s host -- python3 -c 'print(6 * 7)'";
