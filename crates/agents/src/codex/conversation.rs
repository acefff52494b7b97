//! A conversation with Codex: a thread of the app-server.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    AppServerHandle, CallError, background_processes,
    calls::{OpenedThread, ReplyTarget},
    convert::{self, ThreadState, TurnPhase},
    event_channel::{ThreadEvent, ThreadReceiver},
    modes::{self, EditPolicy, ThreadModes},
    rpc::RpcRequest,
    server::AppServerCommand,
};
use crate::{
    agent::{
        AgentError, AgentEvent, AgentExit, AgentMode, Conversation, ConversationOptions, PermissionMode, Prompt,
        UserAnswer,
    },
    child::ChildExit,
    json_line,
    schema::{EventData, PermissionReply},
};

/// Maximum number of events per batch.
const MAX_BATCH: usize = 512;
/// Lists the running commands of a thread.
const LIST_COMMANDS: &str = "thread/backgroundTerminals/list";

#[derive(Debug)]
pub(super) struct CodexConversation {
    handle: AppServerHandle,
    receiver: ThreadReceiver,
    subscription: u64,
    state: ThreadState,
    directory: PathBuf,
    modes: ThreadModes,
    model: Option<String>,
    effort: Option<String>,
    /// Codex's own choices.
    own_processes: ThreadDefaults,
    /// Whether the thread was last set to plan mode, which lasts until it is changed.
    plan_mode_sent: Option<bool>,
    /// Interrupt the turn as soon as its id is known.
    interrupt_pending: bool,
    /// Commands that ran when their turn was interrupted.
    interrupted: Vec<String>,
    /// Whether a list of running commands was requested.
    list_pending: bool,
}

/// Codex's own choices for the thread.
#[derive(Debug, Default)]
struct ThreadDefaults {
    model: Option<String>,
    effort: Option<String>,
}

// === impl CodexConversation ===

impl CodexConversation {
    /// The request that opens a thread. Codex can resume it only if it ever received a prompt.
    pub(super) fn open_request(options: &ConversationOptions) -> (&'static str, Value) {
        let modes = ThreadModes { agent: options.agent_mode, permission: options.permission_mode };
        let mut params = json!({
            "cwd": options.program.directory,
            "approvalPolicy": modes.approval_policy(),
            "sandbox": modes.sandbox(),
        });
        if let Some(model) = &options.model {
            params["model"] = json!(model);
        }
        match options.native_id.as_ref().filter(|_| options.resumable) {
            None => ("thread/start", params),
            Some(id) => {
                params["threadId"] = json!(id);
                params["excludeTurns"] = json!(true);
                ("thread/resume", params)
            }
        }
    }

    pub(super) fn new(handle: AppServerHandle, opened: OpenedThread, options: ConversationOptions) -> Self {
        let OpenedThread { thread, answer, receiver, subscription } = opened;
        let text = |key: &str| answer.get(key).and_then(Value::as_str).map(str::to_owned);
        let resumed = options.resumable && options.native_id.is_some();
        Self {
            state: ThreadState::new(&thread, &handle.name),
            handle,
            receiver,
            subscription,
            directory: options.program.directory,
            modes: ThreadModes { agent: options.agent_mode, permission: options.permission_mode },
            model: options.model,
            effort: options.variant,
            own_processes: ThreadDefaults { model: text("model"), effort: text("reasoningEffort") },
            plan_mode_sent: (!resumed).then_some(false),
            interrupt_pending: false,
            interrupted: Vec::new(),
            list_pending: false,
        }
    }

    fn take(&mut self, thread_event: ThreadEvent, events: &mut Vec<AgentEvent>) {
        match thread_event {
            ThreadEvent::Message(request, line) => {
                let raw = json_line::to_raw(&line);
                match &request.id {
                    None => self.state.handle_notification(&request, raw, events),
                    Some(_) if self.decided_by_mode(&request) => {
                        events.push(convert::notice(&request.method, request.params, raw))
                    }
                    Some(id) => {
                        if let Err(rejection) = self.state.handle_request(&request, raw, events) {
                            self.handle.send(AppServerCommand::Answer(id.clone(), Err(rejection)));
                        }
                    }
                }
            }
            ThreadEvent::Unparsed(line, why) => {
                let text = String::from_utf8_lossy(&line).into_owned();
                events.push(AgentEvent::event(EventData::unparsed(Value::String(text), why)));
            }
            ThreadEvent::Response("turn/start", result) => {
                let answer = result.as_ref().map_err(CallError::to_string);
                self.state.turn_start_response(answer, events);
            }
            ThreadEvent::Response(LIST_COMMANDS, result) => self.terminate_commands(&result.unwrap_or_default()),
            ThreadEvent::Response(method, Err(error)) => {
                events.push(AgentEvent::event(EventData::error("jsonrpc.error", format!("{method}: {error}"), None)));
            }
            ThreadEvent::Response(_, Ok(_)) => {}
            ThreadEvent::Exited(exit) => {
                self.state.close_all(events);
                events.push(AgentEvent::Exited(AgentExit::ServerExited(exit)));
            }
        }
        if self.interrupt_pending {
            self.stop();
        }
        self.interrupted.extend(self.state.take_interrupted());
        if !self.interrupted.is_empty() && !self.list_pending {
            self.list_pending = true;
            let params = json!({"threadId": self.state.id()});
            self.handle.send(AppServerCommand::Call(
                LIST_COMMANDS,
                params,
                ReplyTarget::Thread(self.state.id().to_owned()),
            ));
        }
    }

