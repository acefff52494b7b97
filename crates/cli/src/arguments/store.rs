//! Arguments of `store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::orphans::{StoreAdoptArguments, StoreClaimArguments, StoreRemoveArguments};

/// `carrel store`.
#[derive(Args, Debug)]
pub(crate) struct StoreArguments {
    #[command(subcommand)]
    pub(crate) command: StoreCommand,
}

/// Subcommands of `carrel store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Check that the store is intact and consistent, and change nothing
    Check(StoreCheckArguments),
    /// Back up the store to a file, also while a daemon is running
    Backup(StoreBackupArguments),
    /// Replace the store with a backup; no daemon may be running
    Restore(StoreRestoreArguments),
    /// Replace a damaged store with its intact part; no daemon may be running
    Repair(StoreRepairArguments),
    /// List disks that the store does not know, such as those created after a restored backup
    Orphans,
    /// Make an orphan a sandbox again
    Adopt(StoreAdoptArguments),
    /// Remove orphans and their files
    Remove(StoreRemoveArguments),
    /// Make a copy of a home an independent home
    Claim(StoreClaimArguments),
}

/// `carrel store check`.
#[derive(Args, Debug)]
pub(crate) struct StoreCheckArguments {
    /// Home of the daemon [default: CARREL_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
}

/// `carrel store backup`.
#[derive(Args, Debug)]
pub(crate) struct StoreBackupArguments {
    /// Home of the daemon [default: CARREL_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// Replace the file if it exists; nothing but a regular file is replaced, and none in the home
    #[arg(long)]
    pub(crate) force: bool,
    /// Where to write the backup
    pub(crate) file: PathBuf,
}

/// `carrel store restore`.
#[derive(Args, Debug)]
#[command(after_help = RESTORE_HELP)]
pub(crate) struct StoreRestoreArguments {
    /// Home of the daemon [default: CARREL_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// Restore a backup that is empty or of another home, although disks of sandboxes are here
    #[arg(long)]
    pub(crate) accept_data_loss: bool,
    /// A file that `carrel store backup` wrote
    pub(crate) file: PathBuf,
}

const RESTORE_HELP: &str = "\
The backup is verified first. The store that was there is kept beside the new one as carrel.db.before-restore-TIME.";

/// `carrel store repair`.
#[derive(Args, Debug)]
#[command(after_help = REPAIR_HELP)]
pub(crate) struct StoreRepairArguments {
    /// Home of the daemon [default: CARREL_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
}

const REPAIR_HELP: &str = "\
The damaged store is kept beside the new one as carrel.db.damaged-TIME. A store that is intact is left alone.

Exit codes: 0 if everything was kept; 3 if something was lost; 1 if the store cannot be repaired.";
