//! A control plane for tests, without the API.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use carrel_control::fake::FakeProvider;
use carrel_control::spec::{Host, SpecDraft};
use carrel_control::{Caller, Control, ControlSettings, CreateRequest, ExecRequest, Refusal};
use carrel_store::{Event, EventType, Exec, Sandbox, SandboxState, Store, StoreOptions};

pub(crate) const ME: Caller = Caller { user: 1000, group: 1000, trusted: true };
const WATCHDOG: Duration = Duration::from_secs(60);

pub(crate) struct TestDaemon {
    pub(crate) control: Control,
    pub(crate) provider: FakeProvider,
    pub(crate) store: Store,
    settings: ControlSettings,
    home: tempfile::TempDir,
}

impl TestDaemon {
    pub(crate) async fn new() -> Self {
        Self::with(ControlSettings { host: Host::default(), ..ControlSettings::default() }).await
    }

    pub(crate) async fn with(settings: ControlSettings) -> Self {
        let (home, provider) = (tempfile::tempdir().unwrap(), FakeProvider::default());
        let (store, control) = begin(home.path(), &provider, &settings).await;
        Self { control, provider, store, settings, home }
    }

    pub(crate) async fn ready(id: &str) -> Self {
        let daemon = Self::new().await;
        daemon.create(id).await;
        daemon.until(id, SandboxState::Ready).await;
        daemon
    }

    /// Stops this daemon wherever it is, and starts another one.
    pub(crate) async fn crash(&mut self) {
        self.control.shutdown().await;
        self.store.close().await;
        (self.store, self.control) = begin(self.home.path(), &self.provider, &self.settings).await;
    }

    pub(crate) async fn create(&self, id: &str) -> Arc<Sandbox> {
        self.try_create(id, |_| {}).await.unwrap()
    }

    pub(crate) async fn try_create(
        &self,
        id: &str,
        change: impl FnOnce(&mut SpecDraft),
    ) -> Result<Arc<Sandbox>, Refusal> {
        self.control.create(&ME, request(Some(id), change)).await
    }

    pub(crate) async fn exec(&self, sandbox: &str, id: &str) -> Result<Arc<Exec>, Refusal> {
        let request = ExecRequest {
            id: Some(id.to_owned()),
            sandbox: sandbox.to_owned(),
            command: vec!["true".to_owned()],
            ..ExecRequest::default()
        };
        self.control.create_exec(&ME, request).await
    }

    /// Waits for a state by events alone, as published clients do.
    pub(crate) async fn until(&self, id: &str, state: SandboxState) -> Arc<Sandbox> {
        let waiting = async {
            let mut sandbox = self.control.get(&ME, id).unwrap();
            let mut events = self.control.events(&ME, id, sandbox.last_sequence).unwrap();
            while sandbox.state != state {
                events.next().await.unwrap().unwrap();
                sandbox = self.control.get(&ME, id).unwrap();
            }
            sandbox
        };
        tokio::time::timeout(WATCHDOG, waiting).await.unwrap_or_else(|_| panic!("{id} is never {state:?}"))
    }

    /// Waits for this sequence.
    pub(crate) async fn until_sequence(&self, id: &str, sequence: u64) {
        let waiting = async {
            let mut events = self.control.events(&ME, id, 0).unwrap();
            while self.control.get(&ME, id).unwrap().last_sequence < sequence {
                events.next().await.unwrap().unwrap();
            }
        };
        tokio::time::timeout(WATCHDOG, waiting).await.unwrap_or_else(|_| panic!("{id} has no event {sequence}"));
    }

    pub(crate) async fn until_ended(&self, id: &str) -> Arc<Exec> {
        let waiting = async {
            let (mut exec, sequence) = self.control.exec(&ME, id).await.unwrap();
            let mut events = self.control.events(&ME, exec.sandbox.as_str(), sequence).unwrap();
            while exec.state == carrel_store::ExecState::Running {
                events.next().await.unwrap().unwrap();
                (exec, _) = self.control.exec(&ME, id).await.unwrap();
            }
            exec
        };
        tokio::time::timeout(WATCHDOG, waiting).await.unwrap_or_else(|_| panic!("{id} never ends"))
    }

    /// Waits until the provider runs an exec, which no event reports.
    pub(crate) async fn until_running(&self, exec: &str) {
        let waiting = async {
            while !self.provider.running_execs().iter().any(|running| running == exec) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WATCHDOG, waiting).await.unwrap();
    }

    /// Waits until the free disk space was read this many times.
    pub(crate) async fn until_disk_space_calls(&self, times: u64) {
        let waiting = async {
            while self.provider.disk_space_calls() < times {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WATCHDOG, waiting).await.unwrap();
    }

    /// Waits until the reaper ran this many times.
    pub(crate) async fn until_reaped(&self, times: u64) {
        tokio::time::timeout(WATCHDOG, self.provider.wait_for_reaps(times)).await.unwrap();
    }

    pub(crate) async fn events(&self, id: &str) -> Vec<Arc<Event>> {
        let newest = self.control.get(&ME, id).unwrap().last_sequence;
        let (mut stream, mut events) = (self.control.events(&ME, id, 0).unwrap(), Vec::new());
        while events.last().is_none_or(|event: &Arc<Event>| event.sequence < newest) {
            events.extend(stream.next().await.unwrap().unwrap());
        }
        events
    }

    /// Stops this daemon and checks the consistency of its store.
    pub(crate) async fn check(self) {
        self.control.shutdown().await;
        self.store.close().await;
        let report = carrel_store::check(&self.home.path().join("carrel.db")).unwrap();
        assert!(report.violations.is_empty(), "{:?}", report.violations);
    }
}

pub(crate) fn request(id: Option<&str>, change: impl FnOnce(&mut SpecDraft)) -> CreateRequest {
    let mut draft = SpecDraft { image: "host".to_owned(), ..SpecDraft::default() };
    change(&mut draft);
    CreateRequest { id: id.map(str::to_owned), spec: Some(draft), ..CreateRequest::default() }
}

pub(crate) fn kinds(events: &[Arc<Event>]) -> Vec<EventType> {
    events.iter().map(|event| event.kind).collect()
}

async fn begin(home: &Path, provider: &FakeProvider, settings: &ControlSettings) -> (Store, Control) {
    let store = Store::open(&home.join("carrel.db"), StoreOptions::default()).unwrap();
    let provider = Arc::new(provider.clone());
    let control = Control::start(store.clone(), provider, settings.clone()).await.unwrap();
    (store, control)
}
