//! What a coding agent is to the server: an [`Agent`] that opens conversations, and a [`Conversation`] that is told what
//! to do and says what happens. A new agent is one file that implements the two.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use crate::{
    child::{ChildError, ChildExit},
    schema::{EventData, PermissionReply, PermissionRequest, QuestionRequest, TurnOutcome, Usage},
};

/// The agents that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentId {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// Built in, for tests and first steps.
    Mock,
}

/// What an agent may do without asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum PermissionMode {
    /// It asks before it changes anything.
    #[default]
    Default,
    /// It makes plans and changes nothing.
    Plan,
    /// It changes files without asking, and asks for the rest.
    AcceptEdits,
    /// It never asks.
    Bypass,
}

/// How an agent works: to build, or to plan first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentMode {
    /// It does what it is asked.
    #[default]
    Build,
    /// It says first how it would.
    Plan,
}

/// A model that an agent can use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// By which it is chosen.
    pub id: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Ways to use it, such as how hard it thinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variants: Option<Vec<String>>,
    /// The one that is used unless another is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_variant: Option<String>,
}

/// The models of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Models {
    /// They.
    pub models: Vec<Model>,
    /// The one that is used unless another is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_model: Option<String>,
}

/// What an agent can do, beside text.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// It asks for permissions.
    pub permissions: bool,
    /// It asks questions.
    pub questions: bool,
    /// It has a mode to plan in.
    pub plan_mode: bool,
    /// It says what its tools do.
    pub tool_calls: bool,
    /// And what they gave.
    pub tool_results: bool,
    /// It tells its words as they come.
    pub streaming_deltas: bool,
    /// It tells its thoughts.
    pub reasoning: bool,
    /// Its turns can be stopped.
    pub interrupt: bool,
    /// Its sessions can be opened again.
    pub resume: bool,
    /// One process serves all of its sessions.
    pub shared_process: bool,
}

/// Where an agent's program is, and what it is to find in its environment.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The program; empty for an agent that is built in.
    pub program: PathBuf,
    /// Credentials and settings for its environment, over what the server itself has.
    pub environment: Vec<(String, String)>,
    /// The directory in which it works.
    pub directory: PathBuf,
}

/// What a conversation is opened with.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The session's id, the client's own.
    pub session_id: String,
    /// Where the agent is and works.
    pub place: Place,
    /// How it works.
    pub agent_mode: AgentMode,
    /// What it may do unasked.
    pub permission_mode: PermissionMode,
    /// The model, or the agent's own choice.
    pub model: Option<String>,
    /// How the model is used.
    pub variant: Option<String>,
    /// The agent's own id of the conversation, if it had one before.
    pub native_id: Option<String>,
    /// Whether a prompt was ever given to it: only then the agent knows it and can resume it.
    pub begun: bool,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// The client's id of it, or one of ours.
    pub id: String,
    /// What the user says.
    pub text: String,
}

/// An answer to what an agent asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a permission, with words for the agent where it is refused.
    Permission(PermissionReply, Option<String>),
    /// To questions: for each, what was chosen.
    Question(Vec<Vec<String>>),
    /// The questions are not answered.
    QuestionRejected,
}

/// The agent's own words. One of its messages may tell several facts, and is kept once for all of them.
pub type Raw = Arc<RawValue>;

/// What a conversation says of itself.
#[derive(Debug)]
pub enum Fact {
    /// For the session's log, with the agent's own words for it.
    Event(EventData, Option<Raw>),
    /// The agent's id of the conversation.
    NativeId(String),
    /// The agent works in another mode from now on, because of an answer or of its own accord.
    Modes(AgentMode, PermissionMode),
    /// The agent began a turn that nobody prompted. The session itself tells of turns that were prompted.
    TurnStarted,
    /// The turn is over; whatever was open in it is closed.
    TurnEnded {
        /// How.
        outcome: TurnOutcome,
        /// Why, if it failed.
        message: Option<String>,
        /// What it used.
        usage: Option<Usage>,
        /// The agent's own words for it.
        raw: Option<Raw>,
    },
    /// The agent asks for a permission.
    PermissionAsked(PermissionRequest, Option<Raw>),
    /// The agent asks.
    QuestionAsked(QuestionRequest, Option<Raw>),
    /// A question or a permission of this id is wanted no longer.
    Withdrawn(String),
    /// The agent is gone: nothing follows. The session decides what that means.
    Gone(Gone),
}

