//! Codex: one `codex app-server` for all sessions, with JSON-RPC in lines.
//!
//! The first session starts the app-server with its credentials, and all sessions share it. `CODEX_HOME` is unchanged:
//! with one under the temporary directory, Codex refuses to set up its helpers.

mod background_processes;
mod calls;
mod conversation;
mod convert;
mod event_channel;
mod items;
mod modes;
mod requests;
mod rpc;
mod server;
mod shutdown;
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
    calls::{OpenedThread, ReplyTarget},
    conversation::CodexConversation,
    rpc::RpcError,
    server::{AppServer, AppServerCommand, EXIT_GRACE},
};
use crate::{
    agent::{
        AgentDriver, AgentError, AgentId, AgentProgram, Capabilities, Conversation, ConversationOptions, Model, Models,
        PermissionMode,
    },
    child::{Child, ProcessSpec},
};

/// Maximum number of pages of models.
const MAX_PAGES: usize = 32;

#[derive(Debug)]
pub struct Codex {
    limits: CodexLimits,
    shared: Mutex<AppServerSlot>,
    /// The last app-server, even if it is not known yet whether it runs.
    last: std::sync::Mutex<Option<mpsc::UnboundedSender<AppServerCommand>>>,
}

/// Timeouts and limits of the driver.
#[derive(Clone, Copy, Debug)]
pub struct CodexLimits {
    pub request_timeout: Duration,
    /// How long an unused app-server keeps running.
    pub idle_timeout: Duration,
    /// How long a conversation may leave its channel full.
    pub slow_reader_timeout: Duration,
    /// Minimum time between two starts of an app-server.
    pub restart_delay: Duration,
    /// How many bytes a conversation may leave unread before the app-server is not read.
    pub max_unread_bytes: usize,
}

#[derive(Debug, Default)]
struct AppServerSlot {
    running: Option<AppServerHandle>,
    started: Option<Instant>,
}

