//! `carrel image save`: saves the changes of a sandbox as an image.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use carrel_fetch::{FetchError, Images};
use carrel_layers::{Digest, ImageConfig, SandboxChanges, StoredImage};
use carrel_registry::{ImageName, Registry, RegistryCredentials};
use carrel_sandbox::{DiskError, PersistentDisk};
use carrel_shim_client::messages::ShimState;
use carrel_shim_client::{DiscoveredSandbox, Liveness, SandboxRecord, ShimClient};
use rustix::fs::{Mode, OFlags};
use tokio::runtime::Runtime;

use super::progress::ImageProgress;
use super::resume_guard::ResumeGuard;
use super::{base_of, open_default, override_config, print_image};
use crate::arguments::ImageSaveArguments;
use crate::failure::Failure;
use crate::find;
use crate::home::CarrelHome;
use crate::jobs::session::ending::SessionEnding;
use crate::jobs::session::signals::HandledSignals;

/// Directories that every sandbox mounts, and that are not part of an image.
const EXCLUDED: [&str; 3] = ["dev", "proc", "sys"];
/// The file beside the disk of a persistent sandbox in which the provider records its image.
const RECORD: &str = "image.json";

/// What is saved: changes, and the image that they apply to.
struct SaveSource {
    base: Digest,
    config: ImageConfig,
    changes: SandboxChanges,
}

/// Saves an image; returns the exit code.
pub(super) fn save(arguments: &ImageSaveArguments, json: bool) -> Result<u8, Failure> {
    let name: ImageName = arguments.name.parse().map_err(FetchError::from)?;
    let images = open_default()?;
    let registry = match arguments.push {
        // A bad registry fails before anything is saved.
        true => Some(
            Registry::new(name.clone(), &images.registries(), &RegistryCredentials::of_user())
                .map_err(FetchError::Registry)?,
        ),
        false => None,
    };
    let progress = ImageProgress::new(&arguments.name, arguments.quiet || json);
    let stored = save_sandbox(&images, arguments, &name.to_string(), &progress)?;
    if let Some(registry) = registry {
        images.store()?.push(stored.digest, &registry, &progress).map_err(FetchError::from)?;
    }
    print_image(&stored, json)?;
    Ok(0)
}

fn save_sandbox(
    images: &Images,
    arguments: &ImageSaveArguments,
    name: &str,
    progress: &ImageProgress,
) -> Result<StoredImage, Failure> {
    let sandbox = &arguments.sandbox;
    let runtime = find::runtime()?;
    let write = |source: SaveSource| -> Result<StoredImage, Failure> {
        let config = override_config(source.config, &arguments.config)?;
        let store = images.store()?;
        Ok(store.save(Some(source.base), &source.changes, &config, name, progress).map_err(FetchError::from)?)
    };
    let Some(found) = find::existing(sandbox)?.filter(|found| found.life == Liveness::Running) else {
        let (_disk, source) = runtime.block_on(from_stopped(images, sandbox))?;
        return write(source);
    };
    let mut signals = {
        let _inside = runtime.enter();
        HandledSignals::listen(false)?
    };
    let mut client = runtime.block_on(find::connect(sandbox, &found))?;
    let state = runtime.block_on(find::with_timeout(async { Ok(client.status().await?.state) }))?;
    if state == ShimState::Paused {
        return from_running(images, sandbox, &found).and_then(write);
    }
    // The sandbox is resumed in any case, even if this process is killed.
    let guard = ResumeGuard::spawn(sandbox)?;
    runtime.block_on(async { Ok::<_, Failure>(client.pause().await?) })?;
    let stored = run_interruptible(&runtime, &mut signals, &mut client, || {
        from_running(images, sandbox, &found).and_then(write)
    });
    let resumed: Result<(), Failure> = runtime.block_on(async { Ok(client.resume().await?) });
    if resumed.is_ok() {
        guard.done();
    }
    stored.and_then(|stored| resumed.map(|()| stored))
}

