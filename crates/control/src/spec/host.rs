//! What sandboxes may use of the host.

use std::path::PathBuf;

/// What sandboxes may use of the host: the operator's home and sockets, and the paths for other callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The directory that `~` stands for; empty if there is none.
    pub home: PathBuf,
    /// The socket of the operator's SSH agent.
    pub ssh_agent: Option<PathBuf>,
    /// The socket of the operator's sound server.
    pub pulse_audio: Option<PathBuf>,
    /// The paths that untrusted callers may use, with everything below them.
    pub allowed: Vec<PathBuf>,
}

// === impl Host ===

impl Host {
    /// Reads the environment of this process. No path is allowed for untrusted callers.
    pub fn find() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self {
            home: path("HOME").unwrap_or_default(),
            ssh_agent: path("SSH_AUTH_SOCK"),
            pulse_audio: path("XDG_RUNTIME_DIR").map(|runtime| runtime.join("pulse/native")),
            allowed: Vec::new(),
        }
    }
}
