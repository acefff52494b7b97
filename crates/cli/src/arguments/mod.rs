//! What a person types.

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

/// Sandboxes in milliseconds.
#[derive(Debug, Parser)]
#[command(name = "carrel", version, max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct CarrelArguments {
    /// Errors and results as JSON, one object on a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: CarrelCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum CarrelCommand {
    /// Run a command in a sandbox that is gone when the command ends
    Run(Box<RunArguments>),
    /// Make a sandbox that stays
    Create(Box<CreateArguments>),
    /// Run a command in a sandbox that is there
    Exec(Box<ExecArguments>),
    /// Take part in a job that runs: see what it writes, and type what it reads
    Attach(AttachArguments),
    /// Show what a job wrote
    Logs(LogsArguments),
    /// List sandboxes, or the jobs of one
    #[command(visible_alias = "ls")]
    Ps(PsArguments),
    /// Tell how a sandbox that stays is
    Get(GetArguments),
    /// Tell what happened to sandboxes that stay
    Events(EventsArguments),
    /// Tell all that is known about sandboxes, or about a job, as JSON
    Inspect(InspectArguments),
    /// Show what sandboxes use
    #[command(visible_alias = "top")]
    Stats(StatsArguments),
    /// Copy files and directories into a sandbox, or out of it
    Cp(CopyArguments),
    /// End sandboxes: ask, wait, then insist
    Stop(StopArguments),
    /// Let sandboxes run again that were stopped
    Resume(ResumeArguments),
    /// Remove sandboxes that have ended, or forget kept changes
    Rm(RemoveArguments),
    /// Images: list, fetch, remove, import and make them
    Image(Box<ImageArguments>),
    /// Show what takes room on the disk
    Df,
    /// Remove images that nothing needs, or the output of ended execs
    Prune(PruneArguments),
    /// Show what a sandbox changed in a project
    Diff(DiffArguments),
    /// Make kept changes in the project itself
    Apply(ApplyArguments),
    /// Write kept changes as a tar archive
    Export(ExportArguments),
    /// List the changes that are kept
    Changes,
    /// Serve sandboxes that stay: the daemon, which other commands start when they need it
    Serve(ServeArguments),
    /// Look after what the daemon keeps
    Store(StoreArguments),
    /// Check whether this host can run sandboxes, and say what to do where it cannot
    Doctor,
    /// Print a script that completes commands for a shell
    Completions(CompletionsArguments),
    /// Write the manual pages of all commands into a directory
    #[command(hide = true)]
    Man(ManArguments),
    /// Own the sandbox of a run that was detached from, which `run` starts
    #[command(hide = true)]
    OwnRun,
    /// Print the version
    Version,
    /// Show the help of a command, as its --help does
    Help(HelpArguments),
}

// === impl CarrelCommand ===

impl CarrelCommand {
    /// The sandbox that it is about, if it is about one.
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

/// The one name, if it is one.
fn only(names: &[String]) -> Option<&str> {
    match names {
        [name] => Some(name),
        _ => None,
    }
}

/// `carrel completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: CompletionShell,
}

/// `carrel help`.
#[derive(Args, Debug)]
pub(crate) struct HelpArguments {
    /// The command, such as `run` or `image pull` [default: all commands are listed]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `carrel man`.
#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// An existing directory, such as share/man/man1
    pub(crate) directory: PathBuf,
}

/// A shell that can complete.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum CompletionShell {
    /// Bash
    Bash,
    /// Z shell
    Zsh,
    /// Fish
    Fish,
}
