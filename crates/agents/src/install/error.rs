//! Why an agent could not be installed.

use std::{fmt::Write, io, path::Path, sync::Arc};

use super::unpack::PackageUnpackError;
use crate::agent::AgentId;

/// Why an agent could not be installed. All callers that waited for the same install get a copy.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InstallError {
    /// Installation is disabled.
    #[error("{0} is not installed, and SANDBOX_AGENT_REQUIRE_PREINSTALL forbids installing it")]
    Forbidden(AgentId),
    /// The agent is not published for this platform.
    #[error("{agent} is not published for {platform}\nhint: put a program `{agent}` in PATH")]
    Platform { agent: AgentId, platform: String },
    /// Not a version.
    #[error("{0:?} is not a version\nhint: give it as 1.2.3")]
    Version(String),
    /// No source has it.
    #[error("cannot get {agent} {version}{}\nhint: {HINT}", list(.tried))]
    Unavailable {
        agent: AgentId,
        version: String,
        /// The sources that were tried, and their errors.
        tried: Vec<(String, String)>,
    },
    /// A hash does not match: the package is discarded.
    #[error("{origin} is not what was published: {what} is {found}, and should be {expected}")]
    Mismatch {
        /// URL of the source.
        origin: String,
        /// The file or package.
        what: String,
        /// The expected hash.
        expected: String,
        /// The actual hash.
        found: String,
    },
    /// The package cannot be unpacked.
    #[error("{origin}: {error}")]
    Package {
        /// URL of the source.
        origin: String,
        error: Arc<PackageUnpackError>,
    },
    /// A file operation failed.
    #[error("cannot {step} {path}: {error}")]
    File {
        /// The operation.
        step: &'static str,
        path: String,
        /// The system error.
        error: Arc<io::Error>,
    },
    /// Another process has held the lock for too long.
    #[error("another process has been installing {0} for too long\nhint: end it, and try again")]
    Busy(AgentId),
    /// The server shut down, or the install panicked.
    #[error("the install of {0} was interrupted")]
    Interrupted(AgentId),
}

const HINT: &str = "give a registry with --registry or NPM_CONFIG_REGISTRY, or put the program in PATH";

// === impl InstallError ===

impl InstallError {
    /// For `map_err`: the operation and its path.
    pub(super) fn file(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |error| Self::File { step, path, error: Arc::new(error) }
    }
}

fn list(tried: &[(String, String)]) -> String {
    let mut text = String::new();
    for (place, outcome) in tried {
        // Writing to a `String` does not fail.
        let _written = write!(text, "\n  {place}: {outcome}");
    }
    text
}
