//! What the host has to give: the operator's home, sockets, and what others may have of it.

use std::path::PathBuf;

/// What the host has to give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// What `~` is; empty if there is none.
    pub home: PathBuf,
    /// The socket of the operator's SSH agent.
    pub ssh_agent: Option<PathBuf>,
    /// The socket of the operator's sound server.
    pub pulse_audio: Option<PathBuf>,
    /// What callers that are not trusted may name, and everything below.
    pub allowed: Vec<PathBuf>,
}

// === impl Host ===

impl Host {
    /// Finds what the environment of this process says; nobody else may name anything yet.
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
