//! Sandboxes on this machine: what the control plane asks for, done by supervisors.
//!
//! A sandbox is named by its id, and everything of one start of it on this host by its incarnation. Nothing is remembered
//! here that cannot be found again: whoever comes after a daemon that died looks at what there is, and goes on.

mod copies;
mod discovery;
mod disk_reader;
mod exec_defaults;
mod facts;
mod guard;
mod home;
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
mod skeleton;
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
use carrel_shim_client::messages::KeptDisk;
use carrel_store::{ExecId, SandboxId};

pub use self::copies::{CopyInError, HostCopy, copy_in};
use self::disk_reader::DiskReaders;
pub use self::exec_defaults::ExecDefaults;
pub use self::guard::reserved_inodes;
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

/// Ranges of ids belong to the host, whatever home a sandbox has.
const IDS: &str = "/run/carrel/ids";

/// What is the same for all sandboxes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where everything is kept.
    pub home: PathBuf,
    /// Where the output of execs is kept.
    pub logs: LogTemplate,
    /// How many bytes of output are kept of all execs of a sandbox; none is what supervisors keep by default.
    pub output_quota: Option<u64>,
    /// The memory of a sandbox that has no limit of its own, in bytes.
    pub default_memory: u64,
    /// How many processes and threads a sandbox may have.
    pub pids: u32,
    /// How many bytes of the host's own disk have to stay free: before fewer are, whoever writes is paused. 0 is none.
    pub host_free: u64,
    /// The same for inodes; none is 65,536 or a sixteenth of all, whichever is less.
    pub host_free_inodes: Option<u64>,
    /// How many bytes the disk of a sandbox may take that has no limit of its own, where the file system has project
    /// quotas. 0 is no limit.
    pub default_disk: u64,
    /// How many inodes it may take there. 0 is no limit.
    pub default_inodes: u64,
    /// How long disks are kept that the control plane does not know; 0 is for ever.
    pub orphans_kept: Duration,
    /// How many supervisors are started ahead.
    pub prestarted: usize,
    /// What is special about registries of images.
    pub registries: carrel_registry::RegistriesConfig,
}

/// Whoever makes sandboxes run on this machine. Clones are the same.
#[derive(Clone, Debug)]
pub struct Local(Arc<LocalInner>);

/// Why there can be no sandboxes here.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The home is no place for sockets.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The home cannot be used.
    #[error("{}: {source}", path.display())]
    Home {
        /// What of it.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

#[derive(Debug)]
pub(crate) struct LocalInner {
    settings: RwLock<Arc<Settings>>,
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
    /// Whom their users let continue.
    resumed: Arc<guard::ResumedByUser>,
    /// When those continue that the guard paused, as of its last look; none if it paused nobody.
    resumes_at: Mutex<Option<ResumeThreshold>>,
    /// One sweeps at a time.
    sweep_lock: tokio::sync::Mutex<()>,
}

// === impl Settings ===

impl Settings {
    /// The disk of a sandbox in a directory, with a limit of its own or without.
    fn kept_disk(&self, directory: PathBuf, limit: Option<u64>) -> KeptDisk {
        // Where there are no quotas, a disk without a limit is a directory, and the guard sees to the host's disk.
        let quota = |most: u64| (limit.is_none() && most > 0).then_some(most);
        KeptDisk {
            host_free: self.host_free,
            unlimited: limit.is_none().then_some(true),
            host_free_inodes: self.host_free_inodes,
            quota_bytes: quota(self.default_disk),
            quota_inodes: quota(self.default_inodes),
            ..KeptDisk::at(directory)
        }
    }
}

// === impl Local ===

impl Local {
    /// Makes sandboxes below a home, which is made if it is not there.
    pub fn new(settings: Settings, programs: Programs) -> Result<Self, LocalError> {
        let paths = HomePaths::new(&settings.home)?;
        let home = HomeDirectory::open(&settings.home)
            .map_err(|source| LocalError::Home { path: settings.home.clone(), source })?;
        if let Err(error) = paths::create_top_directory(&settings.logs.above()) {
            // Each sandbox says what is wrong with it.
            tracing::warn!(%error, "there is no place for the output of execs");
        }
        if let Err(error) = skeleton::sweep(&paths.skeletons(), || needed(&settings.home)) {
            tracing::warn!(%error, "what is not needed of the image `host` stays");
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
        guard::start(&inner);
        Ok(Self(inner))
    }

    /// How many bytes of the output of an exec are no longer kept; none if all are. Waits for the disk.
    pub fn log_trimmed(&self, sandbox: &SandboxId, exec: &ExecId) -> std::io::Result<Option<TrimmedOutput>> {
        self.0.settings().logs.trimmed(sandbox, exec)
    }

    /// The published ports of a sandbox that runs which are not open, and why. They are retried until they are.
    pub fn unpublished_ports(&self, place: &Place) -> Vec<UnpublishedPort> {
        self.0.running.get(place).map(|running| running.unpublished()).unwrap_or_default()
    }

    /// Fails while the home is not where it was when this was made.
    pub fn check_home(&self) -> Result<(), HomeMoved> {
        self.0.home.check()
    }

    /// Replaces the settings, for sandboxes that are started from now on. The home, the place for the output of execs and
    /// what is kept free of the disk stay as they are.
    pub fn reload(&self, settings: Settings) {
        self.0.images.set_registries(settings.registries.clone());
        let former = self.0.settings();
        let settings = Settings {
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
    /// The settings as they are now.
    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fails while the home is elsewhere: what is not found then is not gone.
    fn check_home(&self) -> Result<(), ProviderError> {
        self.home.check().map_err(failed)
    }
}

/// How many disks of sandboxes a home has.
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

/// The layers that sandboxes run on.
fn needed(home: &Path) -> std::io::Result<Vec<PathBuf>> {
    let found = carrel_shim_client::sandboxes(home).map_err(std::io::Error::other)?;
    let layers = found.into_iter().filter_map(|one| Some(one.record?.create.root.layers)).flatten();
    Ok(layers.map(|layer| layer.0).collect())
}

/// Does what waits for the system, where nobody else has to wait for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ProviderError> + Send + 'static,
) -> Result<T, ProviderError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(failed(error)))
}

/// A failure that the step has a word for.
fn failed(error: impl std::fmt::Display) -> ProviderError {
    ProviderError::new(error.to_string())
}
