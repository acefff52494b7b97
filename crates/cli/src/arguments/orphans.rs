//! Words about disks that the store does not know, and about copies of a home.

use std::path::PathBuf;

use clap::Args;

/// `carrel store adopt`.
#[derive(Args, Debug)]
pub(crate) struct StoreAdoptArguments {
    /// The disk, or the sandbox that it belonged to
    #[arg(value_name = "ORPHAN")]
    pub(crate) orphan: String,
    /// The id of the sandbox from now on [default: its former id]
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
    /// The home [default: CARREL_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
}
