//! Starts and adopts sandboxes.

use std::path::Path;
use std::sync::Arc;

use carrel_control::provider::{Place, ProviderError};
use carrel_control::spec::Spec;
use carrel_fetch::Image;
use carrel_image::RootFs;
use carrel_layers::ImageConfig;
use carrel_sandbox::PersistentDisk;
use carrel_shim_client::messages::{Create, FailureCode, ShimFailure};
use carrel_shim_client::{AdoptError, DiscoveredSandbox, Liveness, OwnedSandbox, OwnerError, ShimError};
use carrel_store::SandboxId;
use rustix::fs::{Mode, OFlags};
use tokio::sync::oneshot;

use crate::discovery::is_incarnation;
use crate::facts::{HOOK, PRIMARY};
use crate::pidfd::reap_in_background;
use crate::ports::BoundPorts;
use crate::running::RunningSandbox;
use crate::stop::{collect, remove_disk};
use crate::{LocalInner, blocking, copies, failed, images, logs, paths, plan};

/// The code for a disk whose file system is damaged.
const DISK_DAMAGED: &str = "DISK_DAMAGED";
/// How many times to retry a sandbox that stops during its adoption.
const TRIES: usize = 5;

impl LocalInner {
    /// Starts an incarnation, unless it runs. Cancelled when the caller stops waiting or the sandbox is stopped.
    pub(crate) async fn start(
        &self,
        place: &Place,
        spec: &Spec,
        mut caller_gone: oneshot::Receiver<()>,
    ) -> Result<(), ProviderError> {
        self.check_home()?;
        let starting = self.pending_starts.begin(&place.incarnation);
        let disk = self.paths.disk(place)?;
        // A new disk cannot replace the files that the sandbox wrote.
        if !place.is_first_start() && !has_files(&disk).await? {
            return Err(disk_missing(place, &disk));
        }
        // A pull may take long, so it happens before taking the lock: a stop does not wait for it.
        let image = tokio::select! {
            image = self.image(&spec.image, spec.host_owner(), &disk) => image,
            _ = &mut caller_gone => return Err(start_cancelled()),
            () = starting.cancelled() => return Err(start_cancelled()),
        };
        let _lock = self.locks.lock(&paths::name(&place.sandbox)).await;
        if starting.is_cancelled() {
            return Err(start_cancelled());
        }
        // A disk that does not exist yet has no reader.
        if !place.is_first_start() {
            self.end_reader(place).await?;
        }
        self.running.hold(place);
        let is_new = !exists(&disk).await?;
        let started = self.start_or_adopt(place, spec, image, caller_gone).await;
        if started.is_err() {
            let rollback = async {
                self.stop_incarnation(place, std::time::Duration::ZERO).await?;
                self.collect(place).await?;
                if is_new { remove_disk(&disk).await } else { Ok(()) }
            };
            if let Err(error) = rollback.await {
                // The removal of the sandbox cleans it up.
                tracing::warn!(sandbox = %place.sandbox, %error, "failed to roll back a failed start");
            }
        }
        started
    }

    async fn start_or_adopt(
        &self,
        place: &Place,
        spec: &Spec,
        image: Result<Image, ProviderError>,
        caller_gone: oneshot::Receiver<()>,
    ) -> Result<(), ProviderError> {
        let running = match self.adopt_running(place).await? {
            Some(running) => running,
            None => {
                if let Some(disk) = self.orphan_of_that_name(place).await? {
                    return Err(failed(format_args!(
                        "the orphan {disk} runs under that name: adopt it, or remove it with `carrel store remove {disk}`"
                    )));
                }
                self.clear(place).await?;
                // Ports fail before anything is created.
                let bound = BoundPorts::open(&spec.ports).await?;
                let running = self.create_sandbox(place, spec, image?).await?;
                if !spec.ports.is_empty() {
                    self.connect_ahead(place).await;
                    self.publish(place, &running, bound).await?;
                }
                running
            }
        };
        let copied = self.paths.copied(place)?;
        if !spec.copies.is_empty() && !exists(&copied).await? {
            tokio::select! {
                put = copies::copy_all(&running, &spec.copies, spec.host_owner()) => put?,
                _ = caller_gone => return Err(start_cancelled()),
            }
            blocking(move || create_marker(&copied).map_err(failed)).await?;
        }
        self.open_ports(place, &running, &spec.ports).await
    }

