//! The interface of a coding agent: an [`AgentDriver`] opens conversations, and a [`Conversation`] takes commands and reports
//! events. A new agent implements the two traits.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use crate::{
    child::{ChildError, ChildExit},
    schema::{EventData, PermissionReply, PermissionRequest, QuestionRequest, TokenUsage, TurnOutcome},
};

/// The supported agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentId {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// A built-in agent for tests and first steps.
    Mock,
}

/// Permission modes: what an agent may do without a permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum PermissionMode {
    /// It requests a permission before every change.
    #[default]
    Default,
    /// It makes plans and changes nothing.
    Plan,
    /// It changes files without a permission, and requests one for the rest.
    AcceptEdits,
    /// It needs no permission.
    Bypass,
}

/// Agent modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentMode {
    /// It works on the prompt.
    #[default]
    Build,
    /// It makes a plan first.
    Plan,
}

/// A model that an agent can use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// The id, by which it is chosen.
    pub id: String,
    /// The name for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Variants, such as the reasoning effort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variants: Option<Vec<String>>,
    /// The variant that is used unless another is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_variant: Option<String>,
}

/// The models of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Models {
    /// The models.
    pub models: Vec<Model>,
    /// The model that is used unless another is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_model: Option<String>,
}

/// The capabilities of an agent besides text.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// It requests permissions.
    pub permissions: bool,
    /// It asks questions.
    pub questions: bool,
    /// It has a plan mode.
    pub plan_mode: bool,
    /// It reports tool calls.
    pub tool_calls: bool,
    /// It reports the results of tool calls.
    pub tool_results: bool,
    /// It streams its messages.
    pub streaming_deltas: bool,
    /// It reports its reasoning.
    pub reasoning: bool,
    /// Its turns can be interrupted.
    pub interrupt: bool,
    /// Its sessions can be resumed.
    pub resume: bool,
    /// One process serves all of its sessions.
    pub shared_process: bool,
}

/// The program of an agent, with its environment and working directory.
#[derive(Clone, Debug, Default)]
pub struct AgentProgram {
    /// Path of the program; empty for the built-in agent.
    pub path: PathBuf,
    /// Credentials and settings, added to the server's own environment.
    pub environment: Vec<(String, String)>,
    /// Working directory.
    pub directory: PathBuf,
}

/// Options for opening a conversation.
#[derive(Clone, Debug, Default)]
pub struct ConversationOptions {
    /// Id of the session, chosen by the client.
    pub session_id: String,
    /// The program to run.
    pub program: AgentProgram,
    /// Build or plan.
    pub agent_mode: AgentMode,
    /// What the agent may do without asking.
    pub permission_mode: PermissionMode,
    /// The model; the agent's default if `None`.
    pub model: Option<String>,
    /// Variant of the model, such as its reasoning effort.
    pub variant: Option<String>,
    /// The agent's own id of the conversation to resume.
    pub native_id: Option<String>,
    /// Whether the agent has ever received a prompt in this conversation: only then can it resume it.
    pub resumable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// Chosen by the client, or generated.
    pub id: String,
    /// Text of the user.
    pub text: String,
}

/// The user's answer to a request of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserAnswer {
    /// Answer to a permission request, with a message for the agent if it is rejected.
    Permission(PermissionReply, Option<String>),
    /// Answers to questions: the chosen labels of each.
    Question(Vec<Vec<String>>),
    QuestionRejected,
}

/// A message of the agent as it was received. Several events may come from one message, which is stored once.
pub type RawMessage = Arc<RawValue>;

/// What a conversation reports.
#[derive(Debug)]
pub enum AgentEvent {
    /// An event for the session's log, with the agent's message that caused it.
    Event(EventData, Option<RawMessage>),
    /// The agent's own id of the conversation.
    NativeId(String),
    /// The agent changed its mode, because of an answer or by itself.
    Modes(AgentMode, PermissionMode),
    /// The agent started a turn without a prompt. For prompted turns, the session itself logs the start.
    TurnStarted,
    /// The turn ended; open items were closed before.
    TurnEnded {
        /// Whether it completed, was interrupted or failed.
        outcome: TurnOutcome,
        /// The error, if it failed.
        message: Option<String>,
        /// Tokens and cost of the turn.
        usage: Option<TokenUsage>,
        /// The agent's message that ended it.
        raw: Option<RawMessage>,
    },
    /// The agent requests a permission.
    PermissionAsked(PermissionRequest, Option<RawMessage>),
    QuestionAsked(QuestionRequest, Option<RawMessage>),
    /// The question or permission request of this id needs no answer any more.
    Withdrawn(String),
    /// The agent exited: no event follows. The session decides what that means.
    Exited(AgentExit),
}

