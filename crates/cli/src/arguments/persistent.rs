//! Words about sandboxes that stay, and about the daemon that keeps them.

use std::path::PathBuf;
use std::time::Duration;

use carrel_daemon::Address;
use carrel_image::ImageRef;
use carrel_sandbox::cgroup::CpuShare;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::images::{IMAGE, PullPolicyArgument};
use super::parsers::patience;
use crate::environment::Variable;
use crate::label::Label;
use crate::mount::{CopyPair, MountPair};
use crate::port::PortPair;
use crate::size::Size;

/// `carrel serve`.
#[derive(Args, Debug)]
#[command(after_help = SERVE_HELP)]
pub(crate) struct ServeArguments {
    /// Where everything is kept [default: CARREL_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The configuration [default: carrel/config.toml in XDG_CONFIG_HOME, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Listen there too; unless that is a socket, at agbox/agboxd.sock in XDG_RUNTIME_DIR as well
    #[arg(long, value_name = "unix:PATH|tcp:ADDR")]
    pub(crate) grpc: Vec<Address>,
    /// Make a key for ports that have none, and say it
    #[arg(long)]
    pub(crate) dev: bool,
    /// Only say what is in effect
    #[arg(long)]
    pub(crate) check: bool,
    /// Start although the store is missing, empty or another: sandboxes that it does not know are quarantined
    #[arg(long)]
    pub(crate) accept_data_loss: bool,
    /// Started by a command that will be gone
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

const SERVE_HELP: &str = "\
When it is ready, it says where it can be reached, as one JSON object on one line. SIGTERM and SIGINT end it, and leave all \
sandboxes running: the next one takes them over. SIGHUP reloads the configuration.

Exit codes: 0 after a signal; 1 if it cannot serve; 2 if the configuration is wrong.";

/// `carrel create`.
#[derive(Args, Debug)]
#[command(override_usage = "carrel create [OPTIONS] <IMAGE> [-- <CMD>...]", after_help = CREATE_HELP)]
pub(crate) struct CreateArguments {
    /// What it is called by, once and for ever [default: a new id]
    #[arg(long, alias = "id")]
    pub(crate) name: Option<String>,
    /// A label, by which it is found again
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<Label>,
    /// Set a variable, or pass one on from this environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = OsStringValueParser::new().try_map(Variable::parse))]
    pub(crate) env: Vec<Variable>,
    /// Where its commands start [default: /workspace]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Who its commands run as: a name or a number, with or without a group [default: agbox, else what the image says]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// Show a directory, file or socket of the host inside; read-only unless it ends in `:rw`, copied with `:copy`
    #[arg(long = "mount", value_name = "SRC:DST[:ro|rw|copy]", value_parser = OsStringValueParser::new().try_map(MountPair::parse))]
    pub(crate) mounts: Vec<MountPair>,
    /// Copy a file, or what is in a directory, into it before it runs
    #[arg(long = "copy", value_name = "SRC:DST", value_parser = OsStringValueParser::new().try_map(CopyPair::parse))]
    pub(crate) copies: Vec<CopyPair>,
    /// A port of the loopback interface that leads to one inside
    #[arg(long = "port", value_name = "HOST:INSIDE")]
    pub(crate) ports: Vec<PortPair>,
    /// A tool whose settings are shown inside: claude, codex, git, uv, npm, apt or opencode
    #[arg(long = "tool", value_name = "NAME")]
    pub(crate) tools: Vec<String>,
    /// How much memory it may use, such as 512M or 2G [default: what the daemon says]
    #[arg(short, long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// How many processors it may use, such as 1.5 [default: all]
    #[arg(long, value_name = "CORES")]
    pub(crate) cpus: Option<CpuShare>,
    /// How many processes and threads it may have [default: what the daemon says]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Option<u32>,
    /// How much it may write to its own files, such as 10M for 10 MiB [default: what the daemon or the host has]
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<Size>,
    /// How long it may be idle before it is stopped; 0 is for ever [default: what the daemon says]
    #[arg(long, value_name = "TIME", value_parser = patience)]
    pub(crate) idle_ttl: Option<Duration>,
    /// When to resume it without a request: no, or on-boot if it ran when the host shut down or lost power [default: no]
    #[arg(long, value_enum, value_name = "POLICY", hide_possible_values = true)]
    pub(crate) restart: Option<RestartPolicyArgument>,
    /// A description in YAML, over which all else that is said here lies
    #[arg(short, long, value_name = "YAML")]
    pub(crate) file: Option<PathBuf>,
    /// Make it even where this host cannot enforce a limit, and warn of each such limit
    #[arg(long)]
    pub(crate) allow_unenforced_limits: bool,
    /// When to ask a registry for the image: always, missing or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) pull: PullPolicyArgument,
    /// Say nothing but errors, also while an image comes
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Return when it runs, which is the default
    #[arg(long, conflicts_with = "no_wait")]
    pub(crate) wait: bool,
    /// Return as soon as it is accepted
    #[arg(long)]
    pub(crate) no_wait: bool,
    #[arg(help = IMAGE, required_unless_present = "file")]
    pub(crate) image: Option<ImageRef>,
    /// What it runs by itself [default: nothing]
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

const CREATE_HELP: &str = "\
It stays until it is removed, whoever asked for it is gone or not; what is written in it stays when it is stopped. The daemon \
that keeps it is started if it does not run.

Examples:
  carrel create --name desk host
  carrel create --label team=a --port 8080:8000 ./root -- python3 -m http.server 8000
  carrel exec desk -- uname -a";

/// When a sandbox is resumed without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RestartPolicyArgument {
    No,
    OnBoot,
}

/// `carrel get`.
#[derive(Args, Debug)]
pub(crate) struct GetArguments {
    /// The sandbox
    pub(crate) id: String,
}

/// `carrel resume`.
#[derive(Args, Debug)]
pub(crate) struct ResumeArguments {
    /// Return as soon as it is accepted [default: when they run]
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The sandboxes
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

/// `carrel events`.
#[derive(Args, Debug)]
pub(crate) struct EventsArguments {
    /// Go on with what happens
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only what is after this event; with --all after this position, as --json tells it
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u64>,
    /// Of all sandboxes
    #[arg(short, long, conflicts_with = "id")]
    pub(crate) all: bool,
    /// Only of those with this label
    #[arg(long = "label", value_name = "KEY=VALUE", requires = "all")]
    pub(crate) labels: Vec<Label>,
    /// The sandbox
    #[arg(required_unless_present = "all")]
    pub(crate) id: Option<String>,
}
