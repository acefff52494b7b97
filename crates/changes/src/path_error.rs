//! A system call that failed, and on which file.

use std::io;

use crate::escape::EscapedName;

/// A system call that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct PathError {
    /// What was attempted, as a verb.
    pub action: &'static str,
    /// The file, escaped for display.
    pub path: String,
    /// The error of the system call.
    pub source: io::Error,
}

// === impl PathError ===

impl PathError {
    /// For `map_err`: attempted action and path.
    pub(crate) fn at<E: Into<io::Error>>(action: &'static str, path: &[u8]) -> impl FnOnce(E) -> Self {
        let path = if path.is_empty() { ".".to_owned() } else { EscapedName(path).to_string() };
        move |source| Self { action, path, source: source.into() }
    }
}
