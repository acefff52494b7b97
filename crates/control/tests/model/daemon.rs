//! A daemon that can crash at any time, and requests to it.

use std::sync::Arc;

use carrel_control::fake::FakeProvider;
use carrel_control::spec::{RestartPolicy, SpecDraft};
use carrel_control::{Caller, Control, ControlSettings, CreateRequest, ExecRequest, Refusal};
use carrel_store::{EventDetails, SandboxId, Store, StoreOptions};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::model::{ModelEvent, ModelRequest};
use crate::steps::{ClientRequest, RESTARTED, SANDBOXES};

const ME: Caller = Caller { user: 1000, group: 1000, trusted: true };

/// The number of events of each sandbox.
pub(crate) type Lengths = [usize; SANDBOXES];

/// A daemon. It crashes when its runtime is dropped.
pub(crate) struct ModelDaemon {
    pub(crate) runtime: Runtime,
    pub(crate) control: Control,
    store: Store,
}

/// A request with its outcome, and the numbers of events before and after it.
#[derive(Debug)]
pub(crate) struct CompletedRequest {
    pub(crate) what: ClientRequest,
    pub(crate) before: Lengths,
    pub(crate) after: Lengths,
    pub(crate) outcome: RequestOutcome,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Accepted,
    Refused(String, &'static str),
    /// The daemon crashed, or the client disconnected.
    Unknown,
}

/// A request whose client waits for the answer.
pub(crate) struct PendingRequest {
    what: ClientRequest,
    before: Lengths,
    answer: JoinHandle<(RequestOutcome, Lengths)>,
}

// === impl ModelDaemon ===

impl ModelDaemon {
    pub(crate) fn start(home: &TempDir, provider: &FakeProvider) -> Self {
        Self::after(Self::open(home), provider)
    }

    /// Starts the next daemon. Returns the numbers of events at that time.
    pub(crate) fn next(self, home: &TempDir, provider: &FakeProvider) -> (Self, Lengths) {
        let Self { runtime, control, store } = self;
        drop(runtime);
        drop((control, store));
        let store = Self::open(home);
        let lengths = lengths(&store);
        (Self::after(store, provider), lengths)
    }

    fn open(home: &TempDir) -> Store {
        Store::open(&home.path().join("carrel.db"), StoreOptions::default()).unwrap()
    }

    fn after(store: Store, provider: &FakeProvider) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let settings = ControlSettings { idle_ttl: std::time::Duration::ZERO, ..ControlSettings::default() };
        let control = runtime.block_on(Control::start(store.clone(), Arc::new(provider.clone()), settings)).unwrap();
        Self { runtime, control, store }
    }

    pub(crate) fn send(&self, what: ClientRequest) -> PendingRequest {
        let (control, store) = (self.control.clone(), self.store.clone());
        let before = lengths(&store);
        let answer = self.runtime.spawn(async move {
            let outcome = match carry_out(&control, what).await {
                Ok(()) => RequestOutcome::Accepted,
                Err(refusal) => RequestOutcome::Refused(format!("{:?}", refusal.code), refusal.reason),
            };
            (outcome, lengths(&store))
        });
        PendingRequest { what, before, answer }
    }

    /// Waits for the answer.
    pub(crate) fn answer(&self, pending: PendingRequest) -> CompletedRequest {
        let PendingRequest { what, before, answer } = pending;
        let (outcome, after) = self.runtime.block_on(answer).unwrap();
        CompletedRequest { what, before, after, outcome }
    }

    /// Returns the answer of a crashed daemon, if it was sent before.
    pub(crate) fn answer_before_crash(&self, pending: PendingRequest, at_death: Lengths) -> CompletedRequest {
        let PendingRequest { what, before, answer } = pending;
        let (outcome, after) = self.runtime.block_on(answer).unwrap_or((RequestOutcome::Unknown, at_death));
        CompletedRequest { what, before, after, outcome }
    }

    /// Disconnects the client. The request may be carried out at any time.
    pub(crate) fn disconnect(&self, pending: PendingRequest) -> CompletedRequest {
        pending.answer.abort();
        self.answer_before_crash(pending, [usize::MAX; SANDBOXES])
    }

    /// The events of a sandbox, as clients receive them.
    pub(crate) fn log(&self, sandbox: usize) -> Vec<ModelEvent> {
        let id = sandbox_id(sandbox);
        let Ok(row) = self.control.get(&ME, &id) else { return Vec::new() };
        let newest = usize::try_from(row.last_sequence).unwrap();
        let mut events = self.control.events(&ME, &id, 0).unwrap();
        let mut log = Vec::new();
        while log.len() < newest {
            let batch = self.runtime.block_on(events.next()).unwrap().unwrap();
            log.extend(batch.iter().map(|event| model_event(event)));
        }
        log
    }

