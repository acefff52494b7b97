//! Sessions in the API of each server.

use anyhow::{Result, ensure};

use super::client::{EventStream, HttpConnection};
use super::server::{AgentsServer, ServerOrigin};

/// The path of the one agent process of the published server.
const PROCESS: &str = "/v1/acp/bench";

/// Creates sessions and sends prompts.
pub(super) struct SessionClient<'a> {
    server: &'a AgentsServer,
    connection: HttpConnection,
    agent: &'static str,
    requests: u64,
}

// === impl SessionClient ===

impl<'a> SessionClient<'a> {
    /// Uses the built-in agent of each server.
    pub(super) fn with_mock(server: &'a AgentsServer) -> Result<Self> {
        let mut client = Self { server, connection: server.connect()?, agent: "mock", requests: 0 };
        if server.origin == ServerOrigin::Theirs {
            client.connection.request("POST", "/v1/agents/mock/install", "{}")?;
        }
        Ok(client)
    }

    /// Uses the scripted agent: as Claude Code for one server, as an ACP agent for the other.
    pub(super) fn with_scripted_agent(server: &'a AgentsServer) -> Result<Self> {
        let agent = if server.origin == ServerOrigin::Ours { "claude" } else { "mock" };
        Ok(Self { server, connection: server.connect()?, agent, requests: 0 })
    }

    /// Prepares the first session: the published server starts the process of the agent.
    pub(super) fn initialize(&mut self) -> Result<()> {
        if self.server.origin == ServerOrigin::Theirs {
            let path = format!("{PROCESS}?agent={}", self.agent);
            let body = self.call("initialize", r#"{"protocolVersion":1,"clientCapabilities":{}}"#);
            self.connection.request("POST", &path, &body)?;
        }
        Ok(())
    }

    /// Creates a session.
    pub(super) fn create(&mut self, name: &str) -> Result<()> {
        let answer = match self.server.origin {
            ServerOrigin::Ours => {
                let body = format!(r#"{{"agent":"{}"}}"#, self.agent);
                self.connection.request("POST", &format!("/v1/sessions/{name}"), &body)?
            }
            ServerOrigin::Theirs => {
                let body = self.call("session/new", r#"{"cwd":"/tmp","mcpServers":[]}"#);
                self.connection.request("POST", PROCESS, &body)?
            }
        };
        ensure!(answer.contains("healthy") || answer.contains("result"), "no session: {answer}");
        Ok(())
    }

    /// The events of a session, past and future.
    pub(super) fn events(&self, name: &str) -> Result<EventStream> {
        self.server.connect()?.events(&match self.server.origin {
            ServerOrigin::Ours => format!("/v1/sessions/{name}/events/sse"),
            ServerOrigin::Theirs => PROCESS.to_owned(),
        })
    }

    /// Sends a prompt; wait for its response with `wait_for_response`.
    pub(super) fn prompt(&mut self, name: &str, text: &str) -> Result<()> {
        let (path, body) = match self.server.origin {
            ServerOrigin::Ours => (format!("/v1/sessions/{name}/messages"), format!(r#"{{"message":"{text}"}}"#)),
            ServerOrigin::Theirs => {
                let content = format!(r#"{{"sessionId":"{name}","prompt":[{{"type":"text","text":"{text}"}}]}}"#);
                (PROCESS.to_owned(), self.call("session/prompt", &content))
            }
        };
        Ok(self.connection.send("POST", &path, &body)?)
    }

    /// Waits until the prompt was accepted; the published server responds at the end of the turn.
    pub(super) fn wait_for_response(&mut self) -> Result<()> {
        self.connection.response().map(drop)
    }

    fn call(&mut self, method: &str, content: &str) -> String {
        self.requests += 1;
        format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{content}}}"#, self.requests)
    }
}
