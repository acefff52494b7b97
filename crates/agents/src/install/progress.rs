//! How far an install is.

use std::fmt;

/// How far an install is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is done now.
    pub phase: Phase,
    /// How much was downloaded.
    pub bytes: u64,
    /// Of how much, if the server says.
    pub total: Option<u64>,
}

/// The steps of an install, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Another process installs the same agent.
    #[default]
    Waiting,
    /// Asks where the package is.
    Asking,
    /// Downloads and unpacks at once.
    Downloading,
    /// Compares the hashes.
    Checking,
    /// Brings it to the disk.
    Writing,
    /// Gives the directory its name.
    Placing,
    /// Makes it the one that is used.
    Linking,
    /// Removes what is used no longer.
    Sweeping,
}

// === impl Phase ===

impl Phase {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Asking,
        Self::Downloading,
        Self::Checking,
        Self::Writing,
        Self::Placing,
        Self::Linking,
        Self::Sweeping,
    ];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Asking => "asking",
            Self::Downloading => "downloading",
            Self::Checking => "checking",
            Self::Writing => "writing",
            Self::Placing => "placing",
            Self::Linking => "linking",
            Self::Sweeping => "sweeping",
        })
    }
}