    /// Terminates the commands that ran when their turn was interrupted: Codex itself only stops waiting for them.
    fn terminate_commands(&mut self, answer: &Value) {
        self.list_pending = false;
        let interrupted = std::mem::take(&mut self.interrupted);
        for terminal in answer.get("data").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| terminal.get(key).and_then(Value::as_str);
            if let (Some(item), Some(process)) = (text("itemId"), text("processId"))
                && interrupted.iter().any(|id| id == item)
            {
                let params = json!({"threadId": self.state.id(), "processId": process});
                self.handle.send(AppServerCommand::Call(
                    "thread/backgroundTerminals/terminate",
                    params,
                    ReplyTarget::Discard,
                ));
            }
        }
    }

    /// Answers a request by the mode. Returns whether it did.
    fn decided_by_mode(&self, request: &RpcRequest) -> bool {
        if request.method != "item/fileChange/requestApproval" {
            return false;
        }
        let paths = self.state.paths(request);
        let inside =
            || request.params.get("grantRoot").is_none_or(Value::is_null) && all_inside(&self.directory, &paths);
        let decision = match self.modes.edits() {
            EditPolicy::Accept if inside() => "accept",
            EditPolicy::Decline => "decline",
            EditPolicy::Accept | EditPolicy::Ask => return false,
        };
        let id = request.id.clone().unwrap_or_default();
        self.handle.send(AppServerCommand::Answer(id, Ok(json!({"decision": decision}))));
        true
    }

    /// The parameters of a new turn.
    fn turn(&mut self, prompt: &Prompt) -> Value {
        let model = self.model.clone().or_else(|| self.own_processes.model.clone());
        let effort = self.effort.clone().or_else(|| self.own_processes.effort.clone());
        let plans = self.modes.plans();
        let by_mode = self.handle.supports_plan_mode && model.is_some();
        let text = if plans && !by_mode { modes::plan_first_prompt(&prompt.text) } else { prompt.text.clone() };
        let mut params = json!({
            "threadId": self.state.id(),
            "clientUserMessageId": prompt.id,
            "input": [{"type": "text", "text": text, "text_elements": []}],
            "approvalPolicy": self.modes.approval_policy(),
            "sandboxPolicy": self.modes.sandbox_policy(),
        });
        if let Some(model) = model {
            if by_mode && self.plan_mode_sent != Some(plans) {
                params["collaborationMode"] = self.modes.collaboration(&model, effort.as_deref());
                self.plan_mode_sent = Some(plans);
            }
            params["model"] = json!(model);
        }
        if let Some(effort) = effort {
            params["effort"] = json!(effort);
        }
        self.state.prompt_sent(prompt, &text);
        params
    }

    /// Interrupts the turn, once its id is known.
    fn stop(&mut self) {
        let thread = self.state.id().to_owned();
        match self.state.turn() {
            TurnPhase::Requested => self.interrupt_pending = true,
            TurnPhase::None => self.interrupt_pending = false,
            TurnPhase::Running(turn) => {
                let params = json!({"threadId": thread, "turnId": turn});
                // If the turn has ended meanwhile, there is nothing to interrupt.
                self.handle.send(AppServerCommand::Call("turn/interrupt", params, ReplyTarget::Discard));
                self.interrupt_pending = false;
            }
        }
    }
}

#[async_trait]
impl Conversation for CodexConversation {
    fn native_id(&self) -> Option<String> {
        Some(self.state.id().to_owned())
    }

