//! `carrel image` and `carrel prune`.

mod detect;
mod disk_usage;
mod list;
pub(crate) mod progress;
mod prune_logs;
mod resume_guard;
mod save;
mod shell_words;

use std::path::PathBuf;

use carrel_daemon::Config;
use carrel_fetch::{FetchError, Images, PullPolicy};
use carrel_image::ImageRef;
use carrel_layers::{ImageStoreError, SandboxChanges, StoredImage};
use carrel_registry::ImageName;
use carrel_shim_client::{Programs, SandboxRecord};
use carrel_units::ByteSize;

pub(crate) use self::detect::check_root;
pub(crate) use self::disk_usage::disk_free;
use self::progress::ImageProgress;
pub(crate) use self::shell_words::split_words;
use crate::arguments::{
    ImageArguments, ImageCommand, ImageConfigArguments, ImageImportArguments, ImagePullArguments, ImageRemoveArguments,
    PruneArguments,
};
use crate::failure::{Failure, Failures};
use crate::home::CarrelHome;

/// The exit code of a failure.
const FAILED: u8 = 1;

/// Executes a subcommand; returns the exit code.
pub(crate) fn image(arguments: &ImageArguments, json: bool) -> Result<u8, Failure> {
    let done = match &arguments.command {
        ImageCommand::Ls(list) => list::list(list, json),
        ImageCommand::Pull(pull) => self::pull(pull, json),
        ImageCommand::Rm(remove) => self::remove(remove, json),
        ImageCommand::Import(import) => self::import(import, json),
        ImageCommand::Inspect(inspect) => list::inspect(inspect, json),
        ImageCommand::Save(save) => save::save(save, json),
        ImageCommand::ResumeOnExit(guard) => resume_guard::resume_on_exit(&guard.sandbox),
    };
    done.map_err(|failure| failure.exit(FAILED))
}

/// The images of a home, with the registries of the configuration.
pub(crate) fn open(home: &CarrelHome, programs: &Programs) -> Result<Images, Failure> {
    let config = Config::load(None).map_err(|error| Failure::new("invalid_config", &error).hint(error.hint()))?;
    let registries = config.registries.settings().map_err(|error| Failure::new("invalid_config", error))?;
    Ok(Images::new(home.path(), &programs.shim, registries))
}

/// The images of the home, which is created if it does not exist.
pub(crate) fn open_default() -> Result<Images, Failure> {
    crate::find::require_root()?;
    let home = CarrelHome::find()?;
    home.prepare()?;
    open(&home, &Programs::find()?)
}

/// The images of the home, without creating anything: these commands must work on a full disk.
fn open_existing() -> Result<Images, Failure> {
    crate::find::require_root()?;
    open(&CarrelHome::find()?, &Programs::find()?)
}

/// The image configuration of a sandbox, if its image is in the store.
pub(crate) fn sandbox_config(record: &SandboxRecord) -> Option<carrel_layers::ImageConfig> {
    if record.create.root.layers.is_empty() {
        return None;
    }
    base_of(&open_default().ok()?, record).ok().flatten().map(|stored| stored.config)
}

/// The stored image of a sandbox, identified by its layers, and among equal ones by its name.
fn base_of(images: &Images, record: &SandboxRecord) -> Result<Option<StoredImage>, FetchError> {
    let layers: Vec<PathBuf> = record.create.root.layers.iter().map(|layer| layer.0.clone()).collect();
    let mut all: Vec<StoredImage> = images.store()?.list()?;
    all.retain(|stored| stored.root.layers == layers);
    let name = record.image.parse::<ImageName>().map(|name| name.to_string()).unwrap_or_default();
    let named = all.iter().position(|stored| stored.names.contains(&name));
    Ok(if all.is_empty() { None } else { Some(all.swap_remove(named.unwrap_or_default())) })
}

/// The full name of an image in a store.
pub(crate) fn name(text: &str) -> Result<String, Failure> {
    let name: ImageName = text.parse().map_err(FetchError::from)?;
    Ok(name.to_string())
}

/// Pulls images; returns the exit code.
fn pull(arguments: &ImagePullArguments, json: bool) -> Result<u8, Failure> {
    let mut images = open_default()?;
    if let Some(platform) = &arguments.platform {
        images = images.with_platform(platform.clone());
    }
    let mut failures = Failures::new(json);
    for reference in &arguments.images {
        let progress = ImageProgress::new(&reference.to_string(), arguments.quiet || json);
        match images.fetch(reference, arguments.pull.into(), &progress) {
            Ok(stored) => print_image(&stored, json)?,
            Err(error) => failures.add(error.into()),
        }
    }
    failures.finish(FAILED)
}

fn print_image(stored: &StoredImage, json: bool) -> Result<(), Failure> {
    let text = if json { crate::json::line(&list::object(stored)) } else { format!("{}\n", stored.digest) };
    crate::write_stdout(text.as_bytes()).map(drop)
}

/// Removes images; returns the exit code.
fn remove(arguments: &ImageRemoveArguments, json: bool) -> Result<u8, Failure> {
    let (images, mut failures) = (open_default()?, Failures::new(json));
    for text in &arguments.images {
        match remove_one(&images, text) {
            Ok(removed) => print_removed(&removed, json)?,
            Err(error) => failures.add(error.into()),
        }
    }
    failures.finish(FAILED)
}

/// Removes an image by its name, or else by its digest.
fn remove_one(images: &Images, text: &str) -> Result<carrel_layers::RemovedImages, FetchError> {
    let store = images.store()?;
    if let Ok(name) = text.parse::<ImageName>() {
        match store.remove(&name.to_string()) {
            Err(ImageStoreError::Unknown(_)) => {}
            removed => return Ok(removed?),
        }
    }
    Ok(store.remove(text)?)
}

