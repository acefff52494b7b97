//! A session's thread on the app-server.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    CallError, Handle,
    calls::{Opened, To},
    convert::{self, Turn},
    inbox::{Delivery, Inbox},
    leftovers,
    modes::{self, Edits, Modes},
    rpc::Said,
    server::Command,
};
use crate::{
    agent::{AgentError, AgentMode, Answer, Conversation, Fact, Gone, Opening, PermissionMode, Prompt},
    child::ChildExit,
    schema::{EventData, PermissionReply},
    words,
};

/// How many facts are gathered before they are handed on.
const GATHERED: usize = 512;
/// What asks for the commands of a thread that still run.
const TERMINALS: &str = "thread/backgroundTerminals/list";

/// A session's thread.
#[derive(Debug)]
pub(super) struct Thread {
    handle: Handle,
    inbox: Inbox,
    subscription: u64,
    state: convert::Thread,
    directory: PathBuf,
    modes: Modes,
    model: Option<String>,
    effort: Option<String>,
    /// What Codex itself chose.
    own: Own,
    /// Whether the thread was last told to plan. Codex goes on so until it is told otherwise.
    planning: Option<bool>,
    /// The turn is to stop as soon as it is known which it is.
    stopping: bool,
    /// Commands that ran when their turn was interrupted.
    interrupted: Vec<String>,
    /// Whether the app-server was asked what still runs.
    listing: bool,
}

/// What Codex chose for the thread.
#[derive(Debug, Default)]
struct Own {
    model: Option<String>,
    effort: Option<String>,
}

// === impl Thread ===

impl Thread {
    /// The request that opens a thread. Codex knows it again only if it was ever given a prompt.
    pub(super) fn opening(opening: &Opening) -> (&'static str, Value) {
        let modes = Modes { agent: opening.agent_mode, permission: opening.permission_mode };
        let mut params = json!({
            "cwd": opening.place.directory,
            "approvalPolicy": modes.approval_policy(),
            "sandbox": modes.sandbox(),
        });
        if let Some(model) = &opening.model {
            params["model"] = json!(model);
        }
        match opening.native_id.as_ref().filter(|_| opening.begun) {
            None => ("thread/start", params),
            Some(id) => {
                params["threadId"] = json!(id);
                params["excludeTurns"] = json!(true);
                ("thread/resume", params)
            }
        }
    }

    pub(super) fn new(handle: Handle, opened: Opened, opening: Opening) -> Self {
        let Opened { thread, answer, inbox, subscription } = opened;
        let text = |key: &str| answer.get(key).and_then(Value::as_str).map(str::to_owned);
        let resumed = opening.begun && opening.native_id.is_some();
        Self {
            state: convert::Thread::new(&thread, &handle.name),
            handle,
            inbox,
            subscription,
            directory: opening.place.directory,
            modes: Modes { agent: opening.agent_mode, permission: opening.permission_mode },
            model: opening.model,
            effort: opening.variant,
            own: Own { model: text("model"), effort: text("reasoningEffort") },
            planning: (!resumed).then_some(false),
            stopping: false,
            interrupted: Vec::new(),
            listing: false,
        }
    }

    fn take(&mut self, delivery: Delivery, facts: &mut Vec<Fact>) {
        match delivery {
            Delivery::Heard(said, line) => {
                let raw = words::as_it_came(&line);
                match &said.id {
                    None => self.state.heard(&said, raw, facts),
                    Some(_) if self.decided(&said) => facts.push(convert::notice(&said.method, said.params, raw)),
                    Some(id) => {
                        if let Err(refusal) = self.state.asked(&said, raw, facts) {
                            self.handle.tell(Command::Answer(id.clone(), Err(refusal)));
                        }
                    }
                }
            }
            Delivery::Unparsed(line, why) => {
                let text = String::from_utf8_lossy(&line).into_owned();
                facts.push(Fact::event(EventData::unparsed(Value::String(text), why)));
            }
            Delivery::Answered("turn/start", result) => {
                let answer = result.as_ref().map_err(CallError::to_string);
                self.state.answered(answer, facts);
            }
            Delivery::Answered(TERMINALS, result) => self.end_terminals(&result.unwrap_or_default()),
            Delivery::Answered(method, Err(error)) => {
                facts.push(Fact::event(EventData::error("jsonrpc.error", format!("{method}: {error}"), None)));
            }
            Delivery::Answered(_, Ok(_)) => {}
            Delivery::Gone(exit) => {
                self.state.close_all(facts);
                facts.push(Fact::Gone(Gone::ServerExited(exit)));
            }
        }
        if self.stopping {
            self.stop();
        }
        self.interrupted.extend(self.state.take_interrupted());
        if !self.interrupted.is_empty() && !self.listing {
            self.listing = true;
            let params = json!({"threadId": self.state.id()});
            self.handle.tell(Command::Call(TERMINALS, params, To::Thread(self.state.id().to_owned())));
        }
    }

