//! What all of these tests stand on.

use std::{collections::VecDeque, fs, future::Future, io::ErrorKind, path::Path, time::Duration};

use carrel_agents::{
    agent::{Agent, Conversation, Fact, Opening, Place, Prompt},
    child,
    codex::{Codex, Limits},
    schema::{EventData, Message, Part, TurnOutcome},
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::{io::AsyncReadExt, net::unix::pipe};

/// Whoever waits longer hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A driver with an app-server of the tests.
pub(crate) struct Bench {
    pub(crate) codex: Codex,
    pub(crate) environment: Vec<(String, String)>,
    scratch: TempDir,
}

/// A conversation, and what it said that nobody asked for yet.
pub(crate) struct Talk {
    pub(crate) conversation: Box<dyn Conversation>,
    facts: VecDeque<Fact>,
    prompts: usize,
}

/// A pipe that a process holds open as long as it lives.
pub(crate) struct Watch {
    pub(crate) path: String,
    pipe: pipe::Receiver,
}

/// Runs a test as the server runs, on one thread.
pub(crate) fn on_one_thread(test: impl Future<Output = ()>) {
    child::set_guard_program(env!("CARGO_BIN_EXE_sandbox-agent"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WATCHDOG, test).await.expect("the test hangs") });
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Limits { restart: Duration::from_millis(1), ..Limits::default() })
    }

    pub(crate) fn with(limits: Limits) -> Self {
        let scratch = TempDir::new().unwrap();
        let starts = scratch.path().join("starts").display().to_string();
        let environment = vec![("STARTS".to_owned(), starts)];
        Self { codex: Codex::with(limits), environment, scratch }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// How many app-servers were started.
    pub(crate) fn starts(&self) -> usize {
        fs::read_to_string(self.directory().join("starts")).unwrap_or_default().lines().count()
    }

    pub(crate) fn place(&self) -> Place {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/codex/app_server.py");
        Place { program, environment: self.environment.clone(), directory: self.directory().to_owned() }
    }

    pub(crate) fn opening(&self) -> Opening {
        Opening { session_id: "s".to_owned(), place: self.place(), ..Opening::default() }
    }

    /// A pipe that a process is to hold open as long as it lives.
    pub(crate) fn watch(&self, name: &str) -> Watch {
        let path = self.directory().join(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let pipe = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        Watch { path: path.display().to_string(), pipe }
    }

    /// Hears of the end of the app-server that is started next.
    pub(crate) fn watch_server(&mut self) -> Watch {
        let watch = self.watch("server");
        self.environment.push(("ALIVE".to_owned(), watch.path.clone()));
        watch
    }

    pub(crate) async fn open(&self) -> Talk {
        self.open_with(self.opening()).await
    }

    pub(crate) async fn open_with(&self, opening: Opening) -> Talk {
        Talk { conversation: self.codex.open(opening).await.unwrap(), facts: VecDeque::new(), prompts: 0 }
    }
}

impl Watch {
    /// Waits until the process is there, where it may not even be started.
    pub(crate) async fn started(&mut self) {
        self.pipe.readable().await.unwrap();
        self.there().await;
    }

    /// Makes sure that the process is there.
    pub(crate) async fn there(&mut self) {
        let mut said = [0; 5];
        self.pipe.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"alive");
    }

    /// Whether it still is.
    pub(crate) fn is_there(&self) -> bool {
        self.pipe.try_read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits until it is gone.
    pub(crate) async fn gone(&mut self) {
        assert_eq!(self.pipe.read(&mut [0; 1]).await.unwrap(), 0);
    }
}

impl Talk {
    pub(crate) async fn prompt(&mut self, text: &str) {
        self.prompts += 1;
        let prompt = Prompt { id: format!("prompt-{}", self.prompts), text: text.to_owned() };
        self.conversation.prompt(&prompt).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Fact {
        loop {
            if let Some(fact) = self.facts.pop_front() {
                return fact;
            }
            let mut facts = Vec::new();
            self.conversation.next(&mut facts).await;
            self.facts.extend(facts);
        }
    }

    /// The next fact of which something can be taken; what is before it is thrown away.
    pub(crate) async fn find<T>(&mut self, mut take: impl FnMut(Fact) -> Option<T>) -> T {
        loop {
            if let Some(taken) = take(self.next().await) {
                return taken;
            }
        }
    }

    /// How the turn ended.
    pub(crate) async fn ended(&mut self) -> TurnOutcome {
        self.find(|fact| match fact {
            Fact::TurnEnded { outcome, .. } => Some(outcome),
            Fact::Gone(gone) => panic!("{gone:?}"),
            _ => None,
        })
        .await
    }

    /// What the agent says in this turn, to the turn's end.
    pub(crate) async fn said(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            match self.next().await {
                Fact::Event(EventData::Message(message), _) => said.extend(text(&message)),
                Fact::TurnEnded { .. } => return said,
                Fact::Gone(gone) => panic!("{gone:?}"),
                _ => {}
            }
        }
    }

    /// A whole turn: what is said to it.
    pub(crate) async fn turn(&mut self, text: &str) -> Vec<String> {
        self.prompt(text).await;
        self.said().await
    }
}

/// The text of a message of the agent or the user.
pub(crate) fn text(message: &Message) -> Option<String> {
    let Message::Parsed(message) = message else { return None };
    match message.parts.as_slice() {
        [Part::Text { text }] => Some(format!("{}{text}", if message.role == "user" { "user: " } else { "" })),
        _ => None,
    }
}
