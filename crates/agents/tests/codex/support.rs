//! Helpers of these tests.

use std::{collections::VecDeque, fs, future::Future, io::ErrorKind, path::Path, time::Duration};

use carrel_agents::{
    agent::{AgentDriver, AgentEvent, AgentProgram, Conversation, ConversationOptions, Prompt},
    child,
    codex::{Codex, CodexLimits},
    schema::{EventData, MessagePart, TurnOutcome, UniversalMessage},
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::{io::AsyncReadExt, net::unix::pipe};

/// Watchdog of every test.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A driver with a fake app-server.
pub(crate) struct CodexFixture {
    pub(crate) codex: Codex,
    pub(crate) environment: Vec<(String, String)>,
    scratch: TempDir,
}

/// A conversation, with events that were not read yet.
pub(crate) struct TestConversation {
    pub(crate) conversation: Box<dyn Conversation>,
    events: VecDeque<AgentEvent>,
    prompts: usize,
}

/// A pipe that a process holds open while it runs.
pub(crate) struct ProcessWatch {
    pub(crate) path: String,
    pipe: pipe::Receiver,
}

/// Runs a test on one thread, as the server does.
pub(crate) fn on_one_thread(test: impl Future<Output = ()>) {
    child::set_guard_program(env!("CARGO_BIN_EXE_sandbox-agent"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WATCHDOG, test).await.expect("the test hangs") });
}

impl CodexFixture {
    pub(crate) fn new() -> Self {
        Self::with(CodexLimits { restart_delay: Duration::from_millis(1), ..CodexLimits::default() })
    }

    pub(crate) fn with(limits: CodexLimits) -> Self {
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

    /// What each app-server received, in order: whether it was a request, and its method.
    pub(crate) fn received(&self) -> Vec<Vec<(bool, String)>> {
        let text = fs::read_to_string(self.directory().join("starts.messages")).unwrap_or_default();
        let mut servers: Vec<(u32, Vec<(bool, String)>)> = Vec::new();
        for line in text.lines() {
            let (pid, request, method) = serde_json::from_str(line).unwrap();
            match servers.iter_mut().find(|(server, _)| *server == pid) {
                Some((_, messages)) => messages.push((request, method)),
                None => servers.push((pid, vec![(request, method)])),
            }
        }
        servers.into_iter().map(|(_, messages)| messages).collect()
    }

    /// Asserts that each app-server received one handshake, before anything else.
    pub(crate) fn expect_one_handshake_each(&self, servers: usize) {
        let received = self.received();
        assert_eq!(received.len(), servers);
        let handshake = [(true, "initialize".to_owned()), (false, "initialized".to_owned())];
        for messages in received {
            assert_eq!(messages[..2], handshake);
            assert!(messages.len() > 2, "it received something after the handshake");
            assert!(!messages[2..].iter().any(|(_, method)| method.starts_with("initialize")), "{messages:?}");
        }
    }

    pub(crate) fn program(&self) -> AgentProgram {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/codex/app_server.py");
        AgentProgram { path, environment: self.environment.clone(), directory: self.directory().to_owned() }
    }

    pub(crate) fn options(&self) -> ConversationOptions {
        ConversationOptions { session_id: "s".to_owned(), program: self.program(), ..ConversationOptions::default() }
    }

    /// Creates a pipe for a process to hold open.
    pub(crate) fn watch(&self, name: &str) -> ProcessWatch {
        let path = self.directory().join(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let pipe = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        ProcessWatch { path: path.display().to_string(), pipe }
    }

    /// Watches the next app-server.
    pub(crate) fn watch_server(&mut self) -> ProcessWatch {
        let watch = self.watch("server");
        self.environment.push(("ALIVE".to_owned(), watch.path.clone()));
        watch
    }

    pub(crate) async fn open(&self) -> TestConversation {
        self.open_with(self.options()).await
    }

    pub(crate) async fn open_with(&self, options: ConversationOptions) -> TestConversation {
        TestConversation { conversation: self.codex.open(options).await.unwrap(), events: VecDeque::new(), prompts: 0 }
    }
}

impl ProcessWatch {
    /// Waits until the process runs, even if it was not started yet.
    pub(crate) async fn started(&mut self) {
        self.pipe.readable().await.unwrap();
        self.there().await;
    }

    /// Asserts that the process runs.
    pub(crate) async fn there(&mut self) {
        let mut output = [0; 5];
        self.pipe.read_exact(&mut output).await.unwrap();
        assert_eq!(&output, b"alive");
    }

    /// Whether the process still runs.
    pub(crate) fn is_there(&self) -> bool {
        self.pipe.try_read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits until the process is gone.
    pub(crate) async fn gone(&mut self) {
        assert_eq!(self.pipe.read(&mut [0; 1]).await.unwrap(), 0);
    }
}

impl TestConversation {
    pub(crate) async fn prompt(&mut self, text: &str) {
        self.prompts += 1;
        let prompt = Prompt { id: format!("prompt-{}", self.prompts), text: text.to_owned() };
        self.conversation.prompt(&prompt).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> AgentEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let mut events = Vec::new();
            self.conversation.next(&mut events).await;
            self.events.extend(events);
        }
    }

    /// The next event that matches; earlier ones are dropped.
    pub(crate) async fn find<T>(&mut self, mut take: impl FnMut(AgentEvent) -> Option<T>) -> T {
        loop {
            if let Some(taken) = take(self.next().await) {
                return taken;
            }
        }
    }

    /// The outcome of the turn.
    pub(crate) async fn ended(&mut self) -> TurnOutcome {
        self.find(|event| match event {
            AgentEvent::TurnEnded { outcome, .. } => Some(outcome),
            AgentEvent::Exited(gone) => panic!("{gone:?}"),
            _ => None,
        })
        .await
    }

    /// The messages of the agent until the turn ends.
    pub(crate) async fn messages(&mut self) -> Vec<String> {
        let mut output = Vec::new();
        loop {
            match self.next().await {
                AgentEvent::Event(EventData::Message(message), _) => output.extend(text(&message)),
                AgentEvent::TurnEnded { .. } => return output,
                AgentEvent::Exited(gone) => panic!("{gone:?}"),
                _ => {}
            }
        }
    }

    /// A whole turn: sends a prompt and returns the messages.
    pub(crate) async fn turn(&mut self, text: &str) -> Vec<String> {
        self.prompt(text).await;
        self.messages().await
    }
}

/// Text of a message.
pub(crate) fn text(message: &UniversalMessage) -> Option<String> {
    let UniversalMessage::Parsed(message) = message else { return None };
    match message.parts.as_slice() {
        [MessagePart::Text { text }] => Some(format!("{}{text}", if message.role == "user" { "user: " } else { "" })),
        _ => None,
    }
}
