//! Runs sandboxes on this host: implements the control plane's provider with one shim per sandbox.
//!
//! A sandbox is named by its id, and each start of it on this host by its incarnation. This crate keeps no state that it
//! cannot rediscover: after a daemon died, the next one looks at what exists, and continues.

mod copies;
mod discovery;
mod disk_guard;
mod disk_reader;
mod exec_defaults;
mod facts;
mod home;
mod host_layer;
mod images;
mod jobs;
mod log_files;
mod logs;
mod manifests;
mod orphans;
mod paths;
mod pending_starts;
mod pidfd;
mod plan;
mod ports;
mod prestarted;
mod provider;
mod pulls;
mod reap;
mod refresh;
mod running;
mod sandbox_locks;
mod services;
mod start;
mod stop;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use carrel_agent_client::PathError;
use carrel_control::provider::{Place, ProviderError};
use carrel_fetch::Images;
use carrel_sandbox::ResumeThreshold;
use carrel_shim_client::Programs;
pub use carrel_shim_client::TrimmedOutput;
use carrel_shim_client::messages::PersistentDisk;
use carrel_store::{ExecId, SandboxId};

pub use self::copies::{CopyInError, HostCopy, copy_in};
pub use self::disk_guard::reserved_inodes;
use self::disk_reader::DiskReaders;
pub use self::exec_defaults::ExecDefaults;
use self::home::HomeDirectory;
pub use self::home::HomeMoved;
pub use self::logs::{LogTemplate, LogTemplateError};
use self::paths::HomePaths;
use self::pending_starts::PendingStarts;
pub use self::ports::UnpublishedPort;
use self::prestarted::PrestartedShims;
use self::pulls::Pulls;
pub use self::refresh::Refresher;
use self::running::RunningSandboxes;
use self::sandbox_locks::SandboxLocks;
use self::services::SupervisedServices;

/// Settings that all sandboxes share.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// The home directory.
    pub home: PathBuf,
    /// Where the output of execs is stored.
    pub logs: LogTemplate,
    /// The limit of the stored output of all execs of a sandbox, in bytes; none for the default of the shim.
    pub output_quota: Option<u64>,
    /// The memory limit of a sandbox that sets none, in bytes.
    pub default_memory: u64,
    /// The limit of processes and threads of a sandbox.
    pub pids: u32,
    /// How many bytes of the host's disk stay free: below that, the sandboxes that write are paused. 0 disables the reserve.
    pub host_free: u64,
    /// The same for inodes; none for the lesser of 65,536 and a sixteenth of all.
    pub host_free_inodes: Option<u64>,
    /// The disk limit of a sandbox that sets none, in bytes, where the file system has project quotas. 0 is no limit.
    pub default_disk: u64,
    /// The same limit for inodes. 0 is no limit.
    pub default_inodes: u64,
    /// How long orphaned disks are kept; 0 keeps them forever.
    pub orphans_kept: Duration,
    /// How many shims are started ahead of their use.
    pub prestarted: usize,
    /// The configuration of image registries.
    pub registries: carrel_registry::RegistriesConfig,
}

/// The provider of sandboxes on this host. Clones share their state.
#[derive(Clone, Debug)]
pub struct LocalProvider(Arc<LocalInner>);

