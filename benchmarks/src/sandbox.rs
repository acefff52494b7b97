//! The measured sandbox, with its owner and a client of its relay.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use carrel_agent_client::{AgentClient, sandbox_directory};
use carrel_image::{ImageRef, RootFs};
use carrel_shim_client::messages::{Create, JobRetention, SandboxLimits};
use carrel_shim_client::{OwnedSandbox, Programs};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const MEBIBYTE: u64 = 1024 * 1024;
/// The directory of id range locks on this host.
const IDS: &str = "/run/carrel/ids";

/// A temporary home for sandboxes.
pub(crate) struct BenchmarkHome {
    directory: TempDir,
    programs: Programs,
    root: RootFs,
    sandboxes: Cell<u32>,
}

/// A running sandbox and a client of it.
pub(crate) struct MeasuredSandbox {
    /// The client, through the relay.
    pub(crate) client: AgentClient,
    pub(crate) owned: OwnedSandbox,
    /// The runtime of both.
    pub(crate) runtime: Runtime,
    /// Dropped last, because it has the directory of the socket.
    _home: BenchmarkHome,
}

/// The runtime of a client or an owner: one thread, as in `carrel`.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// The programs in the directory `CARREL_LIBEXEC`.
pub(crate) fn programs() -> Result<Programs> {
    ensure!(std::env::var_os("CARREL_LIBEXEC").is_some(), "CARREL_LIBEXEC names no directory of programs; run ./bench");
    Ok(Programs::find()?)
}

// === impl BenchmarkHome ===

impl BenchmarkHome {
    pub(crate) fn new() -> Result<Self> {
        // Short, because socket paths are limited.
        let directory = tempfile::Builder::new().prefix("carrel-bench-").tempdir_in("/tmp")?;
        let root = RootFs::resolve(&ImageRef::Host)?;
        Ok(Self { directory, programs: programs()?, root, sandboxes: Cell::new(0) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The path of `carrel`.
    pub(crate) fn carrel(&self) -> PathBuf {
        self.programs.shim.with_file_name("carrel")
    }

    /// Creates the next sandbox of the image `host`, with limits of the kinds that `carrel run` sets.
    pub(crate) async fn start(&self) -> Result<OwnedSandbox> {
        self.start_with_retention(JobRetention::default()).await
    }

    /// The same, with a limit of kept job output.
    pub(crate) async fn start_with_retention(&self, keep: JobRetention) -> Result<OwnedSandbox> {
        self.sandboxes.set(self.sandboxes.get() + 1);
        let name = format!("bench-{}-{}", std::process::id(), self.sandboxes.get());
        let create = Create {
            directory: sandbox_directory(self.path(), &name)?.into(),
            incarnation: name.clone(),
            name,
            programs: self.path().join("programs").into(),
            ids: IDS.into(),
            agentd: (&self.programs.agentd).into(),
            root: (&self.root).into(),
            mounts: Vec::new(),
            project: None,
            network_of: None,
            gvisor: None,
            // Space for all files that are copied into it.
            disk: 2048 * MEBIBYTE,
            kept_disk: None,
            hostname: "carrel".to_owned(),
            limits: SandboxLimits { memory: Some(4096 * MEBIBYTE), pids: Some(4096), cpu_millis: None },
            allow_unenforced: false,
            image: "host".to_owned(),
            lasting: false,
            logs: None,
            keep,
        };
        OwnedSandbox::start(&self.programs, &create).await.context("no sandbox; see `carrel doctor`")
    }

    /// The directories that stopped sandboxes left behind.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = entries(&self.path().join("run/sandboxes"));
        let name = format!("bench-{}-", std::process::id());
        for hierarchy in entries(Path::new("/sys/fs/cgroup")) {
            let ours =
                |group: &PathBuf| group.file_name().is_some_and(|group| group.to_string_lossy().starts_with(&name));
            found.extend(entries(&hierarchy.join("carrel")).into_iter().filter(ours));
        }
        found
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

// === impl MeasuredSandbox ===

impl MeasuredSandbox {
    pub(crate) fn start() -> Result<Self> {
        Self::with_retention(JobRetention::default())
    }

    /// A sandbox with a limit of kept job output.
    pub(crate) fn with_retention(keep: JobRetention) -> Result<Self> {
        let (home, runtime) = (BenchmarkHome::new()?, runtime()?);
        let owned = runtime.block_on(home.start_with_retention(keep))?;
        let client = runtime.block_on(AgentClient::connect(owned.agent_socket()))?;
        Ok(Self { client, owned, runtime, _home: home })
    }
}

impl Drop for MeasuredSandbox {
    fn drop(&mut self) {
        self.client.close();
        // If this fails, the end of the owner stops it.
        let _stopped = self.runtime.block_on(self.owned.stop(Duration::ZERO));
    }
}
