//! Arguments of `serve` and of commands for persistent sandboxes.

use std::path::PathBuf;
use std::time::Duration;

use carrel_daemon::Address;
use carrel_image::ImageRef;
use carrel_sandbox::cgroup::CpuShare;
use carrel_units::ByteSize;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::images::{IMAGE, PullPolicyArgument};
use super::parsers::{duration, positive_size};
use crate::environment::Variable;
use crate::label::Label;
use crate::mount::{CopyPair, MountPair};
use crate::port::PortPair;

/// `carrel serve`.
#[derive(Args, Debug)]
#[command(after_help = SERVE_HELP)]
pub(crate) struct ServeArguments {
    /// Home of the daemon [default: CARREL_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// Configuration file [default: carrel/config.toml in XDG_CONFIG_HOME, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Also listen here; with only TCP addresses, at agbox/agboxd.sock in XDG_RUNTIME_DIR as well
    #[arg(long, value_name = "unix:PATH|tcp:ADDR")]
    pub(crate) grpc: Vec<Address>,
    /// Generate and print an API key for TCP listeners without one
    #[arg(long)]
    pub(crate) dev: bool,
    /// Print the effective configuration and exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Start even if the store is missing, empty or another one; unknown sandboxes are quarantined
    #[arg(long)]
    pub(crate) accept_data_loss: bool,
    /// Run in the background for the command that started this
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

const SERVE_HELP: &str = "\
When the daemon is ready, it prints its addresses as one JSON object on one line. SIGTERM and SIGINT stop the daemon, and \
leave all sandboxes running: the next daemon adopts them. SIGHUP reloads the configuration.

Exit codes: 0 after a signal; 1 if the daemon cannot serve; 2 if the configuration is invalid.";

/// `carrel create`.
#[derive(Args, Debug)]
#[command(override_usage = "carrel create [OPTIONS] <IMAGE> [-- <CMD>...]\n       carrel create [OPTIONS] -f YAML [IMAGE] [-- <CMD>...]", after_help = CREATE_HELP)]
pub(crate) struct CreateArguments {
    /// Id of the sandbox: 4 to 200 letters, digits, `-` or `_`. It is never reused, even after `carrel rm` [default: a new id]
    #[arg(long, alias = "id")]
    pub(crate) name: Option<String>,
    /// Add a label, by which commands select sandboxes
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<Label>,
    /// Set an environment variable, or pass one through from this environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = OsStringValueParser::new().try_map(Variable::parse))]
    pub(crate) env: Vec<Variable>,
    /// Working directory of commands [default: /workspace]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User of commands, by name or number, with an optional group [default: agbox, else that of the image]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// Mount a directory, file or socket of the host; read-only unless it ends in `:rw`, copied with `:copy`
    #[arg(long = "mount", value_name = "SRC:DST[:ro|rw|copy]", value_parser = OsStringValueParser::new().try_map(MountPair::parse))]
    pub(crate) mounts: Vec<MountPair>,
    /// Copy a file, or the contents of a directory, into the sandbox before it starts
    #[arg(long = "copy", value_name = "SRC:DST", value_parser = OsStringValueParser::new().try_map(CopyPair::parse))]
    pub(crate) copies: Vec<CopyPair>,
    /// Publish a port on the loopback interface of the host
    #[arg(long = "port", value_name = "HOST:INSIDE")]
    pub(crate) ports: Vec<PortPair>,
    /// Mount the settings of a tool: claude, codex, git, uv, npm, apt or opencode
    #[arg(long = "tool", value_name = "NAME")]
    pub(crate) tools: Vec<String>,
    /// Memory limit, such as 512M or 2G [default: set by the daemon]
    #[arg(short, long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) memory: Option<ByteSize>,
    /// CPU limit, such as 1.5 [default: all CPUs]
    #[arg(long, value_name = "CORES")]
    pub(crate) cpus: Option<CpuShare>,
    /// Limit on processes and threads [default: set by the daemon]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Option<u32>,
    /// Disk limit, such as 10M for 10 MiB [default: set by the daemon, else the free space of the host]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) disk: Option<ByteSize>,
    /// Stop the sandbox after being idle for this time; 0 for never [default: set by the daemon]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) idle_ttl: Option<Duration>,
    /// Restart policy: no, or on-boot to resume it when the host boots, if it ran before [default: no]
    #[arg(long, value_enum, value_name = "POLICY", hide_possible_values = true)]
    pub(crate) restart: Option<RestartPolicyArgument>,
    /// Specification in YAML; other options override it
    #[arg(short, long, value_name = "YAML")]
    pub(crate) file: Option<PathBuf>,
    /// Create it even if this host cannot enforce a limit, and warn about each such limit
    #[arg(long)]
    pub(crate) allow_unenforced_limits: bool,
    /// When to pull the image: always, missing or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) pull: PullPolicyArgument,
    /// Print only errors, and no progress of an image pull
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Wait until the sandbox is ready, which is the default
    #[arg(long, conflicts_with = "no_wait")]
    pub(crate) wait: bool,
    /// Return as soon as the request is accepted
    #[arg(long)]
    pub(crate) no_wait: bool,
    #[arg(help = IMAGE, required_unless_present = "file")]
    pub(crate) image: Option<ImageRef>,
    /// Command that the sandbox runs [default: none]
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

const CREATE_HELP: &str = "\
The sandbox exists until it is removed, and keeps its files when it is stopped. The command starts the daemon if none is \
running.

Examples:
  carrel create --name desk host
  carrel create --port 8080:8000 ./root -- python3 -m http.server 8000
  carrel exec desk -- uname -a";

/// When the daemon resumes a sandbox without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RestartPolicyArgument {
    No,
    OnBoot,
}

/// `carrel get`.
#[derive(Args, Debug)]
pub(crate) struct GetArguments {
    /// Id of the sandbox
    pub(crate) id: String,
}

/// `carrel resume`.
#[derive(Args, Debug)]
pub(crate) struct ResumeArguments {
    /// Return as soon as the request is accepted [default: wait until they are ready]
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Ids of the sandboxes
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

/// `carrel events`.
#[derive(Args, Debug)]
pub(crate) struct EventsArguments {
    /// Follow new events
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Show only events after this sequence; with --all, after this position, which --json prints
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u64>,
    /// Show events of all sandboxes
    #[arg(short, long, conflicts_with = "id")]
    pub(crate) all: bool,
    /// Show only events of sandboxes with this label
    #[arg(long = "label", value_name = "KEY=VALUE", requires = "all")]
    pub(crate) labels: Vec<Label>,
    /// Id of the sandbox
    #[arg(required_unless_present = "all")]
    pub(crate) id: Option<String>,
}