/// How an agent exited.
#[derive(Debug)]
pub enum AgentExit {
    /// Its process exited.
    Exited(ChildExit),
    /// The server process that it shares with other sessions exited; the conversation can be opened again.
    ServerExited(ChildExit),
    /// The agent finished the session.
    Finished,
}

/// Why an agent failed to carry out a command.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The program could not be spawned, or its input is closed or full.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The agent did not respond in time.
    #[error("the agent did not answer {request} within {} s", .limit.as_secs())]
    Timeout {
        request: &'static str,
        /// The timeout.
        limit: Duration,
    },
    /// The agent rejected a request.
    #[error("the agent refused {request}: {message}")]
    Refused { request: &'static str, message: String },
    /// The agent's program is not installed.
    #[error("agent not installed: {0}")]
    NotInstalled(AgentId),
    /// The agent does not support this.
    #[error("{0}")]
    Unsupported(String),
}

/// A coding agent.
#[async_trait]
pub trait AgentDriver: Send + Sync + 'static {
    fn id(&self) -> AgentId;

    /// Permission modes that it supports besides the default.
    fn permission_modes(&self) -> &'static [PermissionMode];

    /// Whether plan mode is one of its permission modes, so that another permission mode conflicts with it.
    fn plan_is_permission_mode(&self) -> bool {
        false
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    /// Lists the models that it can use.
    async fn models(&self, program: &AgentProgram) -> Result<Models, AgentError>;

    /// Opens a conversation, or resumes the one of `native_id`.
    async fn open(&self, options: ConversationOptions) -> Result<Box<dyn Conversation>, AgentError>;

    /// Stops what conversations share, within this grace period. All conversations are closed before.
    async fn shutdown(&self, _grace: Duration) {}
}

/// A conversation with an agent. No method waits until the agent has read its input.
#[async_trait]
pub trait Conversation: Send {
    /// The agent's own id of the conversation, if it is known.
    fn native_id(&self) -> Option<String>;

    /// Waits for the next events and appends them. Cancel-safe. Is not called again after [`AgentEvent::Exited`].
    async fn next(&mut self, events: &mut Vec<AgentEvent>);

    /// Starts a turn; the session ensures that none is running.
    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError>;

    /// Interrupts the turn. Its end is reported as an event.
    async fn interrupt(&mut self) -> Result<(), AgentError>;

    /// Answers the agent's request of this id.
    async fn answer(&mut self, id: &str, answer: UserAnswer) -> Result<(), AgentError>;

    /// Takes effect at once or with the next turn.
    async fn set_permission_mode(&mut self, agent: AgentMode, mode: PermissionMode) -> Result<(), AgentError>;

    /// Takes effect at once or with the next turn.
    async fn set_model(&mut self, model: Option<&str>, variant: Option<&str>) -> Result<(), AgentError>;

    /// Terminates the agent and every process that it started: SIGTERM first, SIGKILL after the grace period. Appends
    /// the last events, such as the completion of open items.
    async fn close(self: Box<Self>, grace: Duration, events: &mut Vec<AgentEvent>);
}

// === impl AgentId ===

impl AgentId {
    /// All agents, in the order in which they are listed.
    pub const ALL: [Self; 3] = [Self::Claude, Self::Codex, Self::Mock];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Mock => "mock",
        }
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AgentId {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|agent| agent.as_str() == name).ok_or(())
    }
}

// === impl Capabilities ===

impl Capabilities {
    /// Every capability, with one process per session.
    pub const ALL: Self = Self {
        permissions: true,
        questions: true,
        plan_mode: true,
        tool_calls: true,
        tool_results: true,
        streaming_deltas: true,
        reasoning: true,
        interrupt: true,
        resume: true,
        shared_process: false,
    };
}

// === impl PermissionMode ===

impl PermissionMode {
    /// All permission modes.
    pub const ALL: [Self; 4] = [Self::Default, Self::Plan, Self::AcceptEdits, Self::Bypass];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Plan => "plan",
            Self::AcceptEdits => "acceptEdits",
            Self::Bypass => "bypass",
        }
    }
}

impl FromStr for PermissionMode {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name).ok_or(())
    }
}

// === impl AgentMode ===

impl AgentMode {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Plan => "plan",
        }
    }
}

impl FromStr for AgentMode {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        [Self::Build, Self::Plan].into_iter().find(|mode| mode.as_str() == name).ok_or(())
    }
}

// === impl AgentEvent ===

impl AgentEvent {
    /// An event without a message of the agent.
    pub fn event(data: EventData) -> Self {
        Self::Event(data, None)
    }
}

/// The raw message of a JSON value.
pub fn raw(value: &Value) -> Option<RawMessage> {
    serde_json::value::to_raw_value(value).ok().map(RawMessage::from)
}