    async fn next(&mut self, events: &mut Vec<AgentEvent>) {
        while events.is_empty() {
            let Some(thread_event) = self.receiver.next().await else {
                self.state.close_all(events);
                return events.push(AgentEvent::Exited(AgentExit::ServerExited(ChildExit::default())));
            };
            self.take(thread_event, events);
            while events.len() < MAX_BATCH
                && let Some(thread_event) = self.receiver.ready()
            {
                self.take(thread_event, events);
            }
        }
    }

    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError> {
        self.interrupt_pending = false;
        let params = self.turn(prompt);
        let reply_to = ReplyTarget::Thread(self.state.id().to_owned());
        self.handle.send(AppServerCommand::Call("turn/start", params, reply_to));
        Ok(())
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        self.stop();
        Ok(())
    }

    async fn answer(&mut self, id: &str, answer: UserAnswer) -> Result<(), AgentError> {
        let unknown = || AgentError::Unsupported(format!("Codex does not wait for this answer to {id}"));
        let request = self.state.request(id).ok_or_else(unknown)?;
        let reply = request.answer(&answer).ok_or_else(unknown)?;
        let (request, accepts_message) = (request.id.clone(), request.accepts_message());
        self.state.take_request(id);
        self.handle.send(AppServerCommand::Answer(request, Ok(reply)));
        if let UserAnswer::Permission(PermissionReply::Reject, Some(words)) = answer
            && !accepts_message
            && let TurnPhase::Running(turn) = self.state.turn()
        {
            // Codex takes no message with a rejection, but accepts one during a turn.
            let input = json!([{"type": "text", "text": words, "text_elements": []}]);
            let params = json!({"threadId": self.state.id(), "expectedTurnId": turn, "input": input});
            let reply_to = ReplyTarget::Thread(self.state.id().to_owned());
            self.handle.send(AppServerCommand::Call("turn/steer", params, reply_to));
        }
        Ok(())
    }

    async fn set_permission_mode(&mut self, agent: AgentMode, mode: PermissionMode) -> Result<(), AgentError> {
        self.modes = ThreadModes { agent, permission: mode };
        Ok(())
    }

    async fn set_model(&mut self, model: Option<&str>, variant: Option<&str>) -> Result<(), AgentError> {
        self.model = model.map(str::to_owned);
        self.effort = variant.map(str::to_owned);
        // Plan mode keeps the model that it was started with.
        self.plan_mode_sent = None;
        Ok(())
    }

    async fn close(mut self: Box<Self>, grace: Duration, last: &mut Vec<AgentEvent>) {
        for request in self.state.take_requests() {
            self.handle.send(AppServerCommand::Answer(request.id.clone(), Ok(request.rejection())));
        }
        let thread = json!({"threadId": self.state.id()});
        let closing = async {
            self.stop();
            while self.state.turn() != &TurnPhase::None {
                // Cancel-safe: once there are events, it returns.
                let mut events = Vec::new();
                self.next(&mut events).await;
                let gone = events.iter().any(|event| matches!(event, AgentEvent::Exited(_)));
                last.append(&mut events);
                if gone {
                    return;
                }
            }
            // Background commands that Codex knows of, and the thread itself.
            let _ = self.handle.call("thread/backgroundTerminals/clean", thread.clone()).await;
            let _ = self.handle.call("thread/unsubscribe", thread.clone()).await;
        };
        if timeout(grace, closing).await.is_err() {
            tracing::warn!(%thread, "Codex did not close a thread in time");
            for method in ["thread/backgroundTerminals/clean", "thread/unsubscribe"] {
                self.handle.send(AppServerCommand::Call(method, thread.clone(), ReplyTarget::Discard));
            }
        }
        self.state.close_all(last);
        background_processes::kill_all(self.state.id()).await;
    }
}

impl Drop for CodexConversation {
    fn drop(&mut self) {
        self.handle.send(AppServerCommand::Leave(self.state.id().to_owned(), self.subscription));
    }
}

/// Whether all paths are inside the directory, with symlinks resolved. False if there are none.
fn all_inside(directory: &Path, paths: &[String]) -> bool {
    let Ok(directory) = directory.canonicalize() else { return false };
    let within = |path: &String| {
        let path = directory.join(path);
        let plain = !path.components().any(|part| part.as_os_str() == "..");
        plain && resolve_existing(&path).is_some_and(|there| there.starts_with(&directory))
    };
    !paths.is_empty() && paths.iter().all(within)
}

/// Resolves a path, or its nearest existing ancestor. `None` for a dangling symlink, whose target is unknown.
fn resolve_existing(path: &Path) -> Option<PathBuf> {
    for path in path.ancestors() {
        match path.symlink_metadata() {
            Ok(_) => return path.canonicalize().ok(),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(_) => return None,
        }
    }
    None
}
