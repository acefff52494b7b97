//! A daemon that can die at any moment, and what is asked of it.

use std::sync::Arc;

use carrel_control::fake::FakeProvider;
use carrel_control::spec::{Draft, RestartPolicy};
use carrel_control::{Caller, Control, CreateRequest, ExecRequest, Refusal, Settings};
use carrel_store::{Details, SandboxId, Store, StoreOptions};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::model::{Event, Request};
use crate::steps::{Ask, RESTARTED, SANDBOXES};

const ME: Caller = Caller { user: 1000, group: 1000, trusted: true };

/// How long the log of each sandbox is.
pub(crate) type Lengths = [usize; SANDBOXES];

/// A daemon: what it does is over when its runtime is dropped, wherever it is.
pub(crate) struct Daemon {
    pub(crate) runtime: Runtime,
    pub(crate) control: Control,
    store: Store,
}

/// Something that was asked, and what came of it while the logs grew from one length to another.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) what: Ask,
    pub(crate) before: Lengths,
    pub(crate) after: Lengths,
    pub(crate) outcome: Outcome,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Refused(String, &'static str),
    /// Whoever could have answered is dead, or nobody waited.
    Unknown,
}

/// Somebody who waits for an answer.
pub(crate) struct Asking {
    what: Ask,
    before: Lengths,
    answer: JoinHandle<(Outcome, Lengths)>,
}

// === impl Daemon ===

impl Daemon {
    pub(crate) fn begin(home: &TempDir, provider: &FakeProvider) -> Self {
        Self::after(Self::open(home), provider)
    }

    /// The next daemon, and how long the logs were when it began.
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
        let settings = Settings { idle_ttl: std::time::Duration::ZERO, ..Settings::default() };
        let control = runtime.block_on(Control::start(store.clone(), Arc::new(provider.clone()), settings)).unwrap();
        Self { runtime, control, store }
    }

    pub(crate) fn ask(&self, what: Ask) -> Asking {
        let (control, store) = (self.control.clone(), self.store.clone());
        let before = lengths(&store);
        let answer = self.runtime.spawn(async move {
            let outcome = match answered(&control, what).await {
                Ok(()) => Outcome::Done,
                Err(refusal) => Outcome::Refused(format!("{:?}", refusal.code), refusal.reason),
            };
            (outcome, lengths(&store))
        });
        Asking { what, before, answer }
    }

    /// Waits for an answer.
    pub(crate) fn answer(&self, asking: Asking) -> Asked {
        let Asking { what, before, answer } = asking;
        let (outcome, after) = self.runtime.block_on(answer).unwrap();
        Asked { what, before, after, outcome }
    }

    /// Looks whether one who was asked by a daemon that is dead had answered before.
    pub(crate) fn answer_of_the_dead(&self, asking: Asking, at_death: Lengths) -> Asked {
        let Asking { what, before, answer } = asking;
        let (outcome, after) = self.runtime.block_on(answer).unwrap_or((Outcome::Unknown, at_death));
        Asked { what, before, after, outcome }
    }

    /// Stops waiting. It may be done all the same, at any time.
    pub(crate) fn leave(&self, asking: Asking) -> Asked {
        asking.answer.abort();
        self.answer_of_the_dead(asking, [usize::MAX; SANDBOXES])
    }

    /// What happened to a sandbox, as its clients are told.
    pub(crate) fn log(&self, sandbox: usize) -> Vec<Event> {
        let id = sandbox_id(sandbox);
        let Ok(row) = self.control.get(&ME, &id) else { return Vec::new() };
        let newest = usize::try_from(row.last_sequence).unwrap();
        let mut events = self.control.events(&ME, &id, 0).unwrap();
        let mut log = Vec::new();
        while log.len() < newest {
            let told = self.runtime.block_on(events.next()).unwrap().unwrap();
            log.extend(told.iter().map(|event| plain(event)));
        }
        log
    }

    /// Waits for a state by events alone.
    pub(crate) fn until(&self, sandbox: usize, state: u8) {
        let mut events = self.control.events(&ME, &sandbox_id(sandbox), 0).unwrap();
        while self.seen(sandbox).0 != state {
            self.runtime.block_on(events.next()).unwrap().unwrap();
        }
    }

    /// What a sandbox is seen as, and its execs that run.
    pub(crate) fn seen(&self, sandbox: usize) -> (u8, Vec<String>) {
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

async fn answered(control: &Control, what: Ask) -> Result<(), Refusal> {
    match what {
        Ask::Create(sandbox) => {
            let restart = (sandbox == RESTARTED).then_some(RestartPolicy::OnBoot);
            let spec = Some(Draft { image: "host".to_owned(), restart, ..Draft::default() });
            let request = CreateRequest { id: Some(sandbox_id(sandbox)), spec, ..CreateRequest::default() };
            control.create(&ME, request).await.map(drop)
        }
        Ask::Stop(sandbox) => control.stop(&ME, &sandbox_id(sandbox)).await,
        Ask::Resume(sandbox) => control.resume(&ME, &sandbox_id(sandbox)).await,
        Ask::Delete(sandbox) => control.delete(&ME, &sandbox_id(sandbox)).await,
        Ask::Exec(sandbox, exec) => {
            let request = ExecRequest {
                id: Some(exec_id(exec)),
                sandbox: sandbox_id(sandbox),
                command: vec!["true".to_owned()],
                ..ExecRequest::default()
            };
            control.create_exec(&ME, request).await.map(drop)
        }
        Ask::Cancel(exec) => control.cancel_exec(&ME, &exec_id(exec)).await,
    }
}

/// An event in the words of the model.
fn plain(event: &carrel_store::Event) -> Event {
    let (mut reason, mut error_code, mut exec) = (String::new(), String::new(), None);
    match &event.details {
        Details::None | Details::Service { .. } => {}
        Details::Phase { reason: why, error_code: code, .. } => (reason, error_code) = (why.clone(), code.clone()),
        Details::Exec { exec: id, state, exit_code, .. } => exec = Some((id.to_string(), state.number(), *exit_code)),
    }
    Event { kind: event.kind.number(), state: event.state.number(), reason, error_code, exec }
}

pub(crate) fn sandbox_id(number: usize) -> String {
    format!("box{number}")
}

pub(crate) fn exec_id(number: usize) -> String {
    format!("exec{number}")
}

// === impl Ask ===

impl Ask {
    /// The sandbox that it is asked of, if it says so.
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

    /// The same in the words of the model.
    pub(crate) fn request(self) -> Request {
        match self {
            Self::Create(_) => Request::Create,
            Self::Stop(_) => Request::Stop,
            Self::Resume(_) => Request::Resume,
            Self::Delete(_) => Request::Delete,
            Self::Exec(_, exec) => Request::Exec(exec_id(exec)),
            Self::Cancel(exec) => Request::Cancel(exec_id(exec)),
        }
    }
}
