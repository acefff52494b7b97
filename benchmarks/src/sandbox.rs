//! The sandbox under measurement, as whoever owns it has it, and a client of its relay.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use carrel_agent_client::{AgentClient, sandbox_directory};
use carrel_image::{ImageRef, RootFs};
use carrel_shim_client::messages::{Create, Keep, Limits};
use carrel_shim_client::{OwnedSandbox, Programs};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const MEBIBYTE: u64 = 1024 * 1024;
/// Where ranges of ids are locked on this host.
const IDS: &str = "/run/carrel/ids";

/// Where sandboxes are made: a home of their own, gone with it.
pub(crate) struct Home {
    directory: TempDir,
    programs: Programs,
    root: RootFs,
    made: Cell<u32>,
}

/// A running sandbox and a client of it.
pub(crate) struct Sandbox {
    /// The client, through the relay.
    pub(crate) client: AgentClient,
    /// The sandbox.
    pub(crate) owned: OwnedSandbox,
    /// What drives both.
    pub(crate) runtime: Runtime,
    /// Last, because it holds the directory of the socket.
    _home: Home,
}

/// What drives a client or an owner: one thread, as `carrel` has.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// The programs that `CARREL_LIBEXEC` names a directory of.
pub(crate) fn programs() -> Result<Programs> {
    ensure!(std::env::var_os("CARREL_LIBEXEC").is_some(), "CARREL_LIBEXEC names no directory of programs; run ./bench");
    Ok(Programs::find()?)
}

// === impl Home ===

impl Home {
    pub(crate) fn new() -> Result<Self> {
        // Short, because the path of a socket is.
        let directory = tempfile::Builder::new().prefix("carrel-bench-").tempdir_in("/tmp")?;
        let root = RootFs::resolve(&ImageRef::Host)?;
        Ok(Self { directory, programs: programs()?, root, made: Cell::new(0) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Where `carrel` is.
    pub(crate) fn carrel(&self) -> PathBuf {
        self.programs.shim.with_file_name("carrel")
    }

    /// Makes the next sandbox of the image `host`, with limits of the kinds that `carrel run` sets.
    pub(crate) async fn start(&self) -> Result<OwnedSandbox> {
        self.start_keeping(Keep::default()).await
    }

    /// The same, with so much kept of its jobs.
    pub(crate) async fn start_keeping(&self, keep: Keep) -> Result<OwnedSandbox> {
        self.made.set(self.made.get() + 1);
        let name = format!("bench-{}-{}", std::process::id(), self.made.get());
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
            // Room for all that is moved into it.
            disk: 2048 * MEBIBYTE,
            kept_disk: None,
            hostname: "carrel".to_owned(),
            limits: Limits { memory: Some(4096 * MEBIBYTE), pids: Some(4096), cpu_millis: None },
            allow_unenforced: false,
            image: "host".to_owned(),
            lasting: false,
            logs: None,
            keep,
        };
        OwnedSandbox::start(&self.programs, &create).await.context("no sandbox; see `carrel doctor`")
    }

    /// What is left of sandboxes that were stopped.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
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

// === impl Sandbox ===

impl Sandbox {
    pub(crate) fn start() -> Result<Self> {
        Self::keeping(Keep::default())
    }

    /// One that keeps so much of its jobs.
    pub(crate) fn keeping(keep: Keep) -> Result<Self> {
        let (home, runtime) = (Home::new()?, runtime()?);
        let owned = runtime.block_on(home.start_keeping(keep))?;
        let client = runtime.block_on(AgentClient::connect(owned.agent_socket()))?;
        Ok(Self { client, owned, runtime, _home: home })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.client.close();
        // If this fails, its end follows from the owner's.
        let _stopped = self.runtime.block_on(self.owned.stop(Duration::ZERO));
    }
}