/// How an agent went.
#[derive(Debug)]
pub enum Gone {
    /// Its process ended.
    Exited(ChildExit),
    /// The server that it shares with other sessions ended; the conversation can be opened again.
    ServerExited(ChildExit),
    /// It said that the session is over.
    Finished,
}

/// Why an agent could not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The program could not be started, or told something.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The agent did not answer in time.
    #[error("the agent did not answer {request} within {} s", .limit.as_secs())]
    Timeout {
        /// What it was asked.
        request: &'static str,
        /// For how long we waited.
        limit: Duration,
    },
    /// The agent refused.
    #[error("the agent refused {request}: {message}")]
    Refused {
        /// What it was asked.
        request: &'static str,
        /// Its words.
        message: String,
    },
    /// There is no program of it here.
    #[error("agent not installed: {0}")]
    NotInstalled(AgentId),
    /// The agent cannot do that.
    #[error("{0}")]
    Unsupported(String),
}

/// A coding agent.
#[async_trait]
pub trait Agent: Send + Sync + 'static {
    /// Its name.
    fn id(&self) -> AgentId;

    /// What it may be told to do unasked, beside the default.
    fn permission_modes(&self) -> &'static [PermissionMode];

    /// Whether its plan mode is one of its permission modes, so that another one contradicts it.
    fn plan_is_a_permission(&self) -> bool {
        false
    }

    /// What it can do.
    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    /// The models that it can use.
    async fn models(&self, place: &Place) -> Result<Models, AgentError>;

    /// Opens a conversation, or one that was open before (`native_id`) again.
    async fn open(&self, opening: Opening) -> Result<Box<dyn Conversation>, AgentError>;

    /// Ends whatever the conversations share, after this time at the latest. All of them are closed before.
    async fn shutdown(&self, _patience: Duration) {}
}

/// A conversation with an agent. Nothing that it is told waits for the agent to read it.
#[async_trait]
pub trait Conversation: Send {
    /// The agent's id of it, if it is known already.
    fn native_id(&self) -> Option<String>;

    /// Waits for what happens next and appends it. May be dropped and called again at any time without loss. After
    /// [`Fact::Gone`] it is not called again.
    async fn next(&mut self, facts: &mut Vec<Fact>);

    /// Begins a turn; the session has made sure that none is running.
    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError>;

    /// Stops the turn. Its end is told as a fact.
    async fn interrupt(&mut self) -> Result<(), AgentError>;

    /// Answers what the agent asked under this id.
    async fn answer(&mut self, id: &str, answer: Answer) -> Result<(), AgentError>;

    /// From now on, or from the next turn on.
    async fn set_permission_mode(&mut self, agent: AgentMode, mode: PermissionMode) -> Result<(), AgentError>;

    /// From now on, or from the next turn on.
    async fn set_model(&mut self, model: Option<&str>, variant: Option<&str>) -> Result<(), AgentError>;

    /// Ends the agent with everything that it started: asked first, and made to after this time. Nothing of it is left
    /// afterwards. Appends what there was still to tell, such as the ends of what was open.
    async fn close(self: Box<Self>, patience: Duration, facts: &mut Vec<Fact>);
}

// === impl AgentId ===

impl AgentId {
    /// All of them, in the order in which they are listed.
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
    /// Everything, in a process of its own.
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
    /// All of them.
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

// === impl Fact ===

impl Fact {
    /// An event without words of the agent.
    pub fn event(data: EventData) -> Self {
        Self::Event(data, None)
    }
}

/// The agent's own words, as they are kept beside an event.
pub fn raw(value: &Value) -> Option<Raw> {
    serde_json::value::to_raw_value(value).ok().map(Raw::from)
}
