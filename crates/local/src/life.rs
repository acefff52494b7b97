//! How sandboxes begin: made, or taken over.

use std::path::Path;
use std::sync::Arc;

use carrel_control::provider::{Place, ProviderError};
use carrel_control::spec::Spec;
use carrel_fetch::Image;
use carrel_image::RootFs;
use carrel_layers::Config;
use carrel_sandbox::KeptDisk;
use carrel_shim_client::messages::{Create, Failed, FailureCode};
use carrel_shim_client::{AdoptError, Found, Life, OwnedSandbox, OwnerError, ShimError};
use carrel_store::SandboxId;
use rustix::fs::{Mode, OFlags};
use tokio::sync::oneshot;

use crate::bury::bury;
use crate::end::{collect, remove_disk};
use crate::facts::{HOOK, PRIMARY};
use crate::live::Live;
use crate::look::is_of;
use crate::ports::Bound;
use crate::{Inner, blocking, copies, failed, ground, images, logs, plan};

/// The word for a disk whose file system is damaged.
const DISK_DAMAGED: &str = "DISK_DAMAGED";
/// How often one is looked at that ends while it is.
const TRIES: usize = 5;

impl Inner {
    /// Makes an incarnation run, unless it does. When nobody waits for it any more, or somebody ends it, it is given up.
    pub(crate) async fn start(
        &self,
        place: &Place,
        spec: &Spec,
        mut left: oneshot::Receiver<()>,
    ) -> Result<(), ProviderError> {
        self.check_home()?;
        let starting = self.starts.begin(&place.incarnation);
        let disk = self.ground.disk(place)?;
        // What the sandbox wrote cannot be replaced by a new disk.
        if !place.is_first_start() && !exists(&disk).await? {
            return Err(disk_missing(place, &disk));
        }
        // What may take its time is waited for before it is our turn: whoever ends the sandbox need not wait for that.
        let image = tokio::select! {
            image = self.image(&spec.image, spec.host_owner(), &disk) => image,
            _ = &mut left => return Err(given_up()),
            () = starting.over() => return Err(given_up()),
        };
        let _turn = self.turns.take(&ground::name(&place.sandbox)).await;
        if starting.is_over() {
            return Err(given_up());
        }
        // Nobody can read a disk that is not there yet.
        if !place.is_first_start() {
            self.end_reader(place).await?;
        }
        self.known.hold(place);
        let is_new = !exists(&disk).await?;
        let begun = self.begin(place, spec, image, left).await;
        if begun.is_err() {
            let undone = async {
                self.end_place(place, std::time::Duration::ZERO).await?;
                self.collect(place).await?;
                if is_new { remove_disk(&disk).await } else { Ok(()) }
            };
            if let Err(error) = undone.await {
                // It is found by whoever removes the sandbox.
                tracing::warn!(sandbox = %place.sandbox, %error, "something is left of a start that failed");
            }
        }
        begun
    }

    async fn begin(
        &self,
        place: &Place,
        spec: &Spec,
        image: Result<Image, ProviderError>,
        left: oneshot::Receiver<()>,
    ) -> Result<(), ProviderError> {
        let live = match self.take_over(place).await? {
            Some(live) => live,
            None => {
                self.clear(place).await?;
                // What cannot be had is found before anything is made.
                let bound = Bound::open(&spec.ports).await?;
                let live = self.make(place, spec, image?).await?;
                if !spec.ports.is_empty() {
                    self.greet(place).await;
                    self.publish(place, &live, bound).await?;
                }
                live
            }
        };
        let copied = self.ground.copied(place)?;
        if !spec.copies.is_empty() && !exists(&copied).await? {
            tokio::select! {
                put = copies::put(&live, &spec.copies, spec.host_owner()) => put?,
                _ = left => return Err(given_up()),
            }
            blocking(move || mark(&copied).map_err(failed)).await?;
        }
        self.open_ports(place, &live, &spec.ports).await
    }

    /// Whether the disk of a sandbox is there.
    pub(crate) async fn has_disk(&self, place: &Place) -> Result<bool, ProviderError> {
        self.check_home()?;
        exists(&self.ground.disk(place)?).await
    }

    /// Takes an incarnation over that runs, and says whether it does.
    pub(crate) async fn adopt(self: &Arc<Self>, place: &Place, spec: &Spec) -> Result<bool, ProviderError> {
        let _turn = self.turns.take(&ground::name(&place.sandbox)).await;
        self.known.hold(place);
        let Some(live) = self.take_over(place).await? else { return Ok(false) };
        self.open_ports_in_time(place, &live, &spec.ports).await;
        Ok(true)
    }

