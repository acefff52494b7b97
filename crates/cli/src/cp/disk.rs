//! The disk of a stopped persistent sandbox, which the daemon opens for a copy.

use std::path::PathBuf;

use carrel_agent_client::AgentClient;
use carrel_api::agbox::v1::{SandboxHandle, SandboxState};
use carrel_api::carrel::v1::{OpenDiskRequest, OpenDiskResponse};
use carrel_shim_client::Liveness;
use tonic::Streaming;

use crate::daemon::{DaemonClient, find_persistent, status_failure};
use crate::failure::Failure;
use crate::find;

/// A disk that the daemon keeps open until this is dropped.
#[derive(Debug)]
pub(super) struct OpenDisk {
    agent_socket: PathBuf,
    _stream: Streaming<OpenDiskResponse>,
}

/// A persistent sandbox that is not running, with its daemon.
pub(super) async fn stopped(name: &str) -> Result<Option<(DaemonClient, SandboxHandle)>, Failure> {
    let found = find::existing(name)?;
    // A sandbox whose last incarnation is being removed looks like one that is starting: the daemon knows.
    if found.as_ref().is_some_and(|found| found.life == Liveness::Running) {
        return Ok(None);
    }
    let persistent = find_persistent(name, found.as_ref()).await?;
    Ok(persistent.filter(|(_, handle)| matches!(handle.state(), SandboxState::Stopped | SandboxState::Failed)))
}

// === impl OpenDisk ===

impl OpenDisk {
    /// Opens the disk of a sandbox.
    pub(super) async fn open(mut daemon: DaemonClient, name: &str) -> Result<Self, Failure> {
        let request = OpenDiskRequest { sandbox_id: name.to_owned() };
        let mut stream = daemon.carrel.open_disk(request).await.map_err(|status| status_failure(&status))?.into_inner();
        let first = stream.message().await.map_err(|status| status_failure(&status))?;
        let first = first.ok_or_else(|| Failure::new("daemon_unavailable", "the daemon returned no socket"))?;
        Ok(Self { agent_socket: first.agent_socket.into(), _stream: stream })
    }

    /// Connects to the agent that serves the disk.
    pub(super) async fn agent(&self) -> Result<AgentClient, Failure> {
        let connected = AgentClient::connect(&self.agent_socket).await;
        connected.map_err(|error| Failure::new("agent_unreachable", error))
    }

    /// Explains the failure of a copy whose disk was closed.
    pub(super) fn lost(failure: Failure) -> Failure {
        match failure.code {
            "sandbox_ended" => Failure {
                message: "the sandbox was resumed or removed during the copy".to_owned(),
                ..failure.hint("run the same command again")
            },
            _ => failure,
        }
    }
}
