//! Sessions, in the words of each server.

use anyhow::{Result, ensure};

use super::client::{Connection, Events};
use super::server::{Server, Whose};

/// What theirs calls its one process of an agent.
const PROCESS: &str = "/v1/acp/bench";

/// One who makes sessions and talks in them.
pub(super) struct Talk<'a> {
    server: &'a Server,
    connection: Connection,
    agent: &'static str,
    asked: u64,
}

// === impl Talk ===

impl<'a> Talk<'a> {
    /// With the agent that each server has built in.
    pub(super) fn with_mock(server: &'a Server) -> Result<Self> {
        let mut talk = Self { server, connection: server.connect()?, agent: "mock", asked: 0 };
        if server.whose == Whose::Theirs {
            talk.connection.ask("POST", "/v1/agents/mock/install", "{}")?;
        }
        Ok(talk)
    }

    /// With an agent of ours that is a program: to one server it is Claude Code, to the other one that speaks ACP.
    pub(super) fn with_player(server: &'a Server) -> Result<Self> {
        let agent = if server.whose == Whose::Ours { "claude" } else { "mock" };
        Ok(Self { server, connection: server.connect()?, agent, asked: 0 })
    }

    /// What has to be before the first session: theirs starts the process of the agent.
    pub(super) fn introduce(&mut self) -> Result<()> {
        if self.server.whose == Whose::Theirs {
            let path = format!("{PROCESS}?agent={}", self.agent);
            let body = self.call("initialize", r#"{"protocolVersion":1,"clientCapabilities":{}}"#);
            self.connection.ask("POST", &path, &body)?;
        }
        Ok(())
    }

    /// Makes a session.
    pub(super) fn create(&mut self, name: &str) -> Result<()> {
        let answer = match self.server.whose {
            Whose::Ours => {
                let body = format!(r#"{{"agent":"{}"}}"#, self.agent);
                self.connection.ask("POST", &format!("/v1/sessions/{name}"), &body)?
            }
            Whose::Theirs => {
                let body = self.call("session/new", r#"{"cwd":"/tmp","mcpServers":[]}"#);
                self.connection.ask("POST", PROCESS, &body)?
            }
        };
        ensure!(answer.contains("healthy") || answer.contains("result"), "no session: {answer}");
        Ok(())
    }

    /// All that happens in a session from now on, or before.
    pub(super) fn events(&self, name: &str) -> Result<Events> {
        self.server.connect()?.events(&match self.server.whose {
            Whose::Ours => format!("/v1/sessions/{name}/events/sse"),
            Whose::Theirs => PROCESS.to_owned(),
        })
    }

    /// Sends a prompt; its answer is waited for with `taken`.
    pub(super) fn prompt(&mut self, name: &str, words: &str) -> Result<()> {
        let (path, body) = match self.server.whose {
            Whose::Ours => (format!("/v1/sessions/{name}/messages"), format!(r#"{{"message":"{words}"}}"#)),
            Whose::Theirs => {
                let content = format!(r#"{{"sessionId":"{name}","prompt":[{{"type":"text","text":"{words}"}}]}}"#);
                (PROCESS.to_owned(), self.call("session/prompt", &content))
            }
        };
        Ok(self.connection.send("POST", &path, &body)?)
    }

    /// Waits until the prompt was taken; theirs says so when the turn has ended.
    pub(super) fn taken(&mut self) -> Result<()> {
        self.connection.answer().map(drop)
    }

    fn call(&mut self, method: &str, content: &str) -> String {
        self.asked += 1;
        format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{content}}}"#, self.asked)
    }
}
