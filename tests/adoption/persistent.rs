//! A persistent sandbox that another process owns.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use carrel_shim_client::messages::{Create, JobCommand};
use carrel_shim_client::{DiscoveredSandbox, Liveness, SandboxRecord, ShimClient, find};
use carrel_tests::{agentd_path, home};
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use tempfile::TempDir;

pub const NAME: &str = "adopted";

/// A persistent sandbox, removed when dropped.
pub struct AdoptableSandbox {
    pub home: TempDir,
    pub record: SandboxRecord,
    owner: Child,
    shim: OwnedFd,
}

/// A shell script as a job.
pub fn job(script: &str) -> JobCommand {
    let args = vec!["-c".to_owned(), script.to_owned()];
    JobCommand { program: "/bin/sh".to_owned(), args, rows: 24, cols: 80, ..JobCommand::default() }
}

/// Waits until a process has exited.
pub async fn exit_of(process: &OwnedFd) {
    let process = process.try_clone().unwrap();
    tokio::task::spawn_blocking(move || wait_for_exit(&process)).await.unwrap();
}

/// The same for synchronous code.
pub fn wait_for_exit(process: impl AsFd) {
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    while rustix::event::poll(&mut watched, None) == Err(rustix::io::Errno::INTR) {}
}

// === impl AdoptableSandbox ===

impl AdoptableSandbox {
    /// Starts an owner process, which starts the sandbox.
    pub fn start() -> Self {
        Self::with(&agentd_path())
    }

    /// The same with the shim beside the given agent.
    pub fn with(agentd: &Path) -> Self {
        let home = home();
        let mut owner = Command::new(agentd_path().with_file_name("carrel-owner"));
        owner.arg(home.path()).arg(NAME).env("CARREL_AGENTD", agentd);
        let mut owner = owner.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "running\n");
        let record = find(home.path(), NAME).unwrap().unwrap().record.unwrap();
        let shim = record.shim_handle().unwrap();
        Self { home, record, owner, shim }
    }

    pub fn create(&self) -> &Create {
        &self.record.create
    }

    pub fn directory(&self) -> PathBuf {
        self.create().directory.0.clone()
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.directory().parent().unwrap().to_owned()
    }

    pub fn find(&self) -> DiscoveredSandbox {
        find(self.home.path(), NAME).unwrap().unwrap()
    }

    pub async fn adopt(&self) -> ShimClient {
        let found = self.find();
        assert_eq!(found.life, Liveness::Running);
        found.connect().await.unwrap()
    }

    pub fn owner(&self) -> u32 {
        self.owner.id()
    }

    /// Kills the owner. When this returns, the owner's ends of all connections are closed.
    pub fn kill_owner(&mut self) {
        self.owner.kill().unwrap();
        self.owner.wait().unwrap();
    }

    /// Kills the shim.
    pub async fn kill_shim(&self) {
        let _killed = rustix::process::pidfd_send_signal(&self.shim, Signal::KILL);
        exit_of(&self.shim).await;
    }
}

impl Drop for AdoptableSandbox {
    fn drop(&mut self) {
        let _killed = self.owner.kill();
        let _reaped = self.owner.wait();
        let _killed = rustix::process::pidfd_send_signal(&self.shim, Signal::KILL);
        wait_for_exit(&self.shim);
        // A test may have changed the record, but only the original one names the cgroup.
        let directory = carrel_shim_client::layout::open_directory(rustix::fs::CWD, self.directory());
        let _restored = directory.and_then(|directory| self.record.write(directory));
        let _collected = carrel_shim::collect(&self.directory());
    }
}
