//! Arguments of `diff`, `apply` and `export`.

use std::path::PathBuf;

use carrel_changes::ChangeName;
use clap::Args;

/// `carrel diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArguments {
    /// Name given with --keep-changes
    pub(crate) name: ChangeName,
    /// Show only file names and numbers of changed lines
    #[arg(long)]
    pub(crate) stat: bool,
    /// Directory of the project [default: its original directory, if it is still the same one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
}

/// `carrel apply`.
#[derive(Args, Debug)]
pub(crate) struct ApplyArguments {
    /// Name given with --keep-changes
    pub(crate) name: ChangeName,
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Overwrite files that changed in the project since; changes outside the project stay refused
    #[arg(long)]
    pub(crate) force: bool,
    /// Skip refused changes and apply the rest
    #[arg(long)]
    pub(crate) skip_refused: bool,
    /// Also apply what git would execute or read as configuration: repositories, hooks, and files named by settings
    #[arg(long)]
    pub(crate) allow_git: bool,
    /// Directory of the project [default: its original directory, if it is still the same one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
}

/// `carrel export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    /// Name given with --keep-changes
    pub(crate) name: ChangeName,
    /// Write the archive to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
