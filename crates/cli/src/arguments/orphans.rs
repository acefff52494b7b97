//! Arguments of `store adopt`, `remove` and `claim`.

use std::path::PathBuf;

use clap::Args;

/// `carrel store adopt`.
#[derive(Args, Debug)]
pub(crate) struct StoreAdoptArguments {
    /// Disk, or the sandbox that it belonged to
    #[arg(value_name = "ORPHAN")]
    pub(crate) orphan: String,
    /// New id of the sandbox [default: its former id]
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
}

/// `carrel store remove`.
#[derive(Args, Debug)]
pub(crate) struct StoreRemoveArguments {
    /// Disks, or the sandboxes that they belonged to
    #[arg(value_name = "ORPHAN", required = true)]
    pub(crate) orphans: Vec<String>,
}

/// `carrel store claim`.
#[derive(Args, Debug)]
pub(crate) struct StoreClaimArguments {
    /// Home of the daemon [default: CARREL_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
}
