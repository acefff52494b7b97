//! Connects to the shim of a discovered sandbox after verifying its identity.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::CWD;

use super::{DiscoveredSandbox, DiscoveryError, DiscoveryProblem, Liveness, inspect};
use crate::client::ShimClient;
use crate::error::ShimError;
use crate::journal::Journal;
use crate::layout;
use crate::messages::Hello;
use crate::record::SandboxRecord;

/// Why a discovered sandbox was not adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// It can no longer be inspected.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Its directory is not trusted.
    #[error(transparent)]
    Damaged(DiscoveryProblem),
    /// It is not running: it is being created, or has ended.
    #[error("sandbox is not running")]
    NotRunning,
    /// Its name now belongs to another sandbox.
    #[error("sandbox was replaced by another one with the same name")]
    Replaced,
    /// The recorded process does not exist, or its pid was reused.
    #[error("process {pid} is not the shim of the sandbox")]
    Process {
        /// The recorded pid.
        pid: u32,
    },
    /// Another process listens on its socket.
    #[error("process {found} listens on the socket of the sandbox, but its shim is process {recorded}")]
    PeerProcess {
        /// The process that listens.
        found: u32,
        /// The process in the record.
        recorded: u32,
    },
    /// Another user listens on its socket.
    #[error("user {found} listens on the socket of the sandbox, but its shim runs as user {recorded}")]
    PeerUser {
        /// The user that listens.
        found: u32,
        /// The user in the record.
        recorded: u32,
    },
    /// The shim's hello does not match the record.
    #[error("shim reports {what} {found:?}, but the record has {recorded:?}")]
    Claims {
        /// The field that differs.
        what: IdentityField,
        /// The reported value.
        found: String,
        /// The value in the record.
        recorded: String,
    },
    /// Connecting to its shim failed.
    #[error(transparent)]
    Shim(#[from] ShimError),
}

/// A field of the shim's hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityField {
    /// The name of its sandbox.
    Name,
    /// The incarnation of its sandbox.
    Incarnation,
    BootId,
    /// The pid of the sandbox's first process.
    Process,
}

// === impl DiscoveredSandbox ===

impl DiscoveredSandbox {
    /// Connects to its shim. Everything is inspected again and has to match: the directory, its files, the process, the
    /// peer credentials, and the shim's hello.
    pub async fn connect(&self) -> Result<ShimClient, AdoptError> {
        if self.life != Liveness::Running {
            return Err(AdoptError::NotRunning);
        }
        let (own, now) = self.inspect_again()?;
        match now.problem {
            // A shim cannot evade supervision by changing the mode of its directory.
            None | Some(DiscoveryProblem::Open) => {}
            Some(problem) => return Err(AdoptError::Damaged(problem)),
        }
        let known = self.record.as_ref().ok_or(AdoptError::NotRunning)?;
        let record = now.record.ok_or(AdoptError::NotRunning)?;
        let is_same = self.place.zip(now.place).is_some_and(|(then, now)| layout::is_same(&then, &now));
        if record.incarnation != known.incarnation || !is_same {
            return Err(AdoptError::Replaced);
        }
        if now.life != Liveness::Running {
            return Err(AdoptError::NotRunning);
        }
        if record.shim() != Some(record.shim_pid) {
            return Err(AdoptError::Process { pid: record.shim_pid });
        }
        let client = ShimClient::connect_within(own.as_fd()).await?;
        verify(&record, client.peer(), client.hello())?;
        Ok(client)
    }

    /// Inspects and opens its directory again.
    fn inspect_again(&self) -> Result<(OwnedFd, Self), AdoptError> {
        let failed = |error: io::Error| DiscoveryError::Io { path: self.directory.clone(), source: error };
        let named = (self.directory.parent(), self.directory.file_name().and_then(OsStr::to_str));
        let (Some(above), Some(name)) = named else {
            return Err(failed(io::ErrorKind::InvalidInput.into()).into());
        };
        let parent = layout::open_directory(CWD, above).map_err(failed)?;
        inspect(&parent, above, name, Journal::LOADED)?.ok_or(AdoptError::NotRunning)
    }
}

/// Checks the peer against the record.
fn verify(record: &SandboxRecord, (pid, user): (u32, u32), hello: &Hello) -> Result<(), AdoptError> {
    if pid != record.shim_pid {
        return Err(AdoptError::PeerProcess { found: pid, recorded: record.shim_pid });
    }
    // The socket may have been created before the shim dropped privileges.
    if user != record.supervisor_user && user != rustix::process::geteuid().as_raw() {
        return Err(AdoptError::PeerUser { found: user, recorded: record.supervisor_user });
    }
    let claims = [
        (IdentityField::Name, hello.name.clone(), record.name.clone()),
        (IdentityField::Incarnation, hello.incarnation.clone(), record.incarnation.clone()),
        (IdentityField::BootId, hello.boot_id.clone(), record.boot_id.clone()),
        (IdentityField::Process, hello.shim_pid.to_string(), record.shim_pid.to_string()),
    ];
    if let Some((what, found, recorded)) = claims.into_iter().find(|(_, found, recorded)| found != recorded) {
        return Err(AdoptError::Claims { what, found, recorded });
    }
    // The sandbox's first process is a child of its shim. A process that has exited has no parent.
    match layout::parent_of(hello.pid) {
        Some(parent) if parent != record.shim_pid => {
            let (found, recorded) = (hello.pid.to_string(), format!("a child of {}", record.shim_pid));
            Err(AdoptError::Claims { what: IdentityField::Process, found, recorded })
        }
        _ => Ok(()),
    }
}

// === impl IdentityField ===

impl std::fmt::Display for IdentityField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Name => "name",
            Self::Incarnation => "incarnation",
            Self::BootId => "boot",
            Self::Process => "process",
        })
    }
}

#[cfg(test)]
mod tests;