/// Removes unused images or output; returns the exit code.
pub(crate) fn prune(arguments: &PruneArguments, json: bool) -> Result<u8, Failure> {
    if arguments.logs {
        return prune_logs::prune(arguments.older_than, json).map_err(|failure| failure.exit(FAILED));
    }
    let prune = || {
        let images = open_existing()?;
        // Without a store there is nothing to remove.
        let removed = match images.existing_store()? {
            Some(store) => store.prune(arguments.all).map_err(FetchError::from)?,
            None => carrel_layers::RemovedImages::default(),
        };
        print_removed(&removed, json)?;
        if !json {
            crate::write_stdout(format!("{} freed\n", ByteSize(removed.bytes)).as_bytes())?;
        }
        Ok(0)
    };
    prune().map_err(|failure: Failure| failure.exit(FAILED))
}

/// Prints what was removed.
fn print_removed(removed: &carrel_layers::RemovedImages, json: bool) -> Result<(), Failure> {
    if json {
        let images: Vec<String> = removed.images.iter().map(ToString::to_string).collect();
        let object =
            serde_json::json!({"names": removed.names, "images": images, "bytes": removed.bytes, "left": removed.left});
        return crate::write_stdout(crate::json::line(&object).as_bytes()).map(drop);
    }
    let names = removed.names.iter().map(|name| format!("{}\n", carrel_changes::EscapedLine(name)));
    let images = removed.images.iter().map(|digest| format!("{digest}\n"));
    crate::write_stdout(names.chain(images).collect::<String>().as_bytes()).map(drop)
}

/// Imports an image; returns the exit code.
fn import(arguments: &ImageImportArguments, json: bool) -> Result<u8, Failure> {
    let (name, images) = (name(&arguments.name)?, open_default()?);
    let progress = ImageProgress::new(&arguments.name, arguments.quiet || json);
    let source = detect::detect(&arguments.source)?;
    let stored = match open_directory(&source)? {
        Some(upper) => {
            // A directory is a layer on an empty base.
            let changes = SandboxChanges { upper, first: 0, without: Vec::new() };
            let config = override_config(carrel_layers::ImageConfig::default(), &arguments.config)?;
            images.store()?.save(None, &changes, &config, &name, &progress).map_err(FetchError::from)?
        }
        None => import_file(&images, &source, arguments, &name, &progress)?,
    };
    print_image(&stored, json)?;
    Ok(0)
}

/// Imports an image from an archive or a layout.
fn import_file(
    images: &Images,
    source: &ImageRef,
    arguments: &ImageImportArguments,
    name: &str,
    progress: &ImageProgress,
) -> Result<StoredImage, Failure> {
    if matches!(source, ImageRef::Host | ImageRef::Registry(_)) {
        let message = format!("no such file: {source}");
        let hint =
            format!("give the path of a file or a directory; `carrel image pull {source}` fetches from a registry");
        return Err(Failure::new("invalid_image", message).hint(hint));
    }
    let store = images.store()?;
    let stored = match images.fetch(source, PullPolicy::Missing, progress) {
        Err(error) => match detect::layered_archive(&error) {
            Some(source) => images.fetch(&source, PullPolicy::Missing, progress),
            None => Err(error),
        },
        stored => stored,
    }?;
    if override_config(stored.config.clone(), &arguments.config)? != stored.config {
        let message = "the configuration can only be changed for a directory: an archive has its own";
        return Err(Failure::new("invalid_image", message));
    }
    store.name(name, stored.digest).map_err(FetchError::from)?;
    Ok(store.find(name).map_err(FetchError::from)?.unwrap_or(stored))
}

/// Opens the directory of a reference; none if it is not a directory.
fn open_directory(source: &ImageRef) -> Result<Option<std::os::fd::OwnedFd>, Failure> {
    use rustix::fs::{Mode, OFlags};
    let (path, flags) = match source {
        ImageRef::Directory(path) => (path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC),
        ImageRef::Path(path) if path.is_dir() => (path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC),
        _ => return Ok(None),
    };
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map(Some).map_err(|errno| {
        Failure::new("image_unavailable", format!("image {}: {}", path.display(), std::io::Error::from(errno)))
    })
}

/// Overrides an image configuration with arguments.
fn override_config(
    mut config: carrel_layers::ImageConfig,
    arguments: &ImageConfigArguments,
) -> Result<carrel_layers::ImageConfig, Failure> {
    if let Some(text) = &arguments.cmd {
        config.cmd = split_words(text).ok_or_else(|| unclosed_quote("--cmd", text))?;
    }
    if let Some(text) = &arguments.entrypoint {
        config.entrypoint = split_words(text).ok_or_else(|| unclosed_quote("--entrypoint", text))?;
    }
    for variable in &arguments.env {
        if let Some(text) = variable.resolve(|key| std::env::var_os(key))? {
            let key = text.split('=').next().unwrap_or_default();
            config.env.retain(|other| other.split('=').next() != Some(key));
            config.env.push(text);
        }
    }
    config.user = arguments.user.clone().or(config.user);
    config.workdir = arguments.workdir.clone().or(config.workdir);
    config.labels.extend(crate::label::Label::pairs(&arguments.labels));
    Ok(config)
}

/// The failure for an unclosed quote.
pub(crate) fn unclosed_quote(option: &str, text: &str) -> Failure {
    Failure::new("invalid_command", format!("unclosed quote in {option}: {text}")).hint("close every quote")
}
