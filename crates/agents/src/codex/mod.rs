//! Codex: one `codex app-server` for all sessions, which speaks JSON-RPC in lines.
//!
//! The app-server is started by the first session, with that session's credentials, and works for all of them. `CODEX_HOME`
//! is left as it is. One under the directory for temporary files makes Codex refuse to set up its own helpers.

mod asks;
mod calls;
mod conversation;
mod convert;
mod ending;
mod inbox;
mod items;
mod leftovers;
mod modes;
mod rpc;
mod server;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::PoisonError, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use self::{
    calls::{Opened, To},
    conversation::Thread,
    rpc::Refusal,
    server::{Command, PATIENCE, Server},
};
use crate::{
    agent::{Agent, AgentError, AgentId, Capabilities, Conversation, Model, Models, Opening, PermissionMode, Place},
    child::{Child, ProcessSpec},
};

/// How many pages of models are read: a list that does not end is no list.
const PAGES: usize = 32;

/// Codex.
#[derive(Debug)]
pub struct Codex {
    limits: Limits,
    shared: Mutex<Shared>,
    /// The app-server that was started last, also while it is not known yet whether it runs.
    last: std::sync::Mutex<Option<mpsc::UnboundedSender<Command>>>,
}

/// How long is waited, and how much is kept waiting.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For an answer.
    pub request: Duration,
    /// With an app-server that nobody uses.
    pub idle: Duration,
    /// For a conversation that does not read what it has.
    pub patience: Duration,
    /// From the start of an app-server that died to the start of the next.
    pub restart: Duration,
    /// How many bytes a conversation may leave unread before the app-server is not read on.
    pub waiting: usize,
}

#[derive(Debug, Default)]
struct Shared {
    running: Option<Handle>,
    started: Option<Instant>,
}

/// An app-server that was started.
#[derive(Clone, Debug)]
struct Handle {
    /// Unlike that of every other.
    name: String,
    commands: mpsc::UnboundedSender<Command>,
    /// Whether it has a mode for plans.
    plans: bool,
}

/// Why the app-server did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
enum CallError {
    #[error("{}", .0.message)]
    Refused(Refusal),
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Ended(String),
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            patience: Duration::from_secs(10),
            restart: Duration::from_millis(500),
            waiting: 8 * 1024 * 1024,
        }
    }
}

// === impl CallError ===

impl CallError {
    fn of(self, request: &'static str) -> AgentError {
        match self {
            Self::Timeout(limit) => AgentError::Timeout { request, limit },
            other => AgentError::Refused { request, message: other.to_string() },
        }
    }
}

// === impl Handle ===

