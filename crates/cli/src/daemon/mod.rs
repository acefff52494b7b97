//! The client of the daemon: connects by the home, and starts a daemon when one is needed.

pub(crate) mod render;
mod start;
mod status;
pub(crate) mod wait;

use std::path::Path;
use std::time::Duration;

use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::agbox::v1::{GetSandboxRequest, ListSandboxesRequest, PingRequest, SandboxHandle, SandboxState};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_shim_client::DiscoveredSandbox;
use tonic::Code;
use tonic::transport::Channel;

pub(crate) use self::status::{is_unknown, status_failure};
use crate::failure::{EXIT_CARREL_FAILED, Failure};
use crate::home::CarrelHome;
use crate::{find, moved_home};

/// The largest response that is decoded, enough for many sandboxes with many labels.
const MAX_RESPONSE: usize = 1 << 30;
/// How long a daemon may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The code of the failure that the store does not know the disks in its home.
pub(crate) const STORE_LOST: &str = "store_lost";

/// A connection to the daemon of the home.
#[derive(Clone, Debug)]
pub(crate) struct DaemonClient {
    /// The published API.
    pub(crate) sandboxes: SandboxServiceClient<Channel>,
    /// Carrel's own API.
    pub(crate) carrel: SandboxesClient<Channel>,
}

// === impl DaemonClient ===

impl DaemonClient {
    /// Connects to the running daemon, if there is one.
    pub(crate) async fn connect_to_running() -> Result<Option<Self>, Failure> {
        find::require_root()?;
        Self::connect_to_home(CarrelHome::find()?.path()).await
    }

    /// Connects to the running daemon, or starts one.
    pub(crate) async fn connect_or_start() -> Result<Self, Failure> {
        find::require_root()?;
        start::connect_or_start(&CarrelHome::find()?).await
    }

    /// Waits for the daemon that replaces one that has exited.
    pub(crate) async fn reconnect() -> Result<Self, Failure> {
        start::wait_for_daemon(&CarrelHome::find()?).await
    }

    /// Connects to the running daemon, or starts one if the home has sandboxes.
    pub(crate) async fn connect_if_sandboxes_exist() -> Result<Option<Self>, Failure> {
        find::require_root()?;
        let home = CarrelHome::find()?;
        match Self::connect_to_home(home.path()).await? {
            Some(daemon) => Ok(Some(daemon)),
            None => {
                // The daemon of a home that was moved away knows its sandboxes.
                moved_home::check(home.path())?;
                // A lost store has no sandboxes either, but their disks exist.
                carrel_daemon::verify_store(home.path())
                    .map_err(|error| Failure::from(error).exit(EXIT_CARREL_FAILED))?;
                if has_sandboxes(home.path()) { start::connect_or_start(&home).await.map(Some) } else { Ok(None) }
            }
        }
    }

    /// Connects to the daemon of a home.
    async fn connect_to_home(home: &Path) -> Result<Option<Self>, Failure> {
        let socket = carrel_daemon::socket_file(home);
        if !socket.exists() {
            return Ok(None);
        }
        Self::connect_to_socket(&socket, PING_TIMEOUT).await
    }

    /// Connects to a socket, and pings the daemon behind it.
    async fn connect_to_socket(socket: &Path, timeout: Duration) -> Result<Option<Self>, Failure> {
        let connected = tokio::time::timeout(timeout, async {
            // A socket without a listener was left behind by a daemon that has exited.
            let Ok(channel) = carrel_api::connect(socket).await else { return Ok(None) };
            let mut daemon = Self {
                sandboxes: SandboxServiceClient::new(channel.clone()).max_decoding_message_size(MAX_RESPONSE),
                carrel: SandboxesClient::new(channel).max_decoding_message_size(MAX_RESPONSE),
            };
            match daemon.sandboxes.ping(PingRequest {}).await {
                Ok(_) => Ok(Some(daemon)),
                // The daemon is shutting down.
                Err(status) if is_lost(&status) => Ok(None),
                Err(status) => Err(status_failure(&status)),
            }
        });
        connected.await.unwrap_or_else(|_| Err(unresponsive(socket, timeout)))
    }

    /// The sandbox of an id, if the daemon knows it.
    pub(crate) async fn find(&mut self, id: &str) -> Result<Option<SandboxHandle>, Failure> {
        match self.get(id).await {
            Err(status) if is_unknown(&status) => Ok(None),
            Err(status) => Err(status_failure(&status)),
            Ok(handle) => Ok(Some(handle)),
        }
    }

    /// The sandbox of an id.
    pub(crate) async fn get(&mut self, id: &str) -> Result<SandboxHandle, tonic::Status> {
        let answer = self.sandboxes.get_sandbox(GetSandboxRequest { sandbox_id: id.to_owned() }).await?;
        answer.into_inner().sandbox.ok_or_else(|| tonic::Status::internal("the daemon answered without a sandbox"))
    }

    /// The sandboxes that a request selects.
    pub(crate) async fn list(&mut self, request: ListSandboxesRequest) -> Result<Vec<SandboxHandle>, Failure> {
        let answer = self.sandboxes.list_sandboxes(request).await;
        answer.map(|answer| answer.into_inner().sandboxes).map_err(|status| status_failure(&status))
    }
}