/// Handle of a running app-server.
#[derive(Clone, Debug)]
struct AppServerHandle {
    /// Unique name.
    name: String,
    commands: mpsc::UnboundedSender<AppServerCommand>,
    supports_plan_mode: bool,
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
enum CallError {
    #[error("{}", .0.message)]
    Rpc(RpcError),
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Exited(String),
}

// === impl CodexLimits ===

impl Default for CodexLimits {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            slow_reader_timeout: Duration::from_secs(10),
            restart_delay: Duration::from_millis(500),
            max_unread_bytes: 8 * 1024 * 1024,
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

// === impl AppServerHandle ===

impl AppServerHandle {
    async fn call(&self, method: &'static str, params: Value) -> Result<Value, CallError> {
        let (sender, receiver) = oneshot::channel();
        self.send(AppServerCommand::Call(method, params, ReplyTarget::Caller(sender)));
        receiver.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn open(&self, method: &'static str, params: Value) -> Result<OpenedThread, CallError> {
        let (sender, receiver) = oneshot::channel();
        self.send(AppServerCommand::Call(method, params, ReplyTarget::Opener(sender)));
        receiver.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Never waits. Users of an app-server that exited are notified separately.
    fn send(&self, command: AppServerCommand) {
        let _ = self.commands.send(command);
    }

    fn is_running(&self) -> bool {
        !self.commands.is_closed()
    }
}

fn ended() -> CallError {
    CallError::Exited("the app-server ended".to_owned())
}

// === impl Codex ===

impl Default for Codex {
    fn default() -> Self {
        Self::new()
    }
}

impl Codex {
    /// The app-server starts with the first session.
    pub fn new() -> Self {
        Self::with(CodexLimits::default())
    }

    /// With other limits.
    pub fn with(limits: CodexLimits) -> Self {
        Self { limits, shared: Mutex::default(), last: std::sync::Mutex::default() }
    }

    /// The running app-server, or a new one. Concurrent callers share it.
    async fn connect(&self, program: &AgentProgram) -> Result<AppServerHandle, AgentError> {
        let mut shared = self.shared.lock().await;
        if let Some(handle) = shared.running.as_ref().filter(|handle| handle.is_running()) {
            return Ok(handle.clone());
        }
        shared.running = None;
        if let Some(started) = shared.started {
            // Limits the rate of restarts if it exits at once.
            sleep_until(started + self.limits.restart_delay).await;
        }
        shared.started = Some(Instant::now());
        let handle = self.start(program).await?;
        shared.running = Some(handle.clone());
        Ok(handle)
    }

    async fn start(&self, program: &AgentProgram) -> Result<AppServerHandle, AgentError> {
        let environment = program.environment.iter().map(|(name, value)| (name.into(), Some(value.into()))).collect();
        // It serves all sessions, so it runs in none of their directories.
        let spec = ProcessSpec {
            program: program.path.clone(),
            arguments: vec!["app-server".into()],
            directory: PathBuf::from("/"),
            environment,
        };
        let commands = AppServer::spawn(Child::spawn(&spec)?, self.limits);
        if let Some(before) = self.replace_last(Some(commands.clone())) {
            // The caller that started it may have been cancelled before it was ready.
            let _ = before.send(AppServerCommand::End(EXIT_GRACE));
        }
        let mut handle =
            AppServerHandle { name: format!("codex-{}", Uuid::new_v4().simple()), commands, supports_plan_mode: false };
        let introduced = json!({
            "clientInfo": {"name": "carrel", "title": "Carrel", "version": env!("CARGO_PKG_VERSION")},
            "capabilities": {"experimentalApi": true},
        });
        if let Err(error) = handle.call("initialize", introduced).await {
            handle.send(AppServerCommand::End(EXIT_GRACE));
            return Err(error.of("initialize"));
        }
        handle.send(AppServerCommand::Notify("initialized"));
        let modes = handle.call("collaborationMode/list", json!({})).await.unwrap_or_default();
        let mut modes = modes.get("data").and_then(Value::as_array).into_iter().flatten();
        handle.supports_plan_mode = modes.any(|mode| mode.get("mode").and_then(Value::as_str) == Some("plan"));
        Ok(handle)
    }

    /// Replaces the last app-server and returns the previous one.
    fn replace_last(
        &self,
        last: Option<mpsc::UnboundedSender<AppServerCommand>>,
    ) -> Option<mpsc::UnboundedSender<AppServerCommand>> {
        let mut remembered = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *remembered, last)
    }

    /// A new app-server, after one exited before it could respond.
    async fn reconnect(&self, before: &AppServerHandle, program: &AgentProgram) -> Result<AppServerHandle, AgentError> {
        // Its output may still be open although it takes no input.
        before.send(AppServerCommand::End(EXIT_GRACE));
        before.commands.closed().await;
        self.connect(program).await
    }
}

#[async_trait]
impl AgentDriver for Codex {
    fn id(&self) -> AgentId {
        AgentId::Codex
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &PermissionMode::ALL
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { shared_process: true, ..Capabilities::ALL }
    }

    async fn models(&self, program: &AgentProgram) -> Result<Models, AgentError> {
        let handle = self.connect(program).await?;
        let pages = match pages(&handle).await {
            Err(CallError::Exited(_)) => pages(&self.reconnect(&handle, program).await?).await,
            result => result,
        };
        let pages = pages.map_err(|error| error.of("model/list"))?;
        let listed = || pages.iter().filter_map(|page| page.get("data")?.as_array()).flatten();
        let is_default = |model: &&Value| model.get("isDefault") == Some(&Value::Bool(true));
        let default_model = listed().find(is_default).and_then(|model| Some(model.get("id")?.as_str()?.to_owned()));
        Ok(Models { models: listed().filter_map(model).collect(), default_model })
    }

    async fn open(&self, options: ConversationOptions) -> Result<Box<dyn Conversation>, AgentError> {
        let (request, params) = CodexConversation::open_request(&options);
        let mut handle = self.connect(&options.program).await?;
        let mut opened = handle.open(request, params.clone()).await;
        if let Err(CallError::Exited(_)) = opened {
            handle = self.reconnect(&handle, &options.program).await?;
            opened = handle.open(request, params).await;
        }
        let opened = opened.map_err(|error| error.of(request))?;
        Ok(Box::new(CodexConversation::new(handle, opened, options)))
    }

    async fn shutdown(&self, timeout: Duration) {
        if let Some(last) = self.replace_last(None) {
            let _ = last.send(AppServerCommand::End(timeout));
            last.closed().await;
        }
    }
}

async fn pages(handle: &AppServerHandle) -> Result<Vec<Value>, CallError> {
    let mut pages = Vec::new();
    let mut cursor = Value::Null;
    while pages.len() < MAX_PAGES {
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
