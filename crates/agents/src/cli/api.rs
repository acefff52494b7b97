//! Agents and sessions of a server, from the command line.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Failure,
    client::{Ask, Endpoint},
};

#[derive(Subcommand)]
pub(super) enum Api {
    /// The agents of a server
    #[command(subcommand)]
    Agents(Agents),
    /// Its sessions
    #[command(subcommand)]
    Sessions(Sessions),
}

#[derive(Subcommand)]
pub(super) enum Agents {
    /// All agents
    List {
        #[command(flatten)]
        at: Endpoint,
    },
    /// Install an agent
    Install {
        agent: String,
        /// Even if it is there
        #[arg(short, long)]
        reinstall: bool,
        #[command(flatten)]
        at: Endpoint,
    },
    /// The ways in which an agent works
    Modes {
        agent: String,
        #[command(flatten)]
        at: Endpoint,
    },
    /// The models that it can use
    Models {
        agent: String,
        #[command(flatten)]
        at: Endpoint,
    },
}

#[derive(Subcommand)]
pub(super) enum Sessions {
    /// All sessions
    List {
        #[command(flatten)]
        at: Endpoint,
    },
    /// Make a session
    Create {
        session_id: String,
        /// Who runs in it
        #[arg(short, long)]
        agent: String,
        /// build or plan
        #[arg(short = 'g', long)]
        agent_mode: Option<String>,
        /// default, plan, acceptEdits or bypass
        #[arg(short, long)]
        permission_mode: Option<String>,
        /// The model
        #[arg(short, long)]
        model: Option<String>,
        /// How the model is used
        #[arg(short, long)]
        variant: Option<String>,
        /// The version of the agent to install if it is not there
        #[arg(short = 'A', long)]
        agent_version: Option<String>,
        /// Where the agent works
        #[arg(short, long)]
        directory: Option<String>,
        /// For people
        #[arg(long)]
        title: Option<String>,
        #[command(flatten)]
        at: Endpoint,
    },
    /// How a session is
    Get {
        session_id: String,
        #[command(flatten)]
        at: Endpoint,
    },
    /// End a session and forget it
    Delete {
        session_id: String,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Send a message
    SendMessage {
        session_id: String,
        #[command(flatten)]
        message: Message,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Send a message and print its turn as it comes
    SendMessageStream {
        session_id: String,
        #[command(flatten)]
        message: Message,
        #[command(flatten)]
        view: View,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Print events
    #[command(alias = "get-messages")]
    Events {
        session_id: String,
        /// Behind this id
        #[arg(short, long)]
        offset: Option<u64>,
        /// At most so many
        #[arg(short, long)]
        limit: Option<usize>,
        #[command(flatten)]
        view: View,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Print events as they come
    EventsSse {
        session_id: String,
        /// Behind this id
        #[arg(short, long)]
        offset: Option<u64>,
        #[command(flatten)]
        view: View,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Answer questions
    ReplyQuestion {
        session_id: String,
        question_id: String,
        /// For each question a list of answers, as JSON: [["Yes"]]
        #[arg(short, long)]
        answers: String,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Refuse to answer questions
    RejectQuestion {
        session_id: String,
        question_id: String,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Give or refuse a permission
    ReplyPermission {
        session_id: String,
        permission_id: String,
        /// once, always or reject
        #[arg(short, long)]
        reply: String,
        /// Words for the agent with a reject
        #[arg(short, long)]
        message: Option<String>,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Stop the turn; the session goes on
    Abort {
        session_id: String,
        #[command(flatten)]
        at: Endpoint,
    },
    /// Open a session again that ended
    Resume {
        session_id: String,
        #[command(flatten)]
        at: Endpoint,
    },
    /// End a session; it can still be read
    Terminate {
        session_id: String,
        #[command(flatten)]
        at: Endpoint,
    },
}

#[derive(clap::Args)]
pub(super) struct Message {
    /// What the user says
    #[arg(short, long)]
    message: String,
    /// An id of it: the same id and message again change nothing
    #[arg(long)]
    message_id: Option<String>,
}

#[derive(clap::Args)]
pub(super) struct View {
    /// With turns, items, usage and more
    #[arg(long)]
    full: bool,
    /// With the agent's own words
    #[arg(long)]
    raw: bool,
}

impl Api {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Agents(agents) => agents.run(),
            Self::Sessions(sessions) => sessions.run(),
        }
    }
}

impl Agents {
    pub(super) fn run(self) -> Result<(), Failure> {
        let of = |agent: String, what: &str| Ask::new(Method::GET, ["agents".to_owned(), agent, what.to_owned()]);
        match self {
            Self::List { at } => at.ask(Ask::new(Method::GET, ["agents"])),
            Self::Install { agent, reinstall, at } => {
                let ask = Ask::new(Method::POST, ["agents".to_owned(), agent, "install".to_owned()]);
                at.ask(ask.body(json!({"reinstall": reinstall})))
            }
            Self::Modes { agent, at } => at.ask(of(agent, "modes")),
            Self::Models { agent, at } => at.ask(of(agent, "models")),
        }
    }
}

impl Sessions {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::List { at } => at.ask(Ask::new(Method::GET, ["sessions"])),
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
                at,
            } => at.ask(session(Method::POST, session_id, &[]).body(json!({
                "agent": agent,
                "agentMode": agent_mode,
                "permissionMode": permission_mode,
                "model": model,
                "variant": variant,
                "agentVersion": agent_version,
                "directory": directory,
                "title": title,
            }))),
            Self::Get { session_id, at } => at.ask(session(Method::GET, session_id, &[])),
            Self::Delete { session_id, at } => at.ask(session(Method::DELETE, session_id, &[])),
            Self::SendMessage { session_id, message, at } => {
                at.ask(session(Method::POST, session_id, &["messages"]).body(message.body()))
            }
            Self::SendMessageStream { session_id, message, view, at } => {
                let ask = session(Method::POST, session_id, &["messages", "stream"]).body(message.body());
                // A person answers from another terminal, in their own time.
                at.ask(view.of(ask).query("wait", Some(3600)))
            }
            Self::Events { session_id, offset, limit, view, at } => {
                let ask = session(Method::GET, session_id, &["events"]);
                at.ask(view.of(ask).query("offset", offset).query("limit", limit))
            }
            Self::EventsSse { session_id, offset, view, at } => {
                at.ask(view.of(session(Method::GET, session_id, &["events", "sse"])).query("offset", offset))
            }
            Self::ReplyQuestion { session_id, question_id, answers, at } => {
                let answers: Value = serde_json::from_str(&answers).map_err(|error| {
                    Failure::new(format!("the answers are no JSON: {error}")).hint("such as [[\"Yes\"]]")
                })?;
                let ask = session(Method::POST, session_id, &["questions", &question_id, "reply"]);
                at.ask(ask.body(json!({"answers": answers})))
            }
            Self::RejectQuestion { session_id, question_id, at } => {
                at.ask(session(Method::POST, session_id, &["questions", &question_id, "reject"]))
            }
            Self::ReplyPermission { session_id, permission_id, reply, message, at } => {
                let ask = session(Method::POST, session_id, &["permissions", &permission_id, "reply"]);
                at.ask(ask.body(json!({"reply": reply, "message": message})))
            }
            Self::Abort { session_id, at } => at.ask(session(Method::POST, session_id, &["abort"])),
            Self::Resume { session_id, at } => at.ask(session(Method::POST, session_id, &["resume"])),
            Self::Terminate { session_id, at } => at.ask(session(Method::POST, session_id, &["terminate"])),
        }
    }
}

fn session(method: Method, id: String, rest: &[&str]) -> Ask {
    Ask::new(method, ["sessions".to_owned(), id].into_iter().chain(rest.iter().map(|&piece| piece.to_owned())))
}

impl Message {
    fn body(self) -> Value {
        json!({"message": self.message, "messageId": self.message_id})
    }
}

impl View {
    fn of(&self, ask: Ask) -> Ask {
        ask.query("view", self.full.then_some("full")).query("includeRaw", self.raw.then_some(true))
    }
}
