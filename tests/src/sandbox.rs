//! A sandbox with its shim, started by the test as its owner.

use std::path::{Path, PathBuf};

use carrel_agent_client::{AgentClient, ConnectOptions, sandbox_directory};
use carrel_image::RootFs;
use carrel_protocol::Generation;
use carrel_shim_client::messages::{Create, SandboxLimits};
use carrel_shim_client::{OwnedSandbox, OwnerError, Programs};
use tempfile::TempDir;

use crate::agentd::agentd_path;

/// A sandbox of the image `host` in a home of its own. Removed when dropped.
pub struct TestSandbox {
    pub owned: OwnedSandbox,
    pub home: TempDir,
    pub create: Create,
}

/// The programs beside the agent under test.
pub fn programs() -> Programs {
    let directory = agentd_path().parent().unwrap().to_owned();
    Programs::within(&directory).expect("build carrel-shim first")
}

/// A request for a sandbox with default settings.
pub fn create(home: &Path, name: &str) -> Create {
    let incarnation = format!("test-{:016x}", random());
    Create {
        name: name.to_owned(),
        directory: sandbox_directory(home, name).unwrap().into(),
        programs: home.join("programs").into(),
        ids: "/run/carrel/ids".into(),
        agentd: programs().agentd.into(),
        root: (&RootFs::resolve(&"host".parse().unwrap()).unwrap()).into(),
        mounts: Vec::new(),
        project: None,
        disk: 64 << 20,
        kept_disk: None,
        hostname: "carrel".to_owned(),
        limits: SandboxLimits { memory: Some(256 << 20), pids: Some(512), cpu_millis: None },
        allow_unenforced: false,
        image: "host".to_owned(),
        lasting: false,
        logs: None,
        keep: carrel_shim_client::messages::JobRetention::default(),
        network_of: None,
        gvisor: None,
        incarnation,
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// A home whose path is short enough for sockets.
pub fn home() -> TempDir {
    tempfile::Builder::new().prefix("carrel").tempdir_in("/tmp").unwrap()
}

// === impl TestSandbox ===

impl TestSandbox {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// A sandbox with a change to the default settings.
    pub async fn with(change: impl FnOnce(&mut Create)) -> Self {
        Self::try_with(change).await.unwrap()
    }

    pub async fn try_with(change: impl FnOnce(&mut Create)) -> Result<Self, OwnerError> {
        let home = home();
        let mut create = create(home.path(), "test");
        change(&mut create);
        let owned = OwnedSandbox::start(&programs(), &create).await?;
        Ok(Self { owned, home, create })
    }

    pub fn socket(&self) -> PathBuf {
        self.owned.agent_socket().to_owned()
    }

    pub async fn client(&self) -> AgentClient {
        AgentClient::connect(self.socket()).await.unwrap()
    }

    /// A client that supports no generation above the given one.
    pub async fn client_of(&self, max_generation: Generation) -> AgentClient {
        let options = ConnectOptions { max_generation, ..ConnectOptions::default() };
        AgentClient::connect_with(self.socket(), options).await.unwrap()
    }

    pub async fn shell(&self, script: &str) -> String {
        let output = self.client().await.run(crate::shell(script), "").await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.code, 0, "{script}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// What exists of it on this host.
    pub fn traces(&self) -> Vec<String> {
        traces(&self.create)
    }
}

/// What exists of a sandbox on this host: directories, cgroups, mounts.
pub fn traces(create: &Create) -> Vec<String> {
    let mut found = Vec::new();
    if create.directory.0.exists() {
        found.push(create.directory.0.display().to_string());
    }
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    let groups = hierarchies.map(|hierarchy| hierarchy.join("carrel").join(&create.incarnation));
    found.extend(groups.filter(|group| group.exists()).map(|group| group.display().to_string()));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let home = create.programs.0.parent().unwrap().display().to_string();
    found.extend(mounts.lines().filter(|line| line.contains(&home)).map(str::to_owned));
    found
}