/// Whether the connection failed, rather than the request.
fn is_lost(status: &tonic::Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal)
}

fn unresponsive(socket: &Path, timeout: Duration) -> Failure {
    let message = format!("the daemon at {} does not respond within {timeout:?}", socket.display());
    Failure::new("daemon_silent", message)
        .hint("daemon.lock beside the socket has the daemon's pid: check whether that process is stopped")
}

/// Whether the store of a home without a daemon has sandboxes. An unreadable store may have some: the daemon reports what
/// is wrong with it.
fn has_sandboxes(home: &Path) -> bool {
    let store = carrel_daemon::store_file(home);
    store.exists() && carrel_store::Store::has_sandboxes(&store).unwrap_or(true)
}

/// A persistent sandbox, and the daemon that owns it; none for an ephemeral or an unknown one.
pub(crate) async fn find_persistent(
    name: &str,
    found: Option<&DiscoveredSandbox>,
) -> Result<Option<(DaemonClient, SandboxHandle)>, Failure> {
    // A sandbox that is just starting or being removed may have no record.
    if found.and_then(|found| found.record.as_ref()).is_some_and(|record| !record.lasting) {
        return Ok(None);
    }
    let Some(mut daemon) = DaemonClient::connect_if_sandboxes_exist().await? else { return Ok(None) };
    let handle = daemon.find(name).await?.filter(|handle| handle.state() != SandboxState::Deleted);
    Ok(handle.map(|handle| (daemon, handle)))
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use carrel_control::CreateRequest;
    use carrel_control::spec::SpecDraft;

    use super::*;

    #[tokio::test]
    async fn a_daemon_that_does_not_respond_times_out() {
        let home = tempfile::tempdir().unwrap();
        let socket = carrel_daemon::socket_file(home.path());
        assert!(DaemonClient::connect_to_home(home.path()).await.unwrap().is_none());
        let stopped = UnixListener::bind(&socket).unwrap();
        let failure = DaemonClient::connect_to_socket(&socket, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(failure.code, "daemon_silent");
        assert!(failure.message.ends_with("daemon.sock does not respond within 50ms"), "{}", failure.message);
        // Closing it is not enough: a process that another test is just starting has inherited it.
        UnixStream::from(OwnedFd::from(stopped)).shutdown(Shutdown::Both).unwrap();
        assert!(DaemonClient::connect_to_home(home.path()).await.unwrap().is_none(), "the listener is closed");
    }

    #[tokio::test]
    async fn a_list_may_exceed_the_default_message_size() {
        /// Together they exceed the default limit of 4 MiB.
        const SANDBOXES: usize = 24;
        const LABEL: usize = 200_000;
        let home = tempfile::tempdir().unwrap();
        let store =
            carrel_store::Store::open(&home.path().join("carrel.db"), carrel_store::StoreOptions::default()).unwrap();
        let provider = std::sync::Arc::new(carrel_control::fake::FakeProvider::default());
        let control =
            carrel_control::Control::start(store, provider, carrel_control::ControlSettings::default()).await.unwrap();
        let caller = carrel_control::Caller { user: 0, group: 0, trusted: true };
        for number in 0..SANDBOXES {
            let labels = [("large".to_owned(), "x".repeat(LABEL))].into();
            let draft = SpecDraft { image: "host".to_owned(), labels, ..SpecDraft::default() };
            let id = Some(format!("desk{number}"));
            control.create(&caller, CreateRequest { id, spec: Some(draft), ..Default::default() }).await.unwrap();
        }
        let listener = tokio::net::UnixListener::bind(carrel_daemon::socket_file(home.path())).unwrap();
        let (_close, closing) = tokio::sync::watch::channel(false);
        let serving = tokio::spawn(carrel_api::serve(control, vec![carrel_api::Listener::Unix(listener)], closing));
        let mut daemon = DaemonClient::connect_to_home(home.path()).await.unwrap().unwrap();
        let listed = daemon.list(ListSandboxesRequest::default()).await.unwrap();
        assert_eq!(listed.len(), SANDBOXES);
        assert!(listed.iter().all(|handle| handle.labels["large"].len() == LABEL));
        serving.abort();
    }

    #[test]
    fn a_home_without_sandboxes_needs_no_daemon() {
        let home = tempfile::tempdir().unwrap();
        assert!(!has_sandboxes(home.path()));
        let store = carrel_daemon::store_file(home.path());
        std::fs::create_dir(store.parent().unwrap()).unwrap();
        drop(carrel_store::Store::open(&store, carrel_store::StoreOptions::default()).unwrap());
        assert!(!has_sandboxes(home.path()));
        let damaged = tempfile::tempdir().unwrap();
        let store = carrel_daemon::store_file(damaged.path());
        std::fs::create_dir(store.parent().unwrap()).unwrap();
        std::fs::write(&store, "not a database").unwrap();
        assert!(has_sandboxes(damaged.path()));
    }
}