    /// Whether the disk of a sandbox exists.
    pub(crate) async fn has_disk(&self, place: &Place) -> Result<bool, ProviderError> {
        self.check_home()?;
        has_files(&self.paths.disk(place)?).await
    }

    /// Adopts a running incarnation; returns whether it runs.
    pub(crate) async fn adopt(self: &Arc<Self>, place: &Place, spec: &Spec) -> Result<bool, ProviderError> {
        let _lock = self.locks.lock(&paths::name(&place.sandbox)).await;
        self.running.hold(place);
        let Some(running) = self.adopt_running(place).await? else { return Ok(false) };
        self.open_ports_with_retry(place, &running, &spec.ports).await;
        Ok(true)
    }

    /// The incarnation, if it is running.
    async fn adopt_running(&self, place: &Place) -> Result<Option<Arc<RunningSandbox>>, ProviderError> {
        for _ in 0..TRIES {
            let Some(found) = self.find(&place.sandbox).await?.filter(|found| is_incarnation(found, place)) else {
                break;
            };
            if found.life != Liveness::Running {
                break;
            }
            match found.connect().await {
                Ok(client) => {
                    let running = self.running.insert(place, self.load_running(&found).await?);
                    *running.shim.lock().await = Some(client);
                    return Ok(Some(running));
                }
                Err(error) if is_stopped_error(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.running.remove(place).await;
        Ok(None)
    }

    /// Creates a sandbox, and returns when it runs.
    async fn create_sandbox(
        &self,
        place: &Place,
        spec: &Spec,
        image: Image,
    ) -> Result<Arc<RunningSandbox>, ProviderError> {
        let config = image.config.clone();
        let create = self.plan(place, spec, image).await?;
        let owned = self.create_with_shim(&place.sandbox, &create).await?;
        let root = RootFs::try_from(create.root).map_err(failed)?;
        let running = self.running.insert(place, RunningSandbox::new(&root, config, owned.agent_socket().to_owned()));
        self.detach(owned);
        Ok(running)
    }

    /// Detaches from a persistent sandbox: it is rediscovered like any other.
    pub(crate) fn detach(&self, owned: OwnedSandbox) {
        if let Some(child) = owned.detach() {
            reap_in_background(child);
        }
        let prestarted = Arc::clone(&self.prestarted);
        drop(tokio::task::spawn_blocking(move || prestarted.fill()));
    }

    async fn plan(&self, place: &Place, spec: &Spec, image: Image) -> Result<Create, ProviderError> {
        let (settings, programs, paths) = (self.settings(), self.programs.clone(), self.paths.clone());
        let (images, place, spec) = (Arc::clone(&self.images), place.clone(), spec.clone());
        blocking(move || {
            images::record(&images, &image, &paths.disk(&place)?, &paths::name(&place.sandbox))?;
            let create = plan::create(&settings, &programs, (&paths, &image), &place, &spec)?;
            // Output of the command and hooks of an earlier incarnation is removed.
            for own in [PRIMARY, HOOK] {
                logs::remove_with_prefix(&settings.logs.directory(&place.sandbox), own).map_err(failed)?;
            }
            Ok(create)
        })
        .await
    }

    /// Loads a running sandbox from its record.
    pub(crate) async fn load_running(&self, found: &DiscoveredSandbox) -> Result<RunningSandbox, ProviderError> {
        let record = found.record.as_ref().ok_or_else(|| failed("the sandbox has no record"))?;
        let root = RootFs::try_from(record.create.root.clone()).map_err(failed)?;
        let disk = record.create.kept_disk.as_ref().map(|kept| kept.directory.0.clone());
        let images = Arc::clone(&self.images);
        let config = blocking(move || disk.map_or(Ok(ImageConfig::default()), |disk| images::config(&images, &disk)));
        Ok(RunningSandbox::new(&root, config.await?, record.agent_socket.0.clone()))
    }

    /// Has a shim create a sandbox, or a service of one, on a disk that is checked first if it may be damaged, and
    /// afterwards if it turns out to be.
    pub(crate) async fn create_with_shim(
        &self,
        sandbox: &SandboxId,
        create: &Create,
    ) -> Result<OwnedSandbox, ProviderError> {
        check_image(sandbox, create, false).await?;
        match self.try_create_with_shim(create).await {
            Err(error) if error.code == Some(DISK_DAMAGED) => {
                tracing::warn!(%sandbox, %error, "disk is damaged; checking it");
                check_image(sandbox, create, true).await?;
                // The caller has a code of its own for the step that failed.
                self.try_create_with_shim(create).await.map_err(|error| ProviderError { code: None, ..error })
            }
            result => result,
        }
    }

    async fn try_create_with_shim(&self, create: &Create) -> Result<OwnedSandbox, ProviderError> {
        if let Some(supervisor) = self.prestarted.take() {
            match supervisor.create(create).await {
                // It may have died while it waited or halfway: its leftovers have the name.
                Err(OwnerError::Gone(_)) => {
                    let directory = create.directory.0.clone();
                    let _swept = blocking(move || carrel_shim::sweep_directory(&directory).map_err(failed)).await;
                    let _collected = collect(&create.directory.0, &create.incarnation).await;
                }
                made => return made.map_err(|error| shim_error(&error)),
            }
        }
        let made = match self.prestarted.spawn() {
            Ok(supervisor) => supervisor.create(create).await,
            Err(error) => Err(error),
        };
        made.map_err(|error| shim_error(&error))
    }
}

/// Repairs the file system of a disk that is an image.
async fn check_image(sandbox: &SandboxId, create: &Create, is_damaged: bool) -> Result<(), ProviderError> {
    let Some(disk) = create.kept_disk.as_ref().map(|kept| kept.directory.0.clone()) else { return Ok(()) };
    let sandbox = sandbox.clone();
    blocking(move || {
        if !disk.exists() {
            return Ok(());
        }
        if let Some(repaired) = PersistentDisk::check(&disk, is_damaged).map_err(failed)? {
            let (disk, report) = (disk.display(), repaired.report);
            tracing::warn!(%sandbox, %disk, report, "the file system of a disk was repaired");
        }
        Ok(())
    })
    .await
}

pub(crate) fn disk_missing(place: &Place, disk: &Path) -> ProviderError {
    let (disk, id) = (disk.display(), place.sandbox.local());
    failed(format_args!("the disk of the sandbox is missing: bring back {disk}, then run `carrel resume {id}`"))
}

fn start_cancelled() -> ProviderError {
    failed("the start was cancelled")
}

/// Whether connecting failed because the sandbox just stopped.
pub(crate) fn is_stopped_error(error: &AdoptError) -> bool {
    matches!(
        error,
        AdoptError::NotRunning
            | AdoptError::Replaced
            | AdoptError::Process { .. }
            | AdoptError::Shim(ShimError::Gone | ShimError::Ended(_) | ShimError::Connect { .. } | ShimError::Io(_))
    )
}

fn shim_error(error: &OwnerError) -> ProviderError {
    match error {
        OwnerError::Failed(ShimFailure { code: FailureCode::DiskDamaged, message, .. }) => {
            ProviderError { code: Some(DISK_DAMAGED), message: message.clone() }
        }
        OwnerError::Failed(ShimFailure { message, hint: Some(hint), .. }) => failed(format_args!("{message}; {hint}")),
        error => failed(error),
    }
}

pub(crate) async fn exists(path: &Path) -> Result<bool, ProviderError> {
    let path = path.to_owned();
    blocking(move || path.try_exists().map_err(|error| failed(format_args!("{}: {error}", path.display())))).await
}

/// Whether a disk is there: its directory alone is none.
pub(crate) async fn has_files(disk: &Path) -> Result<bool, ProviderError> {
    let disk = disk.to_owned();
    let there =
        move || PersistentDisk::exists(&disk).map_err(|error| failed(format_args!("{}: {error}", disk.display())));
    blocking(there).await
}

/// Creates the marker that all copies were made.
fn create_marker(path: &Path) -> Result<(), rustix::io::Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map(drop)
}
