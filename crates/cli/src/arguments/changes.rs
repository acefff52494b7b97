//! Words about changes that are kept.

use std::path::PathBuf;

use carrel_changes::ChangeName;
use clap::Args;

/// `carrel diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArguments {
    /// The name that was given with --keep-changes
    pub(crate) name: ChangeName,
    /// Only which files, and how many lines of them
    #[arg(long)]
    pub(crate) stat: bool,
    /// Where the project is now [default: the directory that it was, and no other]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
}

/// `carrel apply`.
#[derive(Args, Debug)]
pub(crate) struct ApplyArguments {
    /// The name that was given with --keep-changes
    pub(crate) name: ChangeName,
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Overwrite what was changed in the project since; what would leave it stays refused
    #[arg(long)]
    pub(crate) force: bool,
    /// Leave out what is refused, and apply the rest
    #[arg(long)]
    pub(crate) skip_refused: bool,
    /// Take over what git would run or read as configuration too: repositories, hooks, and files that settings name
    #[arg(long)]
    pub(crate) allow_git: bool,
    /// Where the project is now [default: the directory that it was, and no other]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
}

/// `carrel export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    /// The name that was given with --keep-changes
    pub(crate) name: ChangeName,
    /// Where to write the archive [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