    /// Ends the commands that ran when their turn was interrupted: by itself Codex only stops to wait for them.
    fn end_terminals(&mut self, answer: &Value) {
        self.listing = false;
        let interrupted = std::mem::take(&mut self.interrupted);
        for terminal in answer.get("data").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| terminal.get(key).and_then(Value::as_str);
            if let (Some(item), Some(process)) = (text("itemId"), text("processId"))
                && interrupted.iter().any(|id| id == item)
            {
                let params = json!({"threadId": self.state.id(), "processId": process});
                self.handle.tell(Command::Call("thread/backgroundTerminals/terminate", params, To::Nobody));
            }
        }
    }

    /// Whether the mode decides about a request, so that nobody is asked.
    fn decided(&self, said: &Said) -> bool {
        if said.method != "item/fileChange/requestApproval" {
            return false;
        }
        let paths = self.state.paths(said);
        let inside = || said.params.get("grantRoot").is_none_or(Value::is_null) && all_within(&self.directory, &paths);
        let decision = match self.modes.edits() {
            Edits::Accepted if inside() => "accept",
            Edits::Declined => "decline",
            Edits::Accepted | Edits::Asked => return false,
        };
        let id = said.id.clone().unwrap_or_default();
        self.handle.tell(Command::Answer(id, Ok(json!({"decision": decision}))));
        true
    }

    /// What begins a turn.
    fn turn(&mut self, prompt: &Prompt) -> Value {
        let model = self.model.clone().or_else(|| self.own.model.clone());
        let effort = self.effort.clone().or_else(|| self.own.effort.clone());
        let plans = self.modes.plans();
        let by_mode = self.handle.plans && model.is_some();
        let text = if plans && !by_mode { modes::plan_first(&prompt.text) } else { prompt.text.clone() };
        let mut params = json!({
            "threadId": self.state.id(),
            "clientUserMessageId": prompt.id,
            "input": [{"type": "text", "text": text, "text_elements": []}],
            "approvalPolicy": self.modes.approval_policy(),
            "sandboxPolicy": self.modes.sandbox_policy(),
        });
        if let Some(model) = model {
            if by_mode && self.planning != Some(plans) {
                params["collaborationMode"] = self.modes.collaboration(&model, effort.as_deref());
                self.planning = Some(plans);
            }
            params["model"] = json!(model);
        }
        if let Some(effort) = effort {
            params["effort"] = json!(effort);
        }
        self.state.prompted(prompt, &text);
        params
    }

    /// Stops the turn, once it is known which.
    fn stop(&mut self) {
        let thread = self.state.id().to_owned();
        match self.state.turn() {
            Turn::Asked => self.stopping = true,
            Turn::None => self.stopping = false,
            Turn::Running(turn) => {
                let params = json!({"threadId": thread, "turnId": turn});
                // A turn that ends meanwhile cannot be stopped; then there is nothing to tell.
                self.handle.tell(Command::Call("turn/interrupt", params, To::Nobody));
                self.stopping = false;
            }
        }
    }
}

#[async_trait]
impl Conversation for Thread {
    fn native_id(&self) -> Option<String> {
        Some(self.state.id().to_owned())
    }

