//! Access to the files of a sandbox, running or stopped.

use std::path::{Path, PathBuf};

use carrel_store::Sandbox;

use super::{Control, place, stage_name};
use crate::codes::reason;
use crate::provider::{DiskReader, ProviderError};
use crate::refusal::{Code, Refusal};
use crate::settings::Caller;
use crate::stage::SandboxStage;

/// An agent that serves the files of a sandbox: the sandbox's own, or a disk reader that is released on drop.
#[derive(Debug)]
pub struct DiskAccess {
    agent_socket: PathBuf,
    reader: Option<Box<dyn DiskReader>>,
}

// === impl DiskAccess ===

impl DiskAccess {
    pub fn agent_socket(&self) -> &Path {
        &self.agent_socket
    }

    /// Returns when the disk reader of a stopped sandbox has ended. The agent of a running sandbox is not watched.
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
    /// Provides access to the files of a sandbox that runs, or that is stopped and could be resumed.
    pub async fn read_disk(&self, caller: &Caller, id: &str) -> Result<DiskAccess, Refusal> {
        let sandbox = self.get(caller, id)?;
        self.check_open()?;
        self.0.check_home()?;
        match SandboxStage::of(&sandbox) {
            SandboxStage::Ready | SandboxStage::Stopping => Ok(self.running_disk(&sandbox)),
            SandboxStage::Stopped | SandboxStage::Recoverable => {
                let spec = self.spec(&sandbox)?;
                match self.0.provider.read_disk(&place(&sandbox), &spec).await {
                    Ok(reader) => Ok(reader.into()),
                    // It may have been resumed meanwhile.
                    Err(_) if matches!(self.stage(caller, id), Some(SandboxStage::Ready)) => {
                        Ok(self.running_disk(&sandbox))
                    }
                    Err(error) => Err(reader_failed(&sandbox, &error).seen_from(caller.namespace())),
                }
            }
            SandboxStage::Creating
            | SandboxStage::Resuming
            | SandboxStage::Failed
            | SandboxStage::Deleting
            | SandboxStage::Deleted => Err(not_readable(&sandbox).seen_from(caller.namespace())),
        }
    }

    /// The agent of a running sandbox. Its sockets have the same paths in every incarnation.
    fn running_disk(&self, sandbox: &Sandbox) -> DiskAccess {
        DiskAccess { agent_socket: self.0.provider.reach(&place(sandbox)).agent_socket, reader: None }
    }

    fn stage(&self, caller: &Caller, id: &str) -> Option<SandboxStage> {
        self.get(caller, id).ok().map(|sandbox| SandboxStage::of(&sandbox))
    }
}

fn reader_failed(sandbox: &Sandbox, error: &ProviderError) -> Refusal {
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
    let (id, state) = (sandbox.id.local(), stage_name(sandbox));
    let message = format!("sandbox {id} is {state}; its files can be read when it is ready or stopped");
    Refusal::new(Code::FailedPrecondition, reason::SANDBOX_NOT_READY, message).about("sandbox_id", sandbox.id.as_str())
}
