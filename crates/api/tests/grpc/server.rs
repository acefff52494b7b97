//! A daemon in this process, and its clients.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::agbox::v1::{
    CreateExecRequest, CreateSandboxRequest, CreateSpec, EventType, SandboxEvent, SubscribeSandboxEventsRequest,
};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_api::{ApiError, Listener, ServerOptions};
use carrel_control::fake::FakeProvider;
use carrel_control::provider::Provider;
use carrel_control::{Control, ControlSettings};
use carrel_store::{SandboxId, Store, StoreOptions};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

/// The maximum time that a test waits.
pub const WATCHDOG: Duration = Duration::from_secs(60);

pub type Client = SandboxServiceClient<Channel>;

/// A daemon with its API on a socket.
pub struct GrpcTestServer {
    pub home: TempDir,
    pub fake: FakeProvider,
    pub control: Control,
    pub store: Store,
    pub socket: PathBuf,
    closing: watch::Sender<bool>,
    served: JoinHandle<Result<(), ApiError>>,
}

impl GrpcTestServer {
    pub async fn new() -> Self {
        Self::with(ServerOptions::default(), |_, fake| Arc::new(fake)).await
    }

    pub async fn with(
        tuning: ServerOptions,
        provider: impl FnOnce(&std::path::Path, FakeProvider) -> Arc<dyn Provider>,
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        let fake = FakeProvider::default();
        let store = Store::open(&home.path().join("carrel.db"), StoreOptions::default()).unwrap();
        let provider = provider(home.path(), fake.clone());
        let control = Control::start(store.clone(), provider, ControlSettings::default()).await.unwrap();
        let socket = home.path().join("agboxd.sock");
        let listeners = vec![Listener::Unix(UnixListener::bind(&socket).unwrap())];
        let (closing, closed) = watch::channel(false);
        let served = tokio::spawn(carrel_api::serve_tuned(control.clone(), listeners, closed, tuning));
        Self { home, fake, control, store, socket, closing, served }
    }

    pub async fn client(&self) -> Client {
        SandboxServiceClient::new(carrel_api::connect(&self.socket).await.unwrap())
    }

    pub async fn carrel_v1(&self) -> SandboxesClient<Channel> {
        SandboxesClient::new(carrel_api::connect(&self.socket).await.unwrap())
    }

    /// Starts the shutdown.
    pub fn close(&self) {
        self.closing.send(true).unwrap();
    }

    /// Waits until the server has stopped.
    pub async fn served(self) {
        tokio::time::timeout(WATCHDOG, self.served).await.unwrap().unwrap().unwrap();
    }

    pub async fn purge(&self, id: &str) {
        self.store.purge(&SandboxId::new(id).unwrap()).await.unwrap();
    }
}

/// A valid spec.
pub fn spec() -> CreateSpec {
    CreateSpec { image: "host".to_owned(), ..Default::default() }
}

pub fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub fn create(id: &str) -> CreateSandboxRequest {
    CreateSandboxRequest { create_spec: Some(spec()), sandbox_id: id.to_owned(), config_yaml: Vec::new() }
}

pub fn exec(sandbox: &str, id: &str) -> CreateExecRequest {
    CreateExecRequest {
        sandbox_id: sandbox.to_owned(),
        command: vec!["true".to_owned()],
        cwd: "/workspace".to_owned(),
        exec_id: id.to_owned(),
        ..Default::default()
    }
}

pub fn subscribe(id: &str, from_sequence: u64) -> SubscribeSandboxEventsRequest {
    SubscribeSandboxEventsRequest { sandbox_id: id.to_owned(), from_sequence, include_current_snapshot: false }
}

/// Creates a sandbox, and waits until it is ready. Returns its newest sequence.
pub async fn ready(client: &mut Client, id: &str) -> u64 {
    let handle = client.create_sandbox(create(id)).await.unwrap().into_inner().sandbox.unwrap();
    assert_eq!(handle.last_event_sequence, 1);
    let mut events = client.subscribe_sandbox_events(subscribe(id, 1)).await.unwrap().into_inner();
    until(&mut events, EventType::SandboxReady).await.sequence
}

/// The next event.
pub async fn next(events: &mut Streaming<SandboxEvent>) -> SandboxEvent {
    tokio::time::timeout(WATCHDOG, events.message()).await.unwrap().unwrap().unwrap()
}

/// The next event of a kind.
pub async fn until(events: &mut Streaming<SandboxEvent>, kind: EventType) -> SandboxEvent {
    loop {
        let event = next(events).await;
        if event.event_type() == kind {
            return event;
        }
    }
}

/// The status that ended a stream.
pub async fn end<T>(events: &mut Streaming<T>) -> Result<(), Status> {
    let drain = async {
        while events.message().await?.is_some() {}
        Ok(())
    };
    tokio::time::timeout(WATCHDOG, drain).await.unwrap()
}

/// The code, the reason and the metadata of an error.
pub fn error_info(status: &Status) -> (Code, String, BTreeMap<String, String>) {
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("no reason: {status:?}"));
    assert_eq!(info.domain, "agents-sandbox");
    (status.code(), info.reason, info.metadata.into_iter().collect())
}

/// Asserts that a request was refused with this error.
#[track_caller]
pub fn is_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, reason: &str, metadata: &[(&str, &str)]) {
    assert_eq!(error_info(&answer.unwrap_err()), (code, reason.to_owned(), pairs(metadata)));
}
