//! Progress of an install.

use std::fmt;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstallProgress {
    /// The current step.
    pub phase: InstallPhase,
    /// Bytes downloaded.
    pub bytes: u64,
    /// Total bytes, if the server reports them.
    pub total: Option<u64>,
}

/// Steps of an install, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstallPhase {
    /// Another process installs the same agent.
    #[default]
    Waiting,
    /// Resolves the package.
    Resolving,
    /// Downloads and unpacks at once.
    Downloading,
    /// Verifies the hashes.
    Verifying,
    /// Syncs the files to disk.
    Syncing,
    /// Renames the directory.
    Renaming,
    /// Makes it the current install.
    Linking,
    /// Removes unused installs.
    CleaningUp,
}

// === impl InstallPhase ===

impl InstallPhase {
    /// All steps.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Resolving,
        Self::Downloading,
        Self::Verifying,
        Self::Syncing,
        Self::Renaming,
        Self::Linking,
        Self::CleaningUp,
    ];
}

impl fmt::Display for InstallPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Resolving => "resolving",
            Self::Downloading => "downloading",
            Self::Verifying => "verifying",
            Self::Syncing => "syncing",
            Self::Renaming => "renaming",
            Self::Linking => "linking",
            Self::CleaningUp => "cleaning up",
        })
    }
}
