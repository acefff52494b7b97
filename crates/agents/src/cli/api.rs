//! Agents and sessions of a server, from the command line.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    CliError,
    client::{ApiRequest, EndpointArguments},
};

#[derive(Subcommand)]
pub(super) enum ApiCommand {
    /// Manage agents
    #[command(subcommand)]
    Agents(AgentsCommand),
    /// Manage sessions
    #[command(subcommand)]
    Sessions(SessionsCommand),
}

#[derive(Subcommand)]
pub(super) enum AgentsCommand {
    /// List agents
    List {
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Install an agent
    Install {
        agent: String,
        /// Install it even if it is installed already
        #[arg(short, long)]
        reinstall: bool,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// List the modes of an agent
    Modes {
        agent: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// List the models of an agent
    Models {
        agent: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
}

#[derive(Subcommand)]
pub(super) enum SessionsCommand {
    /// List sessions
    List {
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Create a session
    Create {
        session_id: String,
        /// The agent: claude, codex or mock
        #[arg(short, long)]
        agent: String,
        /// Agent mode: build or plan
        #[arg(short = 'g', long)]
        agent_mode: Option<String>,
        /// Permission mode: default, plan, acceptEdits or bypass
        #[arg(short, long)]
        permission_mode: Option<String>,
        /// Model to use
        #[arg(short, long)]
        model: Option<String>,
        /// Variant of the model, such as its reasoning effort
        #[arg(short, long)]
        variant: Option<String>,
        /// Version of the agent to install if it is missing
        #[arg(short = 'A', long)]
        agent_version: Option<String>,
        /// Working directory of the agent
        #[arg(short, long)]
        directory: Option<String>,
        /// Title of the session
        #[arg(long)]
        title: Option<String>,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Show a session
    Get {
        session_id: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Terminate and delete a session
    Delete {
        session_id: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Send a message
    SendMessage {
        session_id: String,
        #[command(flatten)]
        message: MessageArguments,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Send a message and stream its turn
    SendMessageStream {
        session_id: String,
        #[command(flatten)]
        message: MessageArguments,
        #[command(flatten)]
        view: ViewArguments,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Print events
    #[command(alias = "get-messages")]
    Events {
        session_id: String,
        /// Only events after this id
        #[arg(short, long)]
        offset: Option<u64>,
        /// Maximum number of events
        #[arg(short, long)]
        limit: Option<usize>,
        #[command(flatten)]
        view: ViewArguments,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Stream events
    EventsSse {
        session_id: String,
        /// Only events after this id
        #[arg(short, long)]
        offset: Option<u64>,
        #[command(flatten)]
        view: ViewArguments,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Answer questions
    ReplyQuestion {
        session_id: String,
        question_id: String,
        /// List of answers for each question, as JSON: [["Yes"]]
        #[arg(short, long)]
        answers: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Reject questions
    RejectQuestion {
        session_id: String,
        question_id: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Answer a permission request
    ReplyPermission {
        session_id: String,
        permission_id: String,
        /// Reply: once, always or reject
        #[arg(short, long)]
        reply: String,
        /// Message for the agent with a reject
        #[arg(short, long)]
        message: Option<String>,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Interrupt the running turn
    Abort {
        session_id: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Resume a session that ended
    Resume {
        session_id: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
    /// Terminate a session; its events stay readable
    Terminate {
        session_id: String,
        #[command(flatten)]
        endpoint: EndpointArguments,
    },
}

#[derive(clap::Args)]
pub(super) struct MessageArguments {
    /// Text of the message
    #[arg(short, long)]
    message: String,
    /// Message id; a retry with the same id and text has no effect
    #[arg(long)]
    message_id: Option<String>,
}

#[derive(clap::Args)]
pub(super) struct ViewArguments {
    /// Include turns, items, usage and other details
    #[arg(long)]
    full: bool,
    /// Include the agent's raw messages
    #[arg(long)]
    raw: bool,
}

impl ApiCommand {
    pub(super) fn run(self) -> Result<(), CliError> {
        match self {
            Self::Agents(agents) => agents.run(),
            Self::Sessions(sessions) => sessions.run(),
        }
    }
}

impl AgentsCommand {
    pub(super) fn run(self) -> Result<(), CliError> {
        let of =
            |agent: String, what: &str| ApiRequest::new(Method::GET, ["agents".to_owned(), agent, what.to_owned()]);
        match self {
            Self::List { endpoint } => endpoint.send(ApiRequest::new(Method::GET, ["agents"])),
            Self::Install { agent, reinstall, endpoint } => {
                let request = ApiRequest::new(Method::POST, ["agents".to_owned(), agent, "install".to_owned()]);
                endpoint.send(request.body(json!({"reinstall": reinstall})))
            }
            Self::Modes { agent, endpoint } => endpoint.send(of(agent, "modes")),
            Self::Models { agent, endpoint } => endpoint.send(of(agent, "models")),
        }
    }
}

impl SessionsCommand {
    pub(super) fn run(self) -> Result<(), CliError> {
        match self {
            Self::List { endpoint } => endpoint.send(ApiRequest::new(Method::GET, ["sessions"])),
            Self::Create {
                session_id,
                agent,
                agent_mode,
                permission_mode,
                model,
                variant,
                agent_version,
                directory,
                title,
                endpoint,
            } => endpoint.send(session(Method::POST, session_id, &[]).body(json!({
                "agent": agent,
                "agentMode": agent_mode,
                "permissionMode": permission_mode,
                "model": model,
                "variant": variant,
                "agentVersion": agent_version,
                "directory": directory,
                "title": title,
            }))),
            Self::Get { session_id, endpoint } => endpoint.send(session(Method::GET, session_id, &[])),
            Self::Delete { session_id, endpoint } => endpoint.send(session(Method::DELETE, session_id, &[])),
            Self::SendMessage { session_id, message, endpoint } => {
                endpoint.send(session(Method::POST, session_id, &["messages"]).body(message.body()))
            }
            Self::SendMessageStream { session_id, message, view, endpoint } => {
                let request = session(Method::POST, session_id, &["messages", "stream"]).body(message.body());
                // A person answers from another terminal, without a hurry.
                endpoint.send(view.of(request).query("wait", Some(3600)))
            }
            Self::Events { session_id, offset, limit, view, endpoint } => {
                let request = session(Method::GET, session_id, &["events"]);
                endpoint.send(view.of(request).query("offset", offset).query("limit", limit))
            }
            Self::EventsSse { session_id, offset, view, endpoint } => {
                endpoint.send(view.of(session(Method::GET, session_id, &["events", "sse"])).query("offset", offset))
            }
            Self::ReplyQuestion { session_id, question_id, answers, endpoint } => {
                let answers: Value = serde_json::from_str(&answers).map_err(|error| {
                    CliError::new(format!("the answers are not valid JSON: {error}")).hint("--answers '[[\"Yes\"]]'")
                })?;
                let request = session(Method::POST, session_id, &["questions", &question_id, "reply"]);
                endpoint.send(request.body(json!({"answers": answers})))
            }
            Self::RejectQuestion { session_id, question_id, endpoint } => {
                endpoint.send(session(Method::POST, session_id, &["questions", &question_id, "reject"]))
            }
            Self::ReplyPermission { session_id, permission_id, reply, message, endpoint } => {
                let request = session(Method::POST, session_id, &["permissions", &permission_id, "reply"]);
                endpoint.send(request.body(json!({"reply": reply, "message": message})))
            }
            Self::Abort { session_id, endpoint } => endpoint.send(session(Method::POST, session_id, &["abort"])),
            Self::Resume { session_id, endpoint } => endpoint.send(session(Method::POST, session_id, &["resume"])),
            Self::Terminate { session_id, endpoint } => {
                endpoint.send(session(Method::POST, session_id, &["terminate"]))
            }
        }
    }
}

fn session(method: Method, id: String, rest: &[&str]) -> ApiRequest {
    ApiRequest::new(method, ["sessions".to_owned(), id].into_iter().chain(rest.iter().map(|&piece| piece.to_owned())))
}

impl MessageArguments {
    fn body(self) -> Value {
        json!({"message": self.message, "messageId": self.message_id})
    }
}

impl ViewArguments {
    fn of(&self, request: ApiRequest) -> ApiRequest {
        request.query("view", self.full.then_some("full")).query("includeRaw", self.raw.then_some(true))
    }
}
