//! Words about sandboxes that are there.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::jobs::job_id;
use super::parsers::patience;
use crate::label::Label;
use crate::size::Time;

/// `carrel ps`.
#[derive(Args, Debug)]
pub(crate) struct PsArguments {
    /// Only names, or ids of jobs, one on a line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Those too that were removed, as long as they are known
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only those with this label, which only sandboxes that stay have
    #[arg(long = "label", value_name = "KEY=VALUE", conflicts_with = "name")]
    pub(crate) labels: Vec<Label>,
    /// The sandbox whose jobs are listed [default: all sandboxes are]
    pub(crate) name: Option<String>,
}

/// `carrel inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectArguments {
    /// Tell about this job of the sandbox
    #[arg(long, value_name = "JOB", value_parser = job_id)]
    pub(crate) job: Option<String>,
    /// The sandboxes: one object for one, an array for several
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// `carrel stats`.
#[derive(Args, Debug)]
pub(crate) struct StatsArguments {
    /// Say it once [default: again and again on a terminal, once elsewhere]
    #[arg(long)]
    pub(crate) no_stream: bool,
    /// How long to wait before saying it again, and how long to look at processors
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Time,
    /// The sandboxes [default: all that run]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// `carrel cp`.
#[derive(Args, Debug)]
#[command(override_usage = "carrel cp [OPTIONS] <SRC> <NAME:DST>\n       carrel cp [OPTIONS] <NAME:SRC> <DST>", after_help = COPY_HELP)]
pub(crate) struct CopyArguments {
    /// Who acts inside, and owns what arrives there: a name or a number [default: root acts, and files are given to the user of `carrel exec`]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// If SRC itself is a symbolic link, copy what it leads to
    #[arg(short = 'L', long)]
    pub(crate) follow_link: bool,
    /// What to copy: a file, or a directory with everything in it; `-` reads a tar archive from standard input
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// Where to: a directory that is there gets it inside; otherwise it is the name of the copy; `-` writes a tar archive
    /// to standard output
    #[arg(value_name = "DST")]
    pub(crate) target: OsString,
    /// Copies are made whole anyway
    #[arg(short = 'r', short_alias = 'a', long = "recursive", hide = true)]
    pub(crate) _recursive: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

const COPY_HELP: &str = "\
Permissions, times and symbolic links are kept; links are copied as links, never followed. In a path of a sandbox that is \
copied to, no link is followed either: name the path that it leads to. Out of a sandbox come files, directories and those \
links that stay in the copied directory: others are left out and make the exit code 1. Devices, pipes and sockets are left \
out, and nobody gets the rights of a file's owner by running it.
With `-` the files travel as an uncompressed tar archive, as with docker cp: from standard input into a directory that is \
there, or to standard output, with all symbolic links as they are.
Out of a persistent sandbox that has stopped, files are copied without resuming it.
A path of this host with a `:` in it begins with `/` or `./`.

Examples:
  carrel cp src web:/workspace
  carrel cp web:/workspace/report.html .
  tar c src | carrel cp - web:/workspace
  carrel cp web:/workspace/logs - | tar x";

/// `carrel stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArguments {
    /// How long they have to end by themselves; 0 insists at once. Those that stay have as long as the daemon says
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = patience)]
    pub(crate) time: Duration,
    /// Do not wait for the end of those that stay
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Stop all persistent sandboxes that run
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    /// Stop them because the host shuts down: those with the restart policy `on-boot` are resumed when it boots
    #[arg(long, requires = "all")]
    pub(crate) for_shutdown: bool,
    /// How long to wait for all of them
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = patience, requires = "all")]
    pub(crate) timeout: Duration,
    /// The sandboxes
    #[arg(required_unless_present = "all", value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// `carrel rm`.
#[derive(Args, Debug)]
pub(crate) struct RemoveArguments {
    /// End a sandbox that still runs
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Only kept changes are meant
    #[arg(long, conflicts_with = "sandbox")]
    pub(crate) changes: bool,
    /// Only sandboxes are meant
    #[arg(long)]
    pub(crate) sandbox: bool,
    /// All sandboxes that stay and have this label
    #[arg(long = "label", value_name = "KEY=VALUE", conflicts_with_all = ["names", "changes"])]
    pub(crate) labels: Vec<Label>,
    /// Sandboxes that have ended, or names that were given with --keep-changes
    #[arg(required_unless_present = "labels", value_name = "NAME")]
    pub(crate) names: Vec<String>,
}
