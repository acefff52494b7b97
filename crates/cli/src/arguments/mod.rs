//! The definition of the command line.

mod changes;
mod images;
mod isolation;
mod jobs;
mod orphans;
mod parsers;
mod persistent;
mod run;
mod sandboxes;
mod store;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::changes::{ApplyArguments, DiffArguments, ExportArguments};
pub(crate) use self::images::{
    ImageArguments, ImageCommand, ImageConfigArguments, ImageImportArguments, ImageInspectArguments,
    ImageListArguments, ImagePullArguments, ImageRemoveArguments, ImageSaveArguments, PruneArguments,
    PullPolicyArgument,
};
pub(crate) use self::isolation::IsolationKind;
pub(crate) use self::jobs::{AttachArguments, ExecArguments, LogsArguments};
pub(crate) use self::orphans::{StoreAdoptArguments, StoreClaimArguments, StoreRemoveArguments};
pub(crate) use self::persistent::{
    CreateArguments, EventsArguments, GetArguments, RestartPolicyArgument, ResumeArguments, ServeArguments,
};
pub(crate) use self::run::RunArguments;
pub(crate) use self::sandboxes::{
    CopyArguments, InspectArguments, PsArguments, RemoveArguments, StatsArguments, StopArguments,
};
pub(crate) use self::store::{StoreArguments, StoreBackupArguments, StoreCommand, StoreRestoreArguments};

const PREVIEW: &str = "This release is a preview: commands, options and output may change.";

/// Sandboxes in milliseconds.
#[derive(Debug, Parser)]
#[command(name = "carrel", version, max_term_width = 100, disable_help_subcommand = true, after_help = PREVIEW)]
pub(crate) struct CarrelArguments {
    /// Print errors and results as JSON, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: CarrelCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum CarrelCommand {
    /// Run a command in a new ephemeral sandbox
    Run(Box<RunArguments>),
    /// Create a persistent sandbox
    Create(Box<CreateArguments>),
    /// Run a command in an existing sandbox
    Exec(Box<ExecArguments>),
    /// Attach to the input and output of a running job
    Attach(AttachArguments),
    /// Show the output of a job
    Logs(LogsArguments),
    /// List sandboxes, or the jobs of one
    #[command(visible_alias = "ls")]
    Ps(PsArguments),
    /// Show the status of a persistent sandbox
    Get(GetArguments),
    /// Show events of persistent sandboxes
    Events(EventsArguments),
    /// Show details of sandboxes, or of a job, as JSON
    Inspect(InspectArguments),
    /// Show resource usage of sandboxes
    #[command(visible_alias = "top")]
    Stats(StatsArguments),
    /// Copy files between the host and a sandbox
    Cp(CopyArguments),
    /// Stop sandboxes: terminate, wait, then kill
    Stop(StopArguments),
    /// Resume stopped or paused sandboxes
    Resume(ResumeArguments),
    /// Remove stopped sandboxes, or saved changes
    Rm(RemoveArguments),
    /// Manage images: list, pull, remove, import and save
    Image(Box<ImageArguments>),
    /// Show disk usage
    Df,
    /// Remove unused images, or output of execs that have exited
    Prune(PruneArguments),
    /// Show what a sandbox changed in a project
    Diff(DiffArguments),
    /// Apply saved changes to the project
    Apply(ApplyArguments),
    /// Export saved changes as a tar archive
    Export(ExportArguments),
    /// List saved changes
    Changes,
    /// Run the daemon, which other commands start when they need it
    Serve(ServeArguments),
    /// Check, back up, restore and repair the daemon's store
    Store(StoreArguments),
    /// Check whether this host can run sandboxes, and how to fix what is missing
    Doctor,
    /// Print a completion script for a shell
    Completions(CompletionsArguments),
    /// Write the manual pages of all commands into a directory
    #[command(hide = true)]
    Man(ManArguments),
    /// Own the sandbox of a detached `carrel run`, which starts this
    #[command(hide = true)]
    OwnRun(OwnRunArguments),
    /// Print the version
    Version,
    /// Print the help of a command
    Help(HelpArguments),
}

// === impl CarrelCommand ===

impl CarrelCommand {
    /// The sandbox that the command names, if it names exactly one.
    pub(crate) fn sandbox(&self) -> Option<&str> {
        match self {
            Self::Exec(exec) => Some(&exec.name),
            Self::Attach(attach) => Some(&attach.name),
            Self::Logs(logs) => Some(&logs.name),
            Self::Ps(ps) => ps.name.as_deref(),
            Self::Get(get) => Some(&get.id),
            Self::Events(events) => events.id.as_deref(),
            Self::Inspect(inspect) => only(&inspect.names),
            Self::Stop(stop) => only(&stop.names),
            Self::Resume(resume) => only(&resume.ids),
            Self::Rm(remove) => only(&remove.names),
            _ => None,
        }
    }
}

/// The name, if there is exactly one.
fn only(names: &[String]) -> Option<&str> {
    match names {
        [name] => Some(name),
        _ => None,
    }
}

/// `carrel completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArguments {
    /// Shell to complete for: bash, zsh or fish
    #[arg(value_enum, hide_possible_values = true)]
    pub(crate) shell: CompletionShell,
}

/// `carrel help`.
#[derive(Args, Debug)]
pub(crate) struct HelpArguments {
    /// Command, such as `run` or `image pull` [default: list all commands]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `carrel own-run`.
#[derive(Args, Debug)]
pub(crate) struct OwnRunArguments {
    /// Directory of the sandbox, by which `carrel ps` finds this process
    pub(crate) _directory: Option<PathBuf>,
}

/// `carrel man`.
#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// Existing directory, such as share/man/man1
    pub(crate) directory: PathBuf,
}

/// A shell with completion.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum CompletionShell {
    /// Bash
    Bash,
    /// Z shell
    Zsh,
    /// Fish
    Fish,
}