/// Runs work in a thread while a sandbox is paused. A signal resumes the sandbox and exits.
fn run_interruptible<T: Send>(
    runtime: &Runtime,
    signals: &mut HandledSignals,
    client: &mut ShimClient,
    work: impl FnOnce() -> T + Send,
) -> T {
    let (working, over) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        let work = scope.spawn(move || {
            let _until_here = working;
            work()
        });
        runtime.block_on(async {
            let signal = tokio::select! {
                _ = over => return,
                signal = signals.next_terminating() => signal,
            };
            // The next user of the store removes what is incomplete.
            let _resumed = client.resume().await;
            Failure::new("interrupted", "interrupted, and nothing was saved").report(false);
            std::process::exit(SessionEnding::Interrupted(signal).exit_code().into());
        });
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The changes of a running sandbox, whose disk its shim has open.
fn from_running(images: &Images, sandbox: &str, found: &DiscoveredSandbox) -> Result<SaveSource, Failure> {
    let record = found.record.as_ref().ok_or_else(|| find::no_such_sandbox(sandbox))?;
    let base = base_of(images, record)?.ok_or_else(|| image_not_stored(sandbox, &record.image))?;
    let upper = open_upper(record).ok_or_else(|| {
        let message = format!("the disk of the sandbox {sandbox:?} was not found");
        Failure::new("sandbox_unreadable", message).hint("an older release may have created it: recreate the sandbox")
    })?;
    Ok(SaveSource { base: base.digest, config: base.config, changes: changes(upper, record.id_base) })
}

/// The disk of a sandbox, among the open files of its shim.
fn open_upper(record: &SandboxRecord) -> Option<OwnedFd> {
    record.shim_handle()?;
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", record.shim_pid)).ok()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let upper = descriptors.flatten().find_map(|entry| {
        let disk = rustix::fs::open(entry.path(), flags, Mode::empty()).ok()?;
        carrel_sandbox::upper(&disk).ok().flatten()
    });
    // The pid was not reused if the shim still runs.
    record.shim_handle().and(upper)
}

/// The changes of a stopped persistent sandbox, with its locked disk.
async fn from_stopped(images: &Images, sandbox: &str) -> Result<(PersistentDisk, SaveSource), Failure> {
    let Some((directory, base)) = find_disk(sandbox)? else {
        // The sandbox has no stored image, or does not exist.
        let found = find::one(sandbox).await;
        return Err(match found {
            Ok(found) => image_not_stored(sandbox, found.record.as_ref().map_or("", |record| &record.image)),
            Err(failure) if failure.code == "sandbox_not_running" => image_not_stored(sandbox, ""),
            Err(failure) => failure,
        });
    };
    // What was not closed in order is checked before it is read.
    let opened = PersistentDisk::check(&directory, false).and_then(|_repaired| PersistentDisk::open(&directory));
    let disk = opened.map_err(|error| match error {
        DiskError::InUse(_) => {
            Failure::new("disk_in_use", error).hint("the sandbox is starting or stopping: retry in a moment")
        }
        error => Failure::new("disk_unavailable", error),
    })?;
    let upper = disk.upper().map_err(|error| Failure::new("disk_unavailable", error))?;
    let upper = upper.ok_or_else(|| image_not_stored(sandbox, ""))?;
    let stored = images.store()?.get(base).map_err(FetchError::from)?.ok_or(FetchError::NotInStore(base))?;
    let config = stored.config;
    // The disk stores ids as seen inside.
    Ok((disk, SaveSource { base, config, changes: changes(upper, 0) }))
}

fn changes(upper: OwnedFd, first: u32) -> SandboxChanges {
    SandboxChanges { upper, first, without: EXCLUDED.iter().map(PathBuf::from).collect() }
}

/// The disk of a persistent sandbox and the digest of its image, from the provider's record.
fn find_disk(sandbox: &str) -> Result<Option<(PathBuf, Digest)>, Failure> {
    let disks = CarrelHome::find()?.path().join(carrel_layout::DISKS);
    let entries = match std::fs::read_dir(&disks) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::new("home_unavailable", format!("{}: {error}", disks.display()))),
    };
    let name = carrel_layout::sandbox_name(sandbox);
    Ok(entries.flatten().find_map(|entry| {
        let record = read(&entry.path().join(RECORD))?;
        (record.get("sandbox")?.as_str()? == name).then_some(())?;
        let digest = record.get("digest")?.as_str()?.parse().ok()?;
        Some((entry.path(), digest))
    }))
}

fn read(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// The failure for a sandbox whose image is not in the store.
fn image_not_stored(sandbox: &str, image: &str) -> Failure {
    let image = if image.is_empty() { String::new() } else { format!(", {image},") };
    let message =
        format!("the image{image} of the sandbox {sandbox:?} is not in the store, so its changes cannot be saved");
    Failure::new("image_unavailable", message)
        .hint("`carrel image import` imports a directory: create the sandbox from that image")
}
