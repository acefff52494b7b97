//! Why an agent could not be installed.

use std::{fmt::Write, io, path::Path, sync::Arc};

use super::unpack::UnpackError;
use crate::agent::AgentId;

/// Why an agent could not be installed. Everybody who waited for the same install gets a copy.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InstallError {
    /// It has to be there already.
    #[error("{0} is not installed, and SANDBOX_AGENT_REQUIRE_PREINSTALL forbids to install it")]
    Forbidden(AgentId),
    /// Nobody publishes it for this machine.
    #[error("{agent} is not published for {platform}\nhint: put a program `{agent}` in PATH")]
    Platform {
        /// Which.
        agent: AgentId,
        /// The machine.
        platform: String,
    },
    /// That is no version.
    #[error("{0:?} is not a version\nhint: give it as 1.2.3")]
    Version(String),
    /// Nowhere could it be had.
    #[error("cannot get {agent} {version}{}\nhint: {HINT}", list(.tried))]
    Unavailable {
        /// Which.
        agent: AgentId,
        /// Of which version.
        version: String,
        /// Where it was looked for, and what came of it.
        tried: Vec<(String, String)>,
    },
    /// What came is not what was published: it is thrown away.
    #[error("{origin} is not what was published: {what} is {found}, and should be {expected}")]
    Mismatch {
        /// Where it came from.
        origin: String,
        /// Of what.
        what: String,
        /// The hash that is known.
        expected: String,
        /// The hash that it has.
        found: String,
    },
    /// What came cannot be unpacked, or should not.
    #[error("{origin}: {error}")]
    Package {
        /// Where it came from.
        origin: String,
        /// Why.
        error: Arc<UnpackError>,
    },
    /// The file system refuses.
    #[error("cannot {step} {path}: {error}")]
    File {
        /// What was to be done.
        step: &'static str,
        /// With what.
        path: String,
        /// Why not.
        error: Arc<io::Error>,
    },
    /// Another process installs it, and does not come to an end.
    #[error("another process has been installing {0} for too long\nhint: end it, and try again")]
    Busy(AgentId),
    /// The server ended, or the install broke.
    #[error("the install of {0} did not come to its end")]
    Interrupted(AgentId),
}

const HINT: &str = "give a registry with --registry or NPM_CONFIG_REGISTRY, or put the program in PATH";

// === impl InstallError ===

impl InstallError {
    /// For `map_err`: what was to be done with a path.
    pub(super) fn file(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |error| Self::File { step, path, error: Arc::new(error) }
    }
}

fn list(tried: &[(String, String)]) -> String {
    let mut text = String::new();
    for (place, outcome) in tried {
        // Writing to a text does not fail.
        let _written = write!(text, "\n  {place}: {outcome}");
    }
    text
}
