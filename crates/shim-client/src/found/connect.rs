//! Talking to the supervisor of a sandbox that was found, once it is certain that it is the one.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::CWD;

use super::{Found, FoundError, Life, Problem, look_at};
use crate::client::ShimClient;
use crate::error::ShimError;
use crate::journal::Journal;
use crate::layout;
use crate::messages::Hello;
use crate::record::SandboxRecord;

/// Why a sandbox that was found is not to be talked to.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// It cannot be looked at any more.
    #[error(transparent)]
    Found(#[from] FoundError),
    /// What is written about it is not believed.
    #[error(transparent)]
    Problem(Problem),
    /// It does not run: it is only being made, or has ended.
    #[error("the sandbox is not running")]
    NotRunning,
    /// What has its name now is another one.
    #[error("the sandbox is gone, and another has its name")]
    Replaced,
    /// The process that was written down is not there, or is another by now.
    #[error("process {pid} is not the supervisor of the sandbox")]
    Process {
        /// Its number.
        pid: u32,
    },
    /// Another process listens on its socket.
    #[error("process {found} listens for the sandbox, and its supervisor is process {recorded}")]
    PeerProcess {
        /// The process that listens.
        found: u32,
        /// The process in the record.
        recorded: u32,
    },
    /// Another user listens on its socket.
    #[error("user {found} listens for the sandbox, and its supervisor is user {recorded}")]
    PeerUser {
        /// The user that listens.
        found: u32,
        /// The user in the record.
        recorded: u32,
    },
    /// The supervisor says of itself what was not written down about it.
    #[error("the supervisor gives its {what} as {found:?}, and not as {recorded:?}")]
    Claims {
        /// What it says something else about.
        what: Claim,
        /// What it says.
        found: String,
        /// What is in the record.
        recorded: String,
    },
    /// Its supervisor cannot be talked to.
    #[error(transparent)]
    Shim(#[from] ShimError),
}

/// What a supervisor says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The name of its sandbox.
    Name,
    /// The incarnation of its sandbox.
    Incarnation,
    /// The boot in which it began.
    BootId,
    /// Its process.
    Process,
}

// === impl Found ===

impl Found {
    /// Connects to its supervisor. What was seen before is looked at again, and all of it has to fit: the directory, what is
    /// written in it, the process, whoever listens, and what the supervisor says of itself.
    pub async fn connect(&self) -> Result<ShimClient, AdoptError> {
        if self.life != Life::Running {
            return Err(AdoptError::NotRunning);
        }
        let (own, now) = self.again()?;
        match now.problem {
            // A supervisor that opens its directory does not get rid of its supervision.
            None | Some(Problem::Open) => {}
            Some(problem) => return Err(AdoptError::Problem(problem)),
        }
        let known = self.record.as_ref().ok_or(AdoptError::NotRunning)?;
        let record = now.record.ok_or(AdoptError::NotRunning)?;
        let is_same = self.place.zip(now.place).is_some_and(|(then, now)| layout::is_same(&then, &now));
        if record.incarnation != known.incarnation || !is_same {
            return Err(AdoptError::Replaced);
        }
        if now.life != Life::Running {
            return Err(AdoptError::NotRunning);
        }
        if record.shim() != Some(record.shim_pid) {
            return Err(AdoptError::Process { pid: record.shim_pid });
        }
        let client = ShimClient::connect_within(own.as_fd()).await?;
        verify(&record, client.peer(), client.hello())?;
        Ok(client)
    }

    /// Looks at its directory once more, and holds it.
    fn again(&self) -> Result<(OwnedFd, Self), AdoptError> {
        let failed = |error: io::Error| FoundError::Io { path: self.directory.clone(), source: error };
        let named = (self.directory.parent(), self.directory.file_name().and_then(OsStr::to_str));
        let (Some(above), Some(name)) = named else {
            return Err(failed(io::ErrorKind::InvalidInput.into()).into());
        };
        let parent = layout::open_directory(CWD, above).map_err(failed)?;
        look_at(&parent, above, name, Journal::LOADED)?.ok_or(AdoptError::NotRunning)
    }
}

/// Whether whoever answered is the one in the record.
fn verify(record: &SandboxRecord, (pid, user): (u32, u32), hello: &Hello) -> Result<(), AdoptError> {
    if pid != record.shim_pid {
        return Err(AdoptError::PeerProcess { found: pid, recorded: record.shim_pid });
    }
    // Its socket may have been made before it gave up being root.
    if user != record.supervisor_user && user != rustix::process::geteuid().as_raw() {
        return Err(AdoptError::PeerUser { found: user, recorded: record.supervisor_user });
    }
    let claims = [
        (Claim::Name, hello.name.clone(), record.name.clone()),
        (Claim::Incarnation, hello.incarnation.clone(), record.incarnation.clone()),
        (Claim::BootId, hello.boot_id.clone(), record.boot_id.clone()),
        (Claim::Process, hello.shim_pid.to_string(), record.shim_pid.to_string()),
    ];
    if let Some((what, found, recorded)) = claims.into_iter().find(|(_, found, recorded)| found != recorded) {
        return Err(AdoptError::Claims { what, found, recorded });
    }
    // The sandbox's first process is a child of its supervisor. One that has ended is nobody's.
    match layout::parent_of(hello.pid) {
        Some(parent) if parent != record.shim_pid => {
            let (found, recorded) = (hello.pid.to_string(), format!("a child of {}", record.shim_pid));
            Err(AdoptError::Claims { what: Claim::Process, found, recorded })
        }
        _ => Ok(()),
    }
}

// === impl Claim ===

impl std::fmt::Display for Claim {
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
