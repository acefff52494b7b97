//! The measured agent: a separate process, with a client on its socket.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use carrel_agent_client::AgentClient;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::sandbox::{programs, runtime};

/// A running agent and a client of it.
pub(crate) struct MeasuredAgent {
    child: Child,
    dir: TempDir,
    pub(crate) socket: PathBuf,
    /// The runtime of the client.
    pub(crate) runtime: Runtime,
    pub(crate) client: AgentClient,
}

// === impl MeasuredAgent ===

impl MeasuredAgent {
    /// Starts the shipped agent.
    pub(crate) fn start() -> Result<Self> {
        let program = programs()?.agentd;
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("agent.sock");
        let mut child = Command::new(program).arg("--listen").arg(&socket).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("the agent has no standard output")?;
        BufReader::new(stdout).read_line(&mut String::new())?;
        let runtime = runtime()?;
        let client = runtime.block_on(AgentClient::connect(&socket))?;
        Ok(Self { child, dir, socket, runtime, client })
    }

    /// A path in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for MeasuredAgent {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
