//! A call of the system that failed, and on what.

use std::io;

use crate::words::Shown;

/// A call of the system that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct Failure {
    /// What was tried.
    pub action: &'static str,
    /// With which file, as it is shown.
    pub path: String,
    /// What the system said.
    pub source: io::Error,
}

// === impl Failure ===

impl Failure {
    /// Says what was tried with what.
    pub(crate) fn at<E: Into<io::Error>>(action: &'static str, path: &[u8]) -> impl FnOnce(E) -> Self {
        let path = if path.is_empty() { ".".to_owned() } else { Shown(path).to_string() };
        move |source| Self { action, path, source: source.into() }
    }
}