    /// The incarnation, if it runs.
    async fn take_over(&self, place: &Place) -> Result<Option<Arc<Live>>, ProviderError> {
        for _ in 0..TRIES {
            let Some(found) = self.look(&place.sandbox).await?.filter(|found| is_of(found, place)) else { break };
            if found.life != Life::Running {
                break;
            }
            match found.connect().await {
                Ok(client) => {
                    let live = self.known.runs(place, self.remembered(&found).await?);
                    *live.shim.lock().await = Some(client);
                    return Ok(Some(live));
                }
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.known.ended(place).await;
        Ok(None)
    }

    /// Makes a sandbox and returns when it runs.
    async fn make(&self, place: &Place, spec: &Spec, image: Image) -> Result<Arc<Live>, ProviderError> {
        let config = image.config.clone();
        let create = self.plan(place, spec, image).await?;
        let owned = self.supervised(&place.sandbox, &create).await?;
        let root = RootFs::try_from(create.root).map_err(failed)?;
        let live = self.known.runs(place, Live::new(&root, config, owned.agent_socket().to_owned()));
        self.leave(owned);
        Ok(live)
    }

    /// Leaves one that lasts: from here on it is found like any other.
    pub(crate) fn leave(&self, owned: OwnedSandbox) {
        if let Some(child) = owned.leave() {
            bury(child);
        }
        let parked = Arc::clone(&self.parked);
        drop(tokio::task::spawn_blocking(move || parked.fill()));
    }

    async fn plan(&self, place: &Place, spec: &Spec, image: Image) -> Result<Create, ProviderError> {
        let (settings, programs, ground) = (self.settings(), self.programs.clone(), self.ground.clone());
        let (images, place, spec) = (Arc::clone(&self.images), place.clone(), spec.clone());
        blocking(move || {
            images::settle(&images, &image, &ground.disk(&place)?, &ground::name(&place.sandbox))?;
            let create = plan::create(&settings, &programs, (&ground, &image), &place, &spec)?;
            // What a start before this one ran is not what this one runs.
            for own in [PRIMARY, HOOK] {
                logs::remove_beginning(&settings.logs.directory(&place.sandbox), own).map_err(failed)?;
            }
            Ok(create)
        })
        .await
    }

    /// What is kept at hand of a sandbox, by what was written down about it.
    pub(crate) async fn remembered(&self, found: &Found) -> Result<Live, ProviderError> {
        let record = found.record.as_ref().ok_or_else(|| failed("nothing is written down about the sandbox"))?;
        let root = RootFs::try_from(record.create.root.clone()).map_err(failed)?;
        let disk = record.create.kept_disk.as_ref().map(|kept| kept.directory.0.clone());
        let images = Arc::clone(&self.images);
        let config = blocking(move || disk.map_or(Ok(Config::default()), |disk| images::config(&images, &disk)));
        Ok(Live::new(&root, config.await?, record.agent_socket.0.clone()))
    }

    /// Has a supervisor make a sandbox, or what belongs to one, on a disk that is checked before if it may be damaged, and
    /// after if it turns out to be.
    pub(crate) async fn supervised(&self, sandbox: &SandboxId, create: &Create) -> Result<OwnedSandbox, ProviderError> {
        check_image(sandbox, create, false).await?;
        match self.made_by_supervisor(create).await {
            Err(error) if error.code == Some(DISK_DAMAGED) => {
                tracing::warn!(%sandbox, %error, "a disk cannot be used, and is checked");
                check_image(sandbox, create, true).await?;
                // Whoever asked knows the step that failed by its own word.
                self.made_by_supervisor(create).await.map_err(|error| ProviderError { code: None, ..error })
            }
            made => made,
        }
    }

    async fn made_by_supervisor(&self, create: &Create) -> Result<OwnedSandbox, ProviderError> {
        if let Some(supervisor) = self.parked.take() {
            match supervisor.create(create).await {
                // It may have died while it waited, or in the middle: what it left has the name.
                Err(OwnerError::Gone(_)) => {
                    let directory = create.directory.0.clone();
                    let _swept = blocking(move || carrel_shim::sweep_directory(&directory).map_err(failed)).await;
                    let _collected = collect(&create.directory.0, &create.incarnation).await;
                }
                made => return made.map_err(|error| refused(&error)),
            }
        }
        let made = match self.parked.spawn() {
            Ok(supervisor) => supervisor.create(create).await,
            Err(error) => Err(error),
        };
        made.map_err(|error| refused(&error))
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
        if let Some(repaired) = KeptDisk::check(&disk, is_damaged).map_err(failed)? {
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

fn given_up() -> ProviderError {
    failed("nobody waits for it any more")
}

/// Whether a sandbox could not be talked to because it ended just then.
pub(crate) fn has_ended(error: &AdoptError) -> bool {
    matches!(
        error,
        AdoptError::NotRunning
            | AdoptError::Replaced
            | AdoptError::Process { .. }
            | AdoptError::Shim(ShimError::Gone | ShimError::Ended(_) | ShimError::Connect { .. } | ShimError::Io(_))
    )
}

fn refused(error: &OwnerError) -> ProviderError {
    match error {
        OwnerError::Failed(Failed { code: FailureCode::DiskDamaged, message, .. }) => {
            ProviderError { code: Some(DISK_DAMAGED), message: message.clone() }
        }
        OwnerError::Failed(Failed { message, hint: Some(hint), .. }) => failed(format_args!("{message}; {hint}")),
        error => failed(error),
    }
}

pub(crate) async fn exists(path: &Path) -> Result<bool, ProviderError> {
    let path = path.to_owned();
    blocking(move || path.try_exists().map_err(|error| failed(format_args!("{}: {error}", path.display())))).await
}

/// Writes down that everything was copied in.
fn mark(path: &Path) -> Result<(), rustix::io::Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map(drop)
}
