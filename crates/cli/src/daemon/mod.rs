//! The daemon that keeps what stays: found by its home, started when it is needed.

mod refusal;
mod start;
pub(crate) mod told;
pub(crate) mod wait;

use std::path::Path;

use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::agbox::v1::{GetSandboxRequest, ListSandboxesRequest, SandboxHandle, SandboxState};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_shim_client::Found;
use tonic::transport::Channel;

pub(crate) use self::refusal::{is_unknown, refused};
use crate::failure::Failure;
use crate::find;
use crate::home::Home;

/// The daemon of our home.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    /// What published clients ask as well.
    pub(crate) sandboxes: SandboxServiceClient<Channel>,
    /// What only Carrel can be asked.
    pub(crate) nearby: SandboxesClient<Channel>,
}

// === impl Daemon ===

impl Daemon {
    /// The one that runs, if there is one.
    pub(crate) async fn running() -> Result<Option<Self>, Failure> {
        find::as_root()?;
        Self::at(Home::find()?.path()).await
    }

    /// The one that runs, or a new one.
    pub(crate) async fn needed() -> Result<Self, Failure> {
        find::as_root()?;
        start::needed(&Home::find()?).await
    }

    /// The one that serves next, after one that is gone.
    pub(crate) async fn returned() -> Result<Self, Failure> {
        start::returned(&Home::find()?).await
    }

    /// The one that runs, or a new one if there is something that it could know.
    pub(crate) async fn of_what_stays() -> Result<Option<Self>, Failure> {
        find::as_root()?;
        let home = Home::find()?;
        match Self::at(home.path()).await? {
            Some(daemon) => Ok(Some(daemon)),
            None if carrel_daemon::store_file(home.path()).exists() => start::needed(&home).await.map(Some),
            None => Ok(None),
        }
    }

    /// The one that serves a home.
    async fn at(home: &Path) -> Result<Option<Self>, Failure> {
        let socket = carrel_daemon::socket_file(home);
        if !socket.exists() {
            return Ok(None);
        }
        // One that is there and does not answer was left by a daemon that is gone.
        let Ok(channel) = carrel_api::connect(&socket).await else { return Ok(None) };
        let (sandboxes, nearby) = (SandboxServiceClient::new(channel.clone()), SandboxesClient::new(channel));
        Ok(Some(Self { sandboxes, nearby }))
    }

    /// A sandbox, if it knows one of that id.
    pub(crate) async fn maybe(&mut self, id: &str) -> Result<Option<SandboxHandle>, Failure> {
        match self.get(id).await {
            Err(status) if is_unknown(&status) => Ok(None),
            Err(status) => Err(refused(&status)),
            Ok(handle) => Ok(Some(handle)),
        }
    }

    /// A sandbox.
    pub(crate) async fn get(&mut self, id: &str) -> Result<SandboxHandle, tonic::Status> {
        let answer = self.sandboxes.get_sandbox(GetSandboxRequest { sandbox_id: id.to_owned() }).await?;
        answer.into_inner().sandbox.ok_or_else(|| tonic::Status::internal("the daemon answered without a sandbox"))
    }

    /// All with some labels.
    pub(crate) async fn list(&mut self, request: ListSandboxesRequest) -> Result<Vec<SandboxHandle>, Failure> {
        let answer = self.sandboxes.list_sandboxes(request).await;
        answer.map(|answer| answer.into_inner().sandboxes).map_err(|status| refused(&status))
    }
}

/// A sandbox that a daemon keeps, and that daemon. One of `carrel run` is its owner's alone, and none that nobody knows.
pub(crate) async fn keeper(name: &str, found: Option<&Found>) -> Result<Option<(Daemon, SandboxHandle)>, Failure> {
    // One that somebody is at may have no record at the moment.
    if found.and_then(|found| found.record.as_ref()).is_some_and(|record| !record.lasting) {
        return Ok(None);
    }
    let Some(mut daemon) = Daemon::of_what_stays().await? else { return Ok(None) };
    let handle = daemon.maybe(name).await?.filter(|handle| handle.state() != SandboxState::Deleted);
    Ok(handle.map(|handle| (daemon, handle)))
}
