//! A measured server, alone and in its own temporary home.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::client::HttpConnection;
use super::scripted_agent;
use crate::samples::since;
use crate::sandbox::programs;

/// How long a server may take to start.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The published server, below the directory `CARREL_PEERS`.
const PUBLISHED: &str = "node_modules/@sandbox-agent/cli-linux-x64/bin/sandbox-agent";

/// Which of the two servers it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerOrigin {
    Ours,
    Theirs,
}

/// A healthy server. Dropping kills it with its agents.
pub(super) struct AgentsServer {
    pub(super) origin: ServerOrigin,
    /// Milliseconds from its start until it was healthy.
    pub(super) start_time: f64,
    child: Child,
    address: SocketAddr,
    _home: TempDir,
}

// === impl ServerOrigin ===

impl ServerOrigin {
    fn program(self) -> Result<PathBuf> {
        let path = match self {
            Self::Ours => programs()?.shim.with_file_name("sandbox-agent"),
            Self::Theirs => {
                let peers = std::env::var_os("CARREL_PEERS");
                let peers = peers.context("CARREL_PEERS names no directory of published programs; run ./bench")?;
                Path::new(&peers).join(PUBLISHED)
            }
        };
        ensure!(path.is_file(), "there is no {}; ./bench fetches it", path.display());
        Ok(path)
    }
}

// === impl AgentsServer ===

impl AgentsServer {
    /// Starts it with its built-in agents.
    pub(super) fn start(origin: ServerOrigin) -> Result<Self> {
        Self::start_in(origin, tempfile::Builder::new().prefix("carrel-bench-").tempdir()?)
    }

    /// Starts it with the scripted agent.
    pub(super) fn with_scripted_agent(origin: ServerOrigin) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("carrel-bench-").tempdir()?;
        match origin {
            ServerOrigin::Ours => scripted_agent::install(&home.path().join("bin/claude"), scripted_agent::CLAUDE)?,
            ServerOrigin::Theirs => {
                scripted_agent::install(
                    &home.path().join("data/sandbox-agent/bin/agent_processes/mock-acp"),
                    scripted_agent::ACP,
                )?;
            }
        }
        Self::start_in(origin, home)
    }

    fn start_in(origin: ServerOrigin, home: TempDir) -> Result<Self> {
        let (program, at) = (origin.program()?, home.path());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(at.join("bin")).chain(std::env::split_paths(&path));
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(&program);
        command.args(["server", "--no-token", "--port", &address.port().to_string()]);
        // Our server has nothing to switch off here; the published one sends no telemetry and logs no requests.
        if origin == ServerOrigin::Theirs {
            command.arg("--no-telemetry");
        }
        command
            .env_clear()
            .env("PATH", std::env::join_paths(paths)?)
            .env("HOME", at)
            .env("XDG_DATA_HOME", at.join("data"));
        command.envs([("RUST_LOG", "error"), ("SANDBOX_AGENT_LOG_HTTP", "0"), ("SANDBOX_AGENT_LOG_STDOUT", "1")]);
        command.env("SANDBOX_AGENT_BIN", &program).current_dir(at);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Instant::now();
        let child = command.spawn().with_context(|| program.display().to_string())?;
        let mut server = Self { origin, start_time: 0.0, child, address, _home: home };
        while !server.is_healthy() {
            ensure!(server.child.try_wait()?.is_none(), "{} exited at once", program.display());
            ensure!(started.elapsed() < TIMEOUT, "{} does not serve", program.display());
        }
        server.start_time = since(started);
        Ok(server)
    }

    fn is_healthy(&self) -> bool {
        self.connect().is_ok_and(|mut connection| connection.request("GET", "/v1/health", "").is_ok())
    }

    /// Opens a connection.
    pub(super) fn connect(&self) -> Result<HttpConnection> {
        Ok(HttpConnection::open(self.address)?)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for AgentsServer {
    fn drop(&mut self) {
        // It has nothing to save; agents exit at the end of their input.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
