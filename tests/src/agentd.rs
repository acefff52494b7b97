//! Agents that a test starts. Dropping one kills it by its process id and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use carrel_agent_client::{AgentClient, ConnectError, ConnectOptions};
use carrel_protocol::Generation;
use tempfile::TempDir;

/// The agent under test.
pub fn agentd_path() -> PathBuf {
    if let Some(path) = std::env::var_os("CARREL_AGENTD") {
        return path.into();
    }
    let target = std::env::current_exe().unwrap();
    let beside = target.parent().and_then(Path::parent).unwrap().join("carrel-agentd");
    assert!(beside.exists(), "build carrel-agentd first, or set CARREL_AGENTD");
    beside
}

/// Installs a copy of a program. Another process writes it: a child of a concurrent test could inherit a descriptor
/// that is open for writing, and executing the copy would fail with ETXTBSY.
pub fn install(program: &Path, to: &Path, mode: u32, owner: u32) {
    let (mode, owner) = (format!("{mode:o}"), owner.to_string());
    let mut install = Command::new("install");
    install.args(["-m", &mode, "-o", &owner, "-g", &owner]).arg(program).arg(to);
    assert!(install.status().unwrap().success());
}

/// The child processes of a process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// An agent that serves clients on a socket.
pub struct Agentd {
    child: Child,
    /// A directory for the test's own files, removed with the agent.
    pub dir: TempDir,
}

/// An agent on a channel of its own; as pid 1 of new namespaces if the command says so.
pub struct Guest {
    child: Child,
}

// === impl Agentd ===

impl Agentd {
    /// An agent of the current generation.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// An agent that supports no generation above the given one.
    pub fn of_generation(generation: Generation) -> Self {
        Self::with(&["--max-generation", &generation.to_string()])
    }

    pub fn with(args: &[&str]) -> Self {
        let mut command = Command::new(agentd_path());
        command.args(args);
        Self::launch(command)
    }

    /// Starts an agent by a command that executes it.
    pub fn launch(mut command: Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let mut child = command.arg("--listen").arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, format!("listening {}\n", socket.display()));
        Self { child, dir }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    /// A path in the test's own directory.
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub async fn client(&self) -> AgentClient {
        self.client_with(ConnectOptions::default()).await
    }

    /// A client that supports no generation above the given one.
    pub async fn client_of(&self, max_generation: Generation) -> AgentClient {
        self.client_with(ConnectOptions { max_generation, ..ConnectOptions::default() }).await
    }

    pub async fn client_with(&self, options: ConnectOptions) -> AgentClient {
        AgentClient::connect_with(self.socket(), options).await.unwrap()
    }

    /// Waits until the agent exits by itself, and returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Agentd {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

// === impl Guest ===

impl Guest {
    /// An agent on a socket pair. Data written to our end before the start is in the socket when the agent starts.
    pub fn start(mut command: Command) -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Self::on(&mut command, theirs), ours)
    }

    /// An agent on the given end of a socket pair.
    pub fn on(command: &mut Command, channel: UnixStream) -> Self {
        let stdin: OwnedFd = channel.try_clone().unwrap().into();
        let stdout: OwnedFd = channel.into();
        Self { child: command.stdin(stdin).stdout(stdout).spawn().unwrap() }
    }

    /// The agent without namespaces.
    pub fn plain() -> Command {
        Command::new(agentd_path())
    }

    /// The agent as pid 1 of new namespaces, from the given file.
    pub fn in_namespaces(program: &Path) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        command.arg(program);
        command
    }

    /// The started process: the agent, or `unshare`, which created its namespaces.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The pid of the agent outside its namespaces.
    pub fn init(&self) -> u32 {
        *children_of(self.pid()).first().expect("the agent runs")
    }

    pub async fn connect(channel: UnixStream) -> AgentClient {
        Self::try_connect(channel).await.unwrap()
    }

    pub async fn try_connect(channel: UnixStream) -> Result<AgentClient, ConnectError> {
        channel.set_nonblocking(true).unwrap();
        let channel = tokio::net::UnixStream::from_std(channel).unwrap();
        AgentClient::connect_channel(channel, ConnectOptions::default()).await
    }

    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
