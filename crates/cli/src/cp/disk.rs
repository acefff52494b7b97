//! The disk of a persistent sandbox that has stopped, open for the time of a copy.

use std::path::PathBuf;

use carrel_agent_client::AgentClient;
use carrel_api::agbox::v1::{SandboxHandle, SandboxState};
use carrel_api::carrel::v1::{OpenDiskRequest, OpenDiskResponse};
use carrel_shim_client::Life;
use tonic::Streaming;

use crate::daemon::{DaemonClient, keeper, refused};
use crate::failure::Failure;
use crate::find;

/// A disk that the daemon keeps open until this is dropped.
#[derive(Debug)]
pub(super) struct OpenDisk {
    agent_socket: PathBuf,
    _stream: Streaming<OpenDiskResponse>,
}

/// A persistent sandbox that does not run, with its daemon.
pub(super) async fn stopped(name: &str) -> Result<Option<(DaemonClient, SandboxHandle)>, Failure> {
    let found = find::maybe(name)?;
    // One whose last start is just being removed looks as if it was being made: the daemon knows.
    if found.as_ref().is_some_and(|found| found.life == Life::Running) {
        return Ok(None);
    }
    let kept = keeper(name, found.as_ref()).await?;
    Ok(kept.filter(|(_, handle)| matches!(handle.state(), SandboxState::Stopped | SandboxState::Failed)))
}

// === impl OpenDisk ===

impl OpenDisk {
    /// Opens the disk of a sandbox, as its daemon knows it.
    pub(super) async fn open(mut daemon: DaemonClient, name: &str) -> Result<Self, Failure> {
        let request = OpenDiskRequest { sandbox_id: name.to_owned() };
        let mut stream = daemon.nearby.open_disk(request).await.map_err(|status| refused(&status))?.into_inner();
        let first = stream.message().await.map_err(|status| refused(&status))?;
        let first = first.ok_or_else(|| Failure::new("daemon_unavailable", "the daemon answered without a socket"))?;
        Ok(Self { agent_socket: first.agent_socket.into(), _stream: stream })
    }

    /// The agent on it.
    pub(super) async fn agent(&self) -> Result<AgentClient, Failure> {
        let connected = AgentClient::connect(&self.agent_socket).await;
        connected.map_err(|error| Failure::new("agent_unreachable", error))
    }

    /// What a copy fails with when the disk is closed under it.
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