    /// Waits for a state by events alone.
    pub(crate) fn until(&self, sandbox: usize, state: u8) {
        let mut events = self.control.events(&ME, &sandbox_id(sandbox), 0).unwrap();
        while self.visible_state(sandbox).0 != state {
            self.runtime.block_on(events.next()).unwrap().unwrap();
        }
    }

    /// The visible state of a sandbox, and its running execs.
    pub(crate) fn visible_state(&self, sandbox: usize) -> (u8, Vec<String>) {
        let id = sandbox_id(sandbox);
        let state = self.control.get(&ME, &id).map_or(0, |row| row.state.number());
        let execs = self.control.active_execs(&ME, Some(&id)).unwrap_or_default();
        (state, execs.iter().map(|(exec, _)| exec.id.to_string()).collect())
    }

    pub(crate) fn close(self) {
        self.runtime.block_on(self.control.shutdown());
        self.runtime.block_on(self.store.close());
    }
}

fn lengths(store: &Store) -> Lengths {
    std::array::from_fn(|sandbox| {
        let row = store.sandbox(&SandboxId::new(sandbox_id(sandbox)).unwrap());
        row.map_or(0, |row| usize::try_from(row.last_sequence).unwrap())
    })
}

async fn carry_out(control: &Control, what: ClientRequest) -> Result<(), Refusal> {
    match what {
        ClientRequest::Create(sandbox) => {
            let restart = (sandbox == RESTARTED).then_some(RestartPolicy::OnBoot);
            let spec = Some(SpecDraft { image: "host".to_owned(), restart, ..SpecDraft::default() });
            let request = CreateRequest { id: Some(sandbox_id(sandbox)), spec, ..CreateRequest::default() };
            control.create(&ME, request).await.map(drop)
        }
        ClientRequest::Stop(sandbox) => control.stop(&ME, &sandbox_id(sandbox)).await,
        ClientRequest::Resume(sandbox) => control.resume(&ME, &sandbox_id(sandbox)).await,
        ClientRequest::Delete(sandbox) => control.delete(&ME, &sandbox_id(sandbox)).await,
        ClientRequest::Exec(sandbox, exec) => {
            let request = ExecRequest {
                id: Some(exec_id(exec)),
                sandbox: sandbox_id(sandbox),
                command: vec!["true".to_owned()],
                ..ExecRequest::default()
            };
            control.create_exec(&ME, request).await.map(drop)
        }
        ClientRequest::Cancel(exec) => control.cancel_exec(&ME, &exec_id(exec)).await,
    }
}

/// Converts an event to that of the model.
fn model_event(event: &carrel_store::Event) -> ModelEvent {
    let (mut reason, mut error_code, mut exec) = (String::new(), String::new(), None);
    match &event.details {
        EventDetails::None | EventDetails::Service { .. } => {}
        EventDetails::Phase { reason: why, error_code: code, .. } => (reason, error_code) = (why.clone(), code.clone()),
        EventDetails::Exec { exec: id, state, exit_code, .. } => {
            exec = Some((id.to_string(), state.number(), *exit_code))
        }
    }
    ModelEvent { kind: event.kind.number(), state: event.state.number(), reason, error_code, exec }
}

pub(crate) fn sandbox_id(number: usize) -> String {
    format!("box{number}")
}

pub(crate) fn exec_id(number: usize) -> String {
    format!("exec{number}")
}

// === impl ClientRequest ===

impl ClientRequest {
    /// The sandbox that it names.
    pub(crate) fn sandbox(self) -> Option<usize> {
        match self {
            Self::Create(sandbox)
            | Self::Stop(sandbox)
            | Self::Resume(sandbox)
            | Self::Delete(sandbox)
            | Self::Exec(sandbox, _) => Some(sandbox),
            Self::Cancel(_) => None,
        }
    }

    /// Converts it to a request of the model.
    pub(crate) fn request(self) -> ModelRequest {
        match self {
            Self::Create(_) => ModelRequest::Create,
            Self::Stop(_) => ModelRequest::Stop,
            Self::Resume(_) => ModelRequest::Resume,
            Self::Delete(_) => ModelRequest::Delete,
            Self::Exec(_, exec) => ModelRequest::Exec(exec_id(exec)),
            Self::Cancel(exec) => ModelRequest::Cancel(exec_id(exec)),
        }
    }
}
