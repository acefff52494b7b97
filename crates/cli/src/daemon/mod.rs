//! The daemon that keeps what stays: found by its home, started when it is needed.

pub(crate) mod render;
mod start;
mod status;
pub(crate) mod wait;

use std::path::Path;
use std::time::Duration;

use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::agbox::v1::{GetSandboxRequest, ListSandboxesRequest, PingRequest, SandboxHandle, SandboxState};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_shim_client::Found;
use tonic::Code;
use tonic::transport::Channel;

pub(crate) use self::status::{is_unknown, refused};
use crate::failure::{Failure, OURS};
use crate::home::CarrelHome;
use crate::{find, moved_home};

/// The largest answer that is read: a list of many sandboxes with many labels is no reason to show none.
const LARGEST: usize = 1 << 30;
/// How long a daemon may take to say that it is there.
const PATIENCE: Duration = Duration::from_secs(5);
/// The code of the failure that the store knows nothing of the disks beside it.
pub(crate) const STORE_LOST: &str = "store_lost";

/// The daemon of our home.
#[derive(Clone, Debug)]
pub(crate) struct DaemonClient {
    /// What published clients ask as well.
    pub(crate) sandboxes: SandboxServiceClient<Channel>,
    /// What only Carrel can be asked.
    pub(crate) nearby: SandboxesClient<Channel>,
}

// === impl DaemonClient ===

impl DaemonClient {
    /// The one that runs, if there is one.
    pub(crate) async fn running() -> Result<Option<Self>, Failure> {
        find::as_root()?;
        Self::at(CarrelHome::find()?.path()).await
    }

    /// The one that runs, or a new one.
    pub(crate) async fn needed() -> Result<Self, Failure> {
        find::as_root()?;
        start::needed(&CarrelHome::find()?).await
    }

    /// The one that serves next, after one that is gone.
    pub(crate) async fn returned() -> Result<Self, Failure> {
        start::returned(&CarrelHome::find()?).await
    }

    /// The one that runs, or a new one if there is something that it could know.
    pub(crate) async fn of_what_stays() -> Result<Option<Self>, Failure> {
        find::as_root()?;
        let home = CarrelHome::find()?;
        match Self::at(home.path()).await? {
            Some(daemon) => Ok(Some(daemon)),
            None => {
                // The sandboxes of a home that was moved away are known to its daemon.
                moved_home::check(home.path())?;
                // A store that was lost has no sandboxes either, but their disks are there.
                carrel_daemon::verify_store(home.path()).map_err(|error| Failure::from(error).exit(OURS))?;
                if has_sandboxes(home.path()) { start::needed(&home).await.map(Some) } else { Ok(None) }
            }
        }
    }

    /// The one that serves a home.
    async fn at(home: &Path) -> Result<Option<Self>, Failure> {
        let socket = carrel_daemon::socket_file(home);
        if !socket.exists() {
            return Ok(None);
        }
        Self::greeted(&socket, PATIENCE).await
    }

