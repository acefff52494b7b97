//! `carrel image save`: an image of what a sandbox has changed in its own.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use carrel_fetch::{FetchError, Images};
use carrel_layers::{Config, Digest, SandboxChanges, StoredImage};
use carrel_registry::{ImageName, Registry, RegistryCredentials};
use carrel_sandbox::{DiskError, KeptDisk};
use carrel_shim_client::messages::State;
use carrel_shim_client::{Found, Life, SandboxRecord, ShimClient};
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
use crate::jobs::session::signals::Signals;

/// What every sandbox has of its own: nothing in an image has a use for it.
const OWN: [&str; 3] = ["dev", "proc", "sys"];
/// What the provider writes down beside the disk of a sandbox that stays.
const RECORD: &str = "image.json";

/// What there is to save.
struct SaveSource {
    base: Digest,
    config: Config,
    changes: SandboxChanges,
}

/// Makes one; returns what to exit with.
pub(super) fn save(arguments: &ImageSaveArguments, json: bool) -> Result<u8, Failure> {
    let name: ImageName = arguments.name.parse().map_err(FetchError::from)?;
    let images = open_default()?;
    let registry = match arguments.push {
        // Who cannot be asked is found out before there is anything to send.
        true => Some(
            Registry::new(name.clone(), &images.registries(), &RegistryCredentials::of_user())
                .map_err(FetchError::Registry)?,
        ),
        false => None,
    };
    let progress = ImageProgress::new(&arguments.name, arguments.quiet || json);
    let stored = saved(&images, arguments, &name.to_string(), &progress)?;
    if let Some(registry) = registry {
        images.store()?.push(stored.digest, &registry, &progress).map_err(FetchError::from)?;
    }
    print_image(&stored, json)?;
    Ok(0)
}

fn saved(
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
    let Some(found) = find::existing(sandbox)?.filter(|found| found.life == Life::Running) else {
        let (_disk, source) = runtime.block_on(from_stopped(images, sandbox))?;
        return write(source);
    };
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen(false)?
    };
    let mut client = runtime.block_on(find::connect(sandbox, &found))?;
    let state = runtime.block_on(find::with_timeout(async { Ok(client.status().await?.state) }))?;
    if state == State::Paused {
        return from_running(images, sandbox, &found).and_then(write);
    }
    // Whatever comes of it, the sandbox goes on: also if this is killed.
    let guard = ResumeGuard::spawn(sandbox)?;
    runtime.block_on(async { Ok::<_, Failure>(client.pause().await?) })?;
    let stored =
        meanwhile(&runtime, &mut signals, &mut client, || from_running(images, sandbox, &found).and_then(write));
    let resumed: Result<(), Failure> = runtime.block_on(async { Ok(client.resume().await?) });
    if resumed.is_ok() {
        guard.done();
    }
    stored.and_then(|stored| resumed.map(|()| stored))
}

/// Does something in a thread of its own while a sandbox is paused. A signal ends us, and not before the sandbox goes on.
fn meanwhile<T: Send>(
    runtime: &Runtime,
    signals: &mut Signals,
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
                signal = signals.ending() => signal,
            };
            // What is half done is swept by whoever uses the store next.
            let _goes_on = client.resume().await;
            Failure::new("interrupted", "interrupted, and nothing was saved").report(false);
            std::process::exit(SessionEnding::Interrupted(signal).exit_code().into());
        });
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What one that runs has written. Its supervisor has the disk open, wherever that is.
fn from_running(images: &Images, sandbox: &str, found: &Found) -> Result<SaveSource, Failure> {
    let record = found.record.as_ref().ok_or_else(|| find::no_such_sandbox(sandbox))?;
    let base = base_of(images, record)?.ok_or_else(|| image_not_stored(sandbox, &record.image))?;
    let upper = open_upper(record).ok_or_else(|| {
        let words = format!("what the sandbox {sandbox:?} has written cannot be found");
        Failure::new("sandbox_unreadable", words).hint("it may have been made by an older release: make it anew")
    })?;
    Ok(SaveSource { base: base.digest, config: base.config, changes: changes(upper, record.id_base) })
}

/// The disk of a sandbox, among what its supervisor has open.
fn open_upper(record: &SandboxRecord) -> Option<OwnedFd> {
    record.shim_handle()?;
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", record.shim_pid)).ok()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let upper = descriptors.flatten().find_map(|entry| {
        let disk = rustix::fs::open(entry.path(), flags, Mode::empty()).ok()?;
        carrel_sandbox::upper(&disk).ok().flatten()
    });
    // What was looked at was its supervisor if that is there still.
    record.shim_handle().and(upper)
}

/// What one that stays and does not run has written, with its disk, which nobody else can use meanwhile.
async fn from_stopped(images: &Images, sandbox: &str) -> Result<(KeptDisk, SaveSource), Failure> {
    let Some((directory, base)) = find_disk(sandbox)? else {
        // Whether there is one that has no image of the store, or none at all.
        let found = find::one(sandbox).await;
        return Err(match found {
            Ok(found) => image_not_stored(sandbox, found.record.as_ref().map_or("", |record| &record.image)),
            Err(failure) if failure.code == "sandbox_not_running" => image_not_stored(sandbox, ""),
            Err(failure) => failure,
        });
    };
    let disk = KeptDisk::open(&directory).map_err(|error| match error {
        DiskError::InUse(_) => {
            Failure::new("disk_in_use", error).hint("it is about to run or to end: try again in a moment")
        }
        error => Failure::new("disk_unavailable", error),
    })?;
    let upper = disk.upper().map_err(|error| Failure::new("disk_unavailable", error))?;
    let upper = upper.ok_or_else(|| image_not_stored(sandbox, ""))?;
    let stored = images.store()?.get(base).map_err(FetchError::from)?.ok_or(FetchError::NotInStore(base))?;
    let config = stored.config;
    // It is stored with the ids inside.
    Ok((disk, SaveSource { base, config, changes: changes(upper, 0) }))
}

fn changes(upper: OwnedFd, first: u32) -> SandboxChanges {
    SandboxChanges { upper, first, without: OWN.iter().map(PathBuf::from).collect() }
}

/// The disk of a sandbox that stays, and what it lies over, as the provider has written it down.
fn find_disk(sandbox: &str) -> Result<Option<(PathBuf, Digest)>, Failure> {
    let disks = CarrelHome::find()?.path().join("disks");
    let entries = match std::fs::read_dir(&disks) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::new("home_unavailable", format!("{}: {error}", disks.display()))),
    };
    let name = find::shim_name(sandbox);
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

/// A sandbox whose image is not in the store.
fn image_not_stored(sandbox: &str, image: &str) -> Failure {
    let image = if image.is_empty() { String::new() } else { format!(", {image},") };
    let words =
        format!("the image{image} of the sandbox {sandbox:?} is not in the store, and nothing can be saved over it");
    Failure::new("image_unavailable", words)
        .hint("`carrel image import` takes a directory into the store: make the sandbox from that")
}