/// Why the provider cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The path of the home is too long for sockets.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The home cannot be used.
    #[error("{}: {source}", path.display())]
    Home {
        /// The path that failed.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

#[derive(Debug)]
pub(crate) struct LocalInner {
    settings: RwLock<Arc<LocalSettings>>,
    programs: Programs,
    paths: HomePaths,
    home: HomeDirectory,
    images: Arc<Images>,
    pulls: Pulls,
    prestarted: Arc<PrestartedShims>,
    running: RunningSandboxes,
    pending_starts: PendingStarts,
    locks: SandboxLocks,
    supervised: SupervisedServices,
    readers: DiskReaders,
    /// The sandboxes that their users resumed.
    resumed: Arc<disk_guard::ResumedByUser>,
    /// Free space at which paused sandboxes resume, as of the last check.
    resumes_at: Mutex<Option<ResumeThreshold>>,
    /// Allows one sweep at a time.
    sweep_lock: tokio::sync::Mutex<()>,
}

// === impl LocalSettings ===

impl LocalSettings {
    /// The disk of a sandbox in a directory, with or without a limit of its own.
    fn kept_disk(&self, directory: PathBuf, limit: Option<u64>) -> PersistentDisk {
        // Without project quotas, a disk without a limit is a plain directory, and the guard protects the host's disk.
        let quota = |most: u64| (limit.is_none() && most > 0).then_some(most);
        PersistentDisk {
            host_free: self.host_free,
            unlimited: limit.is_none().then_some(true),
            host_free_inodes: self.host_free_inodes,
            quota_bytes: quota(self.default_disk),
            quota_inodes: quota(self.default_inodes),
            ..PersistentDisk::at(directory)
        }
    }
}

// === impl LocalProvider ===

impl LocalProvider {
    /// Creates a provider for a home, which is created if it does not exist.
    pub fn new(settings: LocalSettings, programs: Programs) -> Result<Self, LocalError> {
        let paths = HomePaths::new(&settings.home)?;
        let home = HomeDirectory::open(&settings.home)
            .map_err(|source| LocalError::Home { path: settings.home.clone(), source })?;
        if let Err(error) = paths::create_top_directory(&settings.logs.parent_directory()) {
            // Starts of sandboxes report the error.
            tracing::warn!(%error, "failed to create the directory for exec output");
        }
        if let Err(error) = host_layer::sweep(&paths.skeletons(), || needed(&settings.home)) {
            tracing::warn!(%error, "failed to remove unused layers of the image `host`");
        }
        let images = Arc::new(Images::new(&settings.home, &programs.shim, settings.registries.clone()));
        let prestarted = Arc::new(PrestartedShims::new(programs.clone(), settings.prestarted));
        prestarted.fill();
        let inner = Arc::new(LocalInner {
            settings: RwLock::new(Arc::new(settings)),
            programs,
            paths,
            home,
            images,
            pulls: Pulls::default(),
            prestarted,
            running: RunningSandboxes::default(),
            pending_starts: PendingStarts::default(),
            locks: SandboxLocks::default(),
            supervised: SupervisedServices::default(),
            readers: DiskReaders::default(),
            resumed: Arc::default(),
            resumes_at: Mutex::default(),
            sweep_lock: tokio::sync::Mutex::default(),
        });
        disk_guard::start(&inner);
        Ok(Self(inner))
    }

    /// How many bytes of the output of an exec were trimmed; none if it is complete. Blocks on the disk.
    pub fn log_trimmed(&self, sandbox: &SandboxId, exec: &ExecId) -> std::io::Result<Option<TrimmedOutput>> {
        self.0.settings().logs.trimmed(sandbox, exec)
    }

    /// The published ports of a running sandbox that are not open, with the reason. They are retried.
    pub fn unpublished_ports(&self, place: &Place) -> Vec<UnpublishedPort> {
        self.0.running.get(place).map(|running| running.unpublished()).unwrap_or_default()
    }

    /// Fails while the home is not at its path.
    pub fn check_home(&self) -> Result<(), HomeMoved> {
        self.0.home.check()
    }

    /// Replaces the settings for future starts. The home, the directory of exec output and the reserve of the disk do not
    /// change.
    pub fn reload(&self, settings: LocalSettings) {
        self.0.images.set_registries(settings.registries.clone());
        let former = self.0.settings();
        let settings = LocalSettings {
            home: former.home.clone(),
            logs: former.logs.clone(),
            host_free: former.host_free,
            host_free_inodes: former.host_free_inodes,
            prestarted: former.prestarted,
            ..settings
        };
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}

// === impl LocalInner ===

impl LocalInner {
    fn settings(&self) -> Arc<LocalSettings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fails while the home is elsewhere: nothing may then be taken for removed.
    fn check_home(&self) -> Result<(), ProviderError> {
        self.home.check().map_err(failed)
    }
}

/// How many sandbox disks a home has.
pub fn disks(home: &Path) -> std::io::Result<usize> {
    match std::fs::read_dir(HomePaths::disks_in(home)) {
        Ok(mut entries) => entries.try_fold(0, |count, entry| {
            let is_disk = entry?.file_name().to_str().is_some_and(paths::is_disk_name);
            Ok(count + usize::from(is_disk))
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// The image layers that running sandboxes use.
fn needed(home: &Path) -> std::io::Result<Vec<PathBuf>> {
    let found = carrel_shim_client::sandboxes(home).map_err(std::io::Error::other)?;
    let layers = found.into_iter().filter_map(|one| Some(one.record?.create.root.layers)).flatten();
    Ok(layers.map(|layer| layer.0).collect())
}

/// Runs blocking work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ProviderError> + Send + 'static,
) -> Result<T, ProviderError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(failed(error)))
}

/// Converts any error to a provider error.
fn failed(error: impl std::fmt::Display) -> ProviderError {
    ProviderError::new(error.to_string())
}
