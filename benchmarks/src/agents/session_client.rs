//! Sessions in the API of each server.

use anyhow::{Result, ensure};

use super::client::{EventStream, HttpConnection};
use super::server::{AgentsServer, ServerOrigin};

/// The published server's name for its one agent process.
const PROCESS: &str = "/v1/acp/bench";

/// Creates sessions and sends prompts.
pub(super) struct SessionClient<'a> {
    server: &'a AgentsServer,
    connection: HttpConnection,
    agent: &'static str,
    asked: u64,
}

// === impl SessionClient ===

impl<'a> SessionClient<'a> {
    /// Uses the built-in agent of each server.
    pub(super) fn with_mock(server: &'a AgentsServer) -> Result<Self> {
        let mut talk = Self { server, connection: server.connect()?, agent: "mock", asked: 0 };
        if server.whose == ServerOrigin::Theirs {
            talk.connection.ask("POST", "/v1/agents/mock/install", "{}")?;
        }
        Ok(talk)
    }

    /// Uses the scripted agent: as Claude Code for one server, as an ACP agent for the other.
    pub(super) fn with_player(server: &'a AgentsServer) -> Result<Self> {
        let agent = if server.whose == ServerOrigin::Ours { "claude" } else { "mock" };
        Ok(Self { server, connection: server.connect()?, agent, asked: 0 })
    }

    /// Prepares the first session: the published server starts the process of the agent.
    pub(super) fn introduce(&mut self) -> Result<()> {
        if self.server.whose == ServerOrigin::Theirs {
            let path = format!("{PROCESS}?agent={}", self.agent);
            let body = self.call("initialize", r#"{"protocolVersion":1,"clientCapabilities":{}}"#);
            self.connection.ask("POST", &path, &body)?;
        }
        Ok(())
    }

    /// Creates a session.
    pub(super) fn create(&mut self, name: &str) -> Result<()> {
        let answer = match self.server.whose {
            ServerOrigin::Ours => {
                let body = format!(r#"{{"agent":"{}"}}"#, self.agent);
                self.connection.ask("POST", &format!("/v1/sessions/{name}"), &body)?
            }
            ServerOrigin::Theirs => {
                let body = self.call("session/new", r#"{"cwd":"/tmp","mcpServers":[]}"#);
                self.connection.ask("POST", PROCESS, &body)?
            }
        };
        ensure!(answer.contains("healthy") || answer.contains("result"), "no session: {answer}");
        Ok(())
    }

    /// The events of a session, past and future.
    pub(super) fn events(&self, name: &str) -> Result<EventStream> {
        self.server.connect()?.events(&match self.server.whose {
            ServerOrigin::Ours => format!("/v1/sessions/{name}/events/sse"),
            ServerOrigin::Theirs => PROCESS.to_owned(),
        })
    }

    /// Sends a prompt; wait for its response with `taken`.
    pub(super) fn prompt(&mut self, name: &str, words: &str) -> Result<()> {
        let (path, body) = match self.server.whose {
            ServerOrigin::Ours => (format!("/v1/sessions/{name}/messages"), format!(r#"{{"message":"{words}"}}"#)),
            ServerOrigin::Theirs => {
                let content = format!(r#"{{"sessionId":"{name}","prompt":[{{"type":"text","text":"{words}"}}]}}"#);
                (PROCESS.to_owned(), self.call("session/prompt", &content))
            }
        };
        Ok(self.connection.send("POST", &path, &body)?)
    }

    /// Waits until the prompt was accepted; the published server responds at the end of the turn.
    pub(super) fn taken(&mut self) -> Result<()> {
        self.connection.answer().map(drop)
    }

    fn call(&mut self, method: &str, content: &str) -> String {
        self.asked += 1;
        format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{content}}}"#, self.asked)
    }
}