    async fn next(&mut self, facts: &mut Vec<Fact>) {
        while facts.is_empty() {
            let Some(delivery) = self.inbox.next().await else {
                self.state.close_all(facts);
                return facts.push(Fact::Gone(Gone::ServerExited(ChildExit::default())));
            };
            self.take(delivery, facts);
            while facts.len() < GATHERED
                && let Some(delivery) = self.inbox.ready()
            {
                self.take(delivery, facts);
            }
        }
    }

    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError> {
        self.stopping = false;
        let params = self.turn(prompt);
        let to = To::Thread(self.state.id().to_owned());
        self.handle.tell(Command::Call("turn/start", params, to));
        Ok(())
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        self.stop();
        Ok(())
    }

    async fn answer(&mut self, id: &str, answer: Answer) -> Result<(), AgentError> {
        let unknown = || AgentError::Unsupported(format!("Codex does not wait for this answer to {id}"));
        let ask = self.state.ask(id).ok_or_else(unknown)?;
        let reply = ask.answer(&answer).ok_or_else(unknown)?;
        let (request, takes_words) = (ask.id.clone(), ask.takes_words());
        self.state.take_ask(id);
        self.handle.tell(Command::Answer(request, Ok(reply)));
        if let Answer::Permission(PermissionReply::Reject, Some(words)) = answer
            && !takes_words
            && let Turn::Running(turn) = self.state.turn()
        {
            // Codex takes no words with a refusal, but does take them in the middle of a turn.
            let input = json!([{"type": "text", "text": words, "text_elements": []}]);
            let params = json!({"threadId": self.state.id(), "expectedTurnId": turn, "input": input});
            let to = To::Thread(self.state.id().to_owned());
            self.handle.tell(Command::Call("turn/steer", params, to));
        }
        Ok(())
    }

    async fn set_permission_mode(&mut self, agent: AgentMode, mode: PermissionMode) -> Result<(), AgentError> {
        self.modes = Modes { agent, permission: mode };
        Ok(())
    }

    async fn set_model(&mut self, model: Option<&str>, variant: Option<&str>) -> Result<(), AgentError> {
        self.model = model.map(str::to_owned);
        self.effort = variant.map(str::to_owned);
        // A mode for plans keeps the model that it was given.
        self.planning = None;
        Ok(())
    }

    async fn close(mut self: Box<Self>, patience: Duration, last: &mut Vec<Fact>) {
        for ask in self.state.take_asks() {
            self.handle.tell(Command::Answer(ask.id.clone(), Ok(ask.refusal())));
        }
        let thread = json!({"threadId": self.state.id()});
        let ended = async {
            self.stop();
            while self.state.turn() != &Turn::None {
                // Once it has something to tell, it does not wait any more.
                let mut facts = Vec::new();
                self.next(&mut facts).await;
                let gone = facts.iter().any(|fact| matches!(fact, Fact::Gone(_)));
                last.append(&mut facts);
                if gone {
                    return;
                }
            }
            // What its commands left running, as far as Codex knows of it, and the thread itself.
            let _ = self.handle.call("thread/backgroundTerminals/clean", thread.clone()).await;
            let _ = self.handle.call("thread/unsubscribe", thread.clone()).await;
        };
        if timeout(patience, ended).await.is_err() {
            tracing::warn!(%thread, "Codex did not close a thread in time");
            for method in ["thread/backgroundTerminals/clean", "thread/unsubscribe"] {
                self.handle.tell(Command::Call(method, thread.clone(), To::Nobody));
            }
        }
        self.state.close_all(last);
        leftovers::end(self.state.id()).await;
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.handle.tell(Command::Leave(self.state.id().to_owned(), self.subscription));
    }
}

/// Whether all of these are in the directory, also where links lead out of it. None are if none are known.
fn all_within(directory: &Path, paths: &[String]) -> bool {
    let Ok(directory) = directory.canonicalize() else { return false };
    let within = |path: &String| {
        let path = directory.join(path);
        let plain = !path.components().any(|part| part.as_os_str() == "..");
        plain && place(&path).is_some_and(|there| there.starts_with(&directory))
    };
    !paths.is_empty() && paths.iter().all(within)
}

/// Where a file is, or will be: one that is not there yet is where its directory is. Of one that is there and leads
/// nowhere, as a link to what is missing, nobody knows where it will be.
fn place(path: &Path) -> Option<PathBuf> {
    for path in path.ancestors() {
        match path.symlink_metadata() {
            Ok(_) => return path.canonicalize().ok(),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(_) => return None,
        }
    }
    None
}