    /// The one at a socket, once it has said that it is there.
    async fn greeted(socket: &Path, patience: Duration) -> Result<Option<Self>, Failure> {
        let greeted = tokio::time::timeout(patience, async {
            // One at which nobody listens was left by a daemon that is gone.
            let Ok(channel) = carrel_api::connect(socket).await else { return Ok(None) };
            let mut daemon = Self {
                sandboxes: SandboxServiceClient::new(channel.clone()).max_decoding_message_size(LARGEST),
                nearby: SandboxesClient::new(channel).max_decoding_message_size(LARGEST),
            };
            match daemon.sandboxes.ping(PingRequest {}).await {
                Ok(_) => Ok(Some(daemon)),
                // It is going.
                Err(status) if is_lost(&status) => Ok(None),
                Err(status) => Err(refused(&status)),
            }
        });
        greeted.await.unwrap_or_else(|_| Err(silent(socket, patience)))
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

/// Whether it was the way to the daemon that failed.
fn is_lost(status: &tonic::Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal)
}

fn silent(socket: &Path, patience: Duration) -> Failure {
    let words = format!("the daemon at {} does not answer within {patience:?}", socket.display());
    Failure::new("daemon_silent", words).hint("daemon.lock beside it names its process: see whether that is stopped")
}

/// Whether there is a sandbox in the store of a home, which no daemon serves. One that cannot be read may have some:
/// the daemon says what is wrong with it.
fn has_sandboxes(home: &Path) -> bool {
    let store = carrel_daemon::store_file(home);
    store.exists() && carrel_store::check(&store).map_or(true, |report| report.sandboxes > 0 || !report.is_good())
}

/// A sandbox that a daemon keeps, and that daemon. One of `carrel run` is its owner's alone, and none that nobody knows.
pub(crate) async fn keeper(
    name: &str,
    found: Option<&Found>,
) -> Result<Option<(DaemonClient, SandboxHandle)>, Failure> {
    // One that somebody is at may have no record at the moment.
    if found.and_then(|found| found.record.as_ref()).is_some_and(|record| !record.lasting) {
        return Ok(None);
    }
    let Some(mut daemon) = DaemonClient::of_what_stays().await? else { return Ok(None) };
    let handle = daemon.maybe(name).await?.filter(|handle| handle.state() != SandboxState::Deleted);
    Ok(handle.map(|handle| (daemon, handle)))
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use carrel_control::CreateRequest;
    use carrel_control::spec::Draft;

    use super::*;

    #[tokio::test]
    async fn a_daemon_that_does_not_answer_is_not_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let socket = carrel_daemon::socket_file(home.path());
        assert!(DaemonClient::at(home.path()).await.unwrap().is_none());
        let stopped = UnixListener::bind(&socket).unwrap();
        let failure = DaemonClient::greeted(&socket, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(failure.code, "daemon_silent");
        assert!(failure.message.ends_with("daemon.sock does not answer within 50ms"), "{}", failure.message);
        // To close it is not enough: what another test is just starting has it open too.
        UnixStream::from(OwnedFd::from(stopped)).shutdown(Shutdown::Both).unwrap();
        assert!(DaemonClient::at(home.path()).await.unwrap().is_none(), "this one is gone");
    }

    #[tokio::test]
    async fn a_list_may_be_larger_than_a_message_usually_is() {
        /// Together they are more than the 4 MiB that a client takes by default.
        const SANDBOXES: usize = 24;
        const LABEL: usize = 200_000;
        let home = tempfile::tempdir().unwrap();
        let store =
            carrel_store::Store::open(&home.path().join("carrel.db"), carrel_store::Options::default()).unwrap();
        let provider = std::sync::Arc::new(carrel_control::fake::FakeProvider::default());
        let control =
            carrel_control::Control::start(store, provider, carrel_control::Settings::default()).await.unwrap();
        let caller = carrel_control::Caller { user: 0, group: 0, trusted: true };
        for number in 0..SANDBOXES {
            let labels = [("large".to_owned(), "x".repeat(LABEL))].into();
            let draft = Draft { image: "host".to_owned(), labels, ..Draft::default() };
            let id = Some(format!("desk{number}"));
            control.create(&caller, CreateRequest { id, spec: Some(draft), ..Default::default() }).await.unwrap();
        }
        let listener = tokio::net::UnixListener::bind(carrel_daemon::socket_file(home.path())).unwrap();
        let (_close, closing) = tokio::sync::watch::channel(false);
        let serving = tokio::spawn(carrel_api::serve(control, vec![carrel_api::Listener::Unix(listener)], closing));
        let mut daemon = DaemonClient::at(home.path()).await.unwrap().unwrap();
        let listed = daemon.list(ListSandboxesRequest::default()).await.unwrap();
        assert_eq!(listed.len(), SANDBOXES);
        assert!(listed.iter().all(|handle| handle.labels["large"].len() == LABEL));
        serving.abort();
    }

    #[test]
    fn a_home_without_sandboxes_has_nothing_that_a_daemon_could_know() {
        let home = tempfile::tempdir().unwrap();
        assert!(!has_sandboxes(home.path()));
        let store = carrel_daemon::store_file(home.path());
        std::fs::create_dir(store.parent().unwrap()).unwrap();
        drop(carrel_store::Store::open(&store, carrel_store::Options::default()).unwrap());
        assert!(!has_sandboxes(home.path()));
        let damaged = tempfile::tempdir().unwrap();
        let store = carrel_daemon::store_file(damaged.path());
        std::fs::create_dir(store.parent().unwrap()).unwrap();
        std::fs::write(&store, "no database, but somebody's all the same").unwrap();
        assert!(has_sandboxes(damaged.path()));
    }
}