impl Handle {
    async fn call(&self, method: &'static str, params: Value) -> Result<Value, CallError> {
        let (sender, receiver) = oneshot::channel();
        self.tell(Command::Call(method, params, To::Caller(sender)));
        receiver.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn open(&self, method: &'static str, params: Value) -> Result<Opened, CallError> {
        let (sender, receiver) = oneshot::channel();
        self.tell(Command::Call(method, params, To::Opener(sender)));
        receiver.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Never waits. An app-server that has ended is told nothing: whoever uses it hears of its end.
    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    fn is_running(&self) -> bool {
        !self.commands.is_closed()
    }
}

fn ended() -> CallError {
    CallError::Ended("the app-server ended".to_owned())
}

// === impl Codex ===

impl Default for Codex {
    fn default() -> Self {
        Self::new()
    }
}

impl Codex {
    /// Without an app-server, until there is a session.
    pub fn new() -> Self {
        Self::with(Limits::default())
    }

    /// The same, with limits of one's own.
    pub fn with(limits: Limits) -> Self {
        Self { limits, shared: Mutex::default(), last: std::sync::Mutex::default() }
    }

    /// The app-server that runs, or a new one. Whoever comes meanwhile waits for the same one.
    async fn connect(&self, place: &Place) -> Result<Handle, AgentError> {
        let mut shared = self.shared.lock().await;
        if let Some(handle) = shared.running.as_ref().filter(|handle| handle.is_running()) {
            return Ok(handle.clone());
        }
        shared.running = None;
        if let Some(started) = shared.started {
            // One that dies at once must not be started as fast as that goes.
            sleep_until(started + self.limits.restart).await;
        }
        shared.started = Some(Instant::now());
        let handle = self.start(place).await?;
        shared.running = Some(handle.clone());
        Ok(handle)
    }

    async fn start(&self, place: &Place) -> Result<Handle, AgentError> {
        let environment = place.environment.iter().map(|(name, value)| (name.into(), Some(value.into()))).collect();
        // It works for every session, so it is at home in the directory of none.
        let spec = ProcessSpec {
            program: place.program.clone(),
            arguments: vec!["app-server".into()],
            directory: PathBuf::from("/"),
            environment,
        };
        let commands = Server::spawn(Child::spawn(&spec)?, self.limits);
        if let Some(before) = self.remember(Some(commands.clone())) {
            // Who started it may have gone before it was known to run.
            let _ = before.send(Command::End(PATIENCE));
        }
        let mut handle = Handle { name: format!("codex-{}", Uuid::new_v4().simple()), commands, plans: false };
        let introduced = json!({
            "clientInfo": {"name": "carrel", "title": "Carrel", "version": env!("CARGO_PKG_VERSION")},
            "capabilities": {"experimentalApi": true},
        });
        if let Err(error) = handle.call("initialize", introduced).await {
            handle.tell(Command::End(PATIENCE));
            return Err(error.of("initialize"));
        }
        handle.tell(Command::Notify("initialized"));
        let modes = handle.call("collaborationMode/list", json!({})).await.unwrap_or_default();
        let mut modes = modes.get("data").and_then(Value::as_array).into_iter().flatten();
        handle.plans = modes.any(|mode| mode.get("mode").and_then(Value::as_str) == Some("plan"));
        Ok(handle)
    }

    /// Remembers the app-server that was started last, and tells which it was before.
    fn remember(&self, last: Option<mpsc::UnboundedSender<Command>>) -> Option<mpsc::UnboundedSender<Command>> {
        let mut remembered = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *remembered, last)
    }

    /// Another app-server, where one ended before it could answer.
    async fn connect_again(&self, before: &Handle, place: &Place) -> Result<Handle, AgentError> {
        // It is told to end for the case that it only takes no more input.
        before.tell(Command::End(PATIENCE));
        before.commands.closed().await;
        self.connect(place).await
    }
}

#[async_trait]
impl Agent for Codex {
    fn id(&self) -> AgentId {
        AgentId::Codex
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &PermissionMode::ALL
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { shared_process: true, ..Capabilities::ALL }
    }

    async fn models(&self, place: &Place) -> Result<Models, AgentError> {
        let handle = self.connect(place).await?;
        let pages = match pages(&handle).await {
            Err(CallError::Ended(_)) => pages(&self.connect_again(&handle, place).await?).await,
            result => result,
        };
        let pages = pages.map_err(|error| error.of("model/list"))?;
        let listed = || pages.iter().filter_map(|page| page.get("data")?.as_array()).flatten();
        let is_default = |model: &&Value| model.get("isDefault") == Some(&Value::Bool(true));
        let default_model = listed().find(is_default).and_then(|model| Some(model.get("id")?.as_str()?.to_owned()));
        Ok(Models { models: listed().filter_map(model).collect(), default_model })
    }

    async fn open(&self, opening: Opening) -> Result<Box<dyn Conversation>, AgentError> {
        let (request, params) = Thread::opening(&opening);
        let mut handle = self.connect(&opening.place).await?;
        let mut opened = handle.open(request, params.clone()).await;
        if let Err(CallError::Ended(_)) = opened {
            handle = self.connect_again(&handle, &opening.place).await?;
            opened = handle.open(request, params).await;
        }
        let opened = opened.map_err(|error| error.of(request))?;
        Ok(Box::new(Thread::new(handle, opened, opening)))
    }

    async fn shutdown(&self, patience: Duration) {
        if let Some(last) = self.remember(None) {
            let _ = last.send(Command::End(patience));
            last.closed().await;
        }
    }
}

async fn pages(handle: &Handle) -> Result<Vec<Value>, CallError> {
    let mut pages = Vec::new();
    let mut cursor = Value::Null;
    while pages.len() < PAGES {
        let page = handle.call("model/list", json!({"cursor": cursor})).await?;
        cursor = page.get("nextCursor").cloned().unwrap_or_default();
        pages.push(page);
        if cursor.is_null() {
            break;
        }
    }
    Ok(pages)
}

fn model(model: &Value) -> Option<Model> {
    let text = |key: &str| model.get(key).and_then(Value::as_str).map(str::to_owned);
    let efforts = model.get("supportedReasoningEfforts").and_then(Value::as_array).into_iter().flatten();
    let variants: Vec<String> =
        efforts.filter_map(|effort| Some(effort.get("reasoningEffort")?.as_str()?.to_owned())).collect();
    Some(Model {
        id: text("id")?,
        name: text("displayName"),
        variants: Some(variants).filter(|variants| !variants.is_empty()),
        default_variant: text("defaultReasoningEffort"),
    })
}
