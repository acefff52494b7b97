//! A sandbox that lasts, and whose owner is another process.

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

/// Its name.
pub const NAME: &str = "standing";

/// A sandbox that lasts, gone when dropped.
pub struct Standing {
    pub home: TempDir,
    pub record: SandboxRecord,
    owner: Child,
    shim: OwnedFd,
}

/// A job that is a script.
pub fn job(script: &str) -> JobCommand {
    let args = vec!["-c".to_owned(), script.to_owned()];
    JobCommand { program: "/bin/sh".to_owned(), args, rows: 24, cols: 80, ..JobCommand::default() }
}

/// Waits until a process has ended.
pub async fn end(process: &OwnedFd) {
    let process = process.try_clone().unwrap();
    tokio::task::spawn_blocking(move || wait(&process)).await.unwrap();
}

/// The same, for those who cannot await it.
pub fn wait(process: impl AsFd) {
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    while rustix::event::poll(&mut watched, None) == Err(rustix::io::Errno::INTR) {}
}

// === impl Standing ===

impl Standing {
    /// Has one made by a process that owns it.
    pub fn start() -> Self {
        Self::with(&agentd_path())
    }

    /// The same, by the supervisor beside the given agent.
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

    /// Finds it, and talks to it.
    pub async fn adopt(&self) -> ShimClient {
        let found = self.find();
        assert_eq!(found.life, Liveness::Running);
        found.connect().await.unwrap()
    }

    pub fn owner(&self) -> u32 {
        self.owner.id()
    }

    /// Kills its owner. When this returns, the owner's end of everything is closed.
    pub fn bereave(&mut self) {
        self.owner.kill().unwrap();
        self.owner.wait().unwrap();
    }

    /// Kills its supervisor.
    pub async fn orphan(&self) {
        let _ended = rustix::process::pidfd_send_signal(&self.shim, Signal::KILL);
        end(&self.shim).await;
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let _ended = self.owner.kill();
        let _buried = self.owner.wait();
        let _ended = rustix::process::pidfd_send_signal(&self.shim, Signal::KILL);
        wait(&self.shim);
        // Whatever a test made of its record, its group is known by the one that was first.
        let own = carrel_shim_client::layout::open_directory(rustix::fs::CWD, self.directory());
        let _restored = own.and_then(|own| self.record.write(own));
        let _collected = carrel_shim::collect(&self.directory());
    }
}
