//! Files of a sandbox, whether it runs or has stopped.

use std::path::{Path, PathBuf};

use carrel_store::Sandbox;

use super::{Control, place, shown};
use crate::machine::Stage;
use crate::provider::{DiskReader, ProviderError};
use crate::refusal::{Code, Refusal};
use crate::settings::Caller;
use crate::words::reason;

/// An agent that reads the files of a sandbox: its own, or one that is released when this is dropped.
#[derive(Debug)]
pub struct DiskAccess {
    agent_socket: PathBuf,
    reader: Option<Box<dyn DiskReader>>,
}

// === impl DiskAccess ===

impl DiskAccess {
    /// The socket of the agent.
    pub fn agent_socket(&self) -> &Path {
        &self.agent_socket
    }

    /// Returns when the agent of a stopped sandbox is gone. That of a running sandbox is not watched.
    pub async fn ended(&self) {
        match &self.reader {
            Some(reader) => reader.ended().await,
            None => std::future::pending().await,
        }
    }
}

impl From<Box<dyn DiskReader>> for DiskAccess {
    fn from(reader: Box<dyn DiskReader>) -> Self {
        Self { agent_socket: reader.agent_socket().to_owned(), reader: Some(reader) }
    }
}

// === impl Control ===

impl Control {
    /// How to read the files of a sandbox that runs, or that has stopped and could be resumed.
    pub async fn read_disk(&self, caller: &Caller, id: &str) -> Result<DiskAccess, Refusal> {
        let sandbox = self.get(caller, id)?;
        self.open()?;
        self.0.check_home()?;
        match Stage::of(&sandbox) {
            Stage::Ready | Stage::Stopping => Ok(self.of_running(&sandbox)),
            Stage::Stopped | Stage::Recoverable => {
                let spec = self.spec(&sandbox)?;
                match self.0.provider.read_disk(&place(&sandbox), &spec).await {
                    Ok(reader) => Ok(reader.into()),
                    // It may have been resumed since it was looked at.
                    Err(_) if matches!(self.stage(caller, id), Some(Stage::Ready)) => Ok(self.of_running(&sandbox)),
                    Err(error) => Err(unreadable(&sandbox, &error).seen_from(caller.namespace())),
                }
            }
            Stage::Creating | Stage::Resuming | Stage::Failed | Stage::Deleting | Stage::Deleted => {
                Err(not_readable(&sandbox).seen_from(caller.namespace()))
            }
        }
    }

    /// The agent of a sandbox that runs. Its sockets are the same from start to start.
    fn of_running(&self, sandbox: &Sandbox) -> DiskAccess {
        DiskAccess { agent_socket: self.0.provider.reach(&place(sandbox)).agent_socket, reader: None }
    }

    fn stage(&self, caller: &Caller, id: &str) -> Option<Stage> {
        self.get(caller, id).ok().map(|sandbox| Stage::of(&sandbox))
    }
}

fn unreadable(sandbox: &Sandbox, error: &ProviderError) -> Refusal {
    let message = error.message.clone();
    let refusal = match error.code {
        Some(ProviderError::LIMIT_REACHED) => {
            Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, message).about("limit", "disk_readers")
        }
        _ => Refusal::new(Code::FailedPrecondition, reason::PROVIDER_FAILED, message),
    };
    refusal.about("sandbox_id", sandbox.id.as_str())
}

fn not_readable(sandbox: &Sandbox) -> Refusal {
    let (id, state) = (sandbox.id.local(), shown(sandbox));
    let words = format!("the sandbox {id} is {state}: files are read from one that is ready or stopped");
    Refusal::new(Code::FailedPrecondition, reason::SANDBOX_NOT_READY, words).about("sandbox_id", sandbox.id.as_str())
}
