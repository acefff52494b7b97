//! Arguments of `ps`, `inspect`, `stats`, `cp`, `stop` and `rm`.

use std::ffi::OsString;
use std::time::Duration;

use carrel_units::TimeSpan;
use clap::Args;

use super::jobs::job_id;
use super::parsers::{duration, positive_span};
use crate::label::Label;

/// `carrel ps`.
#[derive(Args, Debug)]
pub(crate) struct PsArguments {
    /// Print only names, or ids of jobs, one per line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Include removed sandboxes that are still known
    #[arg(short, long)]
    pub(crate) all: bool,
    /// List only persistent sandboxes with this label
    #[arg(long = "label", value_name = "KEY=VALUE", conflicts_with = "name")]
    pub(crate) labels: Vec<Label>,
    /// Sandbox whose jobs to list [default: list all sandboxes]
    pub(crate) name: Option<String>,
}

/// `carrel inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectArguments {
    /// Show this job of the sandbox
    #[arg(long, value_name = "JOB", value_parser = job_id)]
    pub(crate) job: Option<String>,
    /// Sandboxes to show: one object for one sandbox, an array for several
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// `carrel stats`.
#[derive(Args, Debug)]
pub(crate) struct StatsArguments {
    /// Print once [default: refresh on a terminal, print once elsewhere]
    #[arg(long)]
    pub(crate) no_stream: bool,
    /// Refresh interval, over which CPU usage is measured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_span)]
    pub(crate) interval: TimeSpan,
    /// Sandboxes to show [default: all running sandboxes]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// `carrel cp`.
#[derive(Args, Debug)]
#[command(override_usage = "carrel cp [OPTIONS] <SRC> <NAME:DST>\n       carrel cp [OPTIONS] <NAME:SRC> <DST>", after_help = COPY_HELP)]
pub(crate) struct CopyArguments {
    /// User inside who reads or writes the files, by name or number [default: root; files copied in belong to the user of `carrel exec`]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// If SRC itself is a symbolic link, copy its target
    #[arg(short = 'L', long)]
    pub(crate) follow_link: bool,
    /// File or directory to copy; `-` reads a tar archive from standard input
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// Existing directory to copy into, or the name of the copy; `-` writes a tar archive to standard output
    #[arg(value_name = "DST")]
    pub(crate) target: OsString,
    /// Accepted for compatibility: directories are always copied recursively
    #[arg(short = 'r', short_alias = 'a', long = "recursive", hide = true)]
    pub(crate) _recursive: bool,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

const COPY_HELP: &str = "\
Permissions, modification times and symbolic links are preserved; links are copied as links, and never followed. Links in \
a destination path inside a sandbox are not followed either: give the path that they point to. Links that point out of the \
copied directory are skipped when copying out of a sandbox, with exit code 1. Devices, pipes and sockets are skipped, and \
set-user-ID and set-group-ID bits are cleared.
With `-`, files are streamed as an uncompressed tar archive, as with docker cp: from standard input into an existing \
directory, or to standard output with all symbolic links as they are.
Files are copied out of a stopped persistent sandbox without resuming it.
A host path that contains `:` must begin with `/` or `./`.

Examples:
  carrel cp src web:/workspace
  carrel cp web:/workspace/report.html .
  tar c src | carrel cp - web:/workspace
  carrel cp web:/workspace/logs - | tar x";

/// `carrel stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArguments {
    /// Grace period before ephemeral sandboxes are killed; 0 kills at once. For persistent ones, the daemon's setting
    /// `runtime.grace` applies [default: 10s]
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub(crate) time: Option<Duration>,
    /// Do not wait until persistent sandboxes have stopped
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Stop all running persistent sandboxes
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    /// Stop for a host shutdown: sandboxes with the restart policy `on-boot` resume when the host boots
    #[arg(long, requires = "all")]
    pub(crate) for_shutdown: bool,
    /// How long to wait until all have stopped
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration, requires = "all")]
    pub(crate) timeout: Duration,
    /// Sandboxes to stop
    #[arg(required_unless_present = "all", value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// `carrel rm`.
#[derive(Args, Debug)]
pub(crate) struct RemoveArguments {
    /// Kill running sandboxes
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Remove only saved changes
    #[arg(long, conflicts_with = "sandbox")]
    pub(crate) changes: bool,
    /// Remove only sandboxes
    #[arg(long)]
    pub(crate) sandbox: bool,
    /// Remove all persistent sandboxes with this label
    #[arg(long = "label", value_name = "KEY=VALUE", conflicts_with_all = ["names", "changes"])]
    pub(crate) labels: Vec<Label>,
    /// Stopped sandboxes, or names given with --keep-changes
    #[arg(required_unless_present = "labels", value_name = "NAME")]
    pub(crate) names: Vec<String>,
}
