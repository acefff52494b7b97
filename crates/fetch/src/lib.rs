//! From a reference to an image that is here: found in the store, or had from where it comes from.
//!
//! Whoever runs something from an image asks here ([`Images`]), and holds what it is given for as long as it is used.

mod error;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use carrel_image::{Directory, ImageRef, RootFs};
use carrel_layers::archive::Limits;
use carrel_layers::{
    Config, Digest, Hold, Layout, Platform, Progress, Source, SourceError, Stop, Store, StoreError, Stored, Unpacker,
};
use carrel_registry::{Credentials, Name, Registry, RegistryError, Settings};

pub use self::error::FetchError;

/// The program that unpacks, beside the others.
const UNPACKER: &str = "carrel-unpack";
/// How often an image is asked for again that was removed just when it was found.
const TRIES: usize = 4;

/// The images of one home.
#[derive(Debug)]
pub struct Images {
    home: PathBuf,
    unpacker: PathBuf,
    registries: RwLock<Arc<Settings>>,
    platform: Platform,
    store: OnceLock<Store>,
}

/// When an image of a registry is asked for there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Whether it is here or not.
    Always,
    /// If it is not here.
    #[default]
    Missing,
    /// Never: it has to be here.
    Never,
}

/// An image that is here, and stays while this is held.
#[derive(Debug)]
pub struct Image {
    /// Its root file system.
    pub root: RootFs,
    /// How it is to be run. The host, and a directory, say nothing about that.
    pub config: Config,
    /// What it is recorded by, if it is in the store.
    pub digest: Option<Digest>,
    hold: Option<Hold>,
}

/// How an image is asked for.
#[derive(Clone, Copy)]
struct Asking<'a> {
    progress: &'a dyn Progress,
    stop: &'a Stop,
}

/// The program that unpacks, beside another helper.
pub fn unpacker(helper: &Path) -> PathBuf {
    helper.with_file_name(UNPACKER)
}

// === impl Images ===

impl Images {
    /// The images of a home, unpacked by the program beside `helper`, from registries that are set up like that.
    pub fn new(home: &Path, helper: &Path, registries: Settings) -> Self {
        let (home, unpacker) = (home.to_owned(), unpacker(helper));
        let registries = RwLock::new(Arc::new(registries));
        Self { home, unpacker, registries, platform: Platform::host(), store: OnceLock::new() }
    }

    /// The same for another platform.
    #[must_use]
    pub fn on(self, platform: Platform) -> Self {
        Self { platform, ..self }
    }

    /// What is special about registries.
    pub fn registries(&self) -> Arc<Settings> {
        Arc::clone(&self.registries.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces what is special about registries, for what is asked of them from now on.
    pub fn set_registries(&self, registries: Settings) {
        *self.registries.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(registries);
    }

    /// The store that they are in.
    pub fn store(&self) -> Result<&Store, FetchError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = Store::open(&self.home, self.unpacker())?;
        Ok(self.store.get_or_init(|| store))
    }

    /// The store that they are in, if there is one: nothing is created.
    pub fn existing_store(&self) -> Result<Option<&Store>, FetchError> {
        if let Some(store) = self.store.get() {
            return Ok(Some(store));
        }
        let store = Store::open_existing(&self.home, self.unpacker())?;
        Ok(store.map(|store| self.store.get_or_init(|| store)))
    }

    fn unpacker(&self) -> Unpacker {
        Unpacker { program: self.unpacker.clone(), limits: Limits::default() }
    }

    /// Has an image, from wherever it is.
    pub fn get(&self, reference: &ImageRef, when: When, progress: &dyn Progress) -> Result<Image, FetchError> {
        self.get_until(reference, when, progress, &Stop::new())
    }

    /// The same, for as long as it is not told to stop.
    pub fn get_until(
        &self,
        reference: &ImageRef,
        when: When,
        progress: &dyn Progress,
        stop: &Stop,
    ) -> Result<Image, FetchError> {
        if is_plain(reference) {
            return Ok(RootFs::resolve(reference)?.into());
        }
        self.held(|| self.taken(reference, when, Asking { progress, stop }))
    }

    /// Has an image for which nothing has to be asked for or unpacked, if it is one.
    pub fn here(&self, reference: &ImageRef) -> Result<Option<Image>, FetchError> {
        if !is_plain(reference) && !matches!(reference, ImageRef::Registry(_)) {
            return Ok(None);
        }
        match self.get(reference, When::Never, &()) {
            Err(FetchError::NotHere(_)) => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Has an image for somebody who may have what everybody may: one of a registry that anybody can reach is asked for
    /// there, without a login, and is not named here.
    pub fn public(&self, reference: &ImageRef, progress: &dyn Progress, stop: &Stop) -> Result<Image, FetchError> {
        let ImageRef::Registry(text) = reference else {
            return self.get_until(reference, When::Missing, progress, stop);
        };
        self.held(|| {
            let registry = Registry::public_only(text.parse()?, &self.registries());
            self.asked_for(text, registry, None, Asking { progress, stop })
        })
    }

    /// An image that was had before, by what it is recorded by. It is not asked for anywhere else.
    pub fn known(&self, digest: Digest) -> Result<Image, FetchError> {
        let gone = || FetchError::Gone(digest);
        self.held(|| self.store()?.get(digest)?.ok_or_else(gone)).map_err(|error| match error {
            FetchError::Store(StoreError::Unknown(_)) => gone(),
            error => error,
        })
    }

    /// Takes an image into the store, and says what it is there. The host and a directory have no place in it.
    pub fn stored(&self, reference: &ImageRef, when: When, progress: &dyn Progress) -> Result<Stored, FetchError> {
        self.taken(reference, when, Asking { progress, stop: &Stop::new() })
    }

    fn taken(&self, reference: &ImageRef, when: When, asking: Asking<'_>) -> Result<Stored, FetchError> {
        match reference {
            ImageRef::Host | ImageRef::Directory(_) => Err(FetchError::NotStored(reference.clone())),
            ImageRef::Path(path) if path.is_dir() => Err(FetchError::NotStored(reference.clone())),
            ImageRef::Path(path) => Ok(self.store()?.archive(path, asking.progress)?),
            ImageRef::Oci { path, name } => self.filed(reference, Layout::directory(path, name.as_deref()), asking),
            ImageRef::OciArchive { path, name } => {
                self.filed(reference, self.store()?.layout(path, name.as_deref()), asking)
            }
            ImageRef::DockerArchive { path, name } => {
                self.filed(reference, self.store()?.docker_archive(path, name.as_deref()), asking)
            }
            ImageRef::Registry(text) => self.named(text, when, asking),
        }
    }

    /// An image in a file or a directory of layers.
    fn filed<S: Source>(
        &self,
        reference: &ImageRef,
        source: Result<S, SourceError>,
        asking: Asking<'_>,
    ) -> Result<Stored, FetchError> {
        let source = source.map_err(StoreError::from)?;
        let filed = self.pull(None, &source, asking);
        filed.map_err(|error| FetchError::Filed { reference: reference.clone(), error: error.into() })
    }

    /// An image by its name, or by its digest.
    fn named(&self, text: &str, when: When, asking: Asking<'_>) -> Result<Stored, FetchError> {
        if let Ok(digest) = Digest::from_str(text) {
            return self.store()?.get(digest)?.ok_or(FetchError::Gone(digest));
        }
        let name: Name = text.parse()?;
        let full = name.to_string();
        if when != When::Always {
            if let Some(stored) = self.store()?.find(&full)?.filter(|stored| self.fits(stored)) {
                return Ok(stored);
            }
        }
        if when == When::Never {
            return Err(FetchError::NotHere(full));
        }
        let registry = Registry::new(name, &self.registries(), &Credentials::of_user());
        let stored = self.asked_for(text, registry, self.kept_as(&full), asking)?;
        if self.kept_as(&full).is_none() {
            asking.progress.said(&format!("it is for {}, and has no name here: use its digest", self.platform));
        }
        Ok(stored)
    }

    /// What an image of that name is called here: a name stands for what runs on this host.
    fn kept_as<'a>(&self, full: &'a str) -> Option<&'a str> {
        Platform::host().accepts(&self.platform).then_some(full)
    }

    /// Whether an image is for the platform that is wanted, as far as it says.
    fn fits(&self, stored: &Stored) -> bool {
        stored.config.platform.as_ref().is_none_or(|there| self.platform.accepts(there))
    }

    /// An image of a registry, asked for there.
    fn asked_for(
        &self,
        text: &str,
        registry: Result<Registry, RegistryError>,
        full: Option<&str>,
        asking: Asking<'_>,
    ) -> Result<Stored, FetchError> {
        let registry = registry.map_err(FetchError::Registry);
        let pulled = registry.and_then(|registry| self.pull(full, &registry, asking));
        pulled.map_err(|error| FetchError::Pull { name: text.to_owned(), error: error.into() })
    }

    fn pull(&self, name: Option<&str>, source: &dyn Source, asking: Asking<'_>) -> Result<Stored, FetchError> {
        Ok(self.store()?.pull_until(name, source, &self.platform, asking.progress, asking.stop)?)
    }

    /// Holds an image that was found. One that was removed in between is looked for again.
    fn held(&self, find: impl Fn() -> Result<Stored, FetchError>) -> Result<Image, FetchError> {
        let mut tries = 0;
        loop {
            let stored = find()?;
            tries += 1;
            match self.store()?.hold(stored.digest) {
                Ok(hold) => {
                    let Stored { root, config, digest, .. } = stored;
                    return Ok(Image { root, config, digest: Some(digest), hold: Some(hold) });
                }
                Err(StoreError::Unknown(_)) if tries < TRIES => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

// === impl Image ===

impl Image {
    /// Sees to it that a directory is there in which a command is to start. Links of the image are followed.
    pub fn furnish(&mut self, directory: &str) {
        if let Some(path) = self.root.missing(directory) {
            self.root.directories.push(Directory { path, mode: 0o755, owner: 0 });
        }
    }

    /// Whether it is kept from being removed.
    pub fn is_held(&self) -> bool {
        self.hold.is_some()
    }
}

impl From<RootFs> for Image {
    fn from(root: RootFs) -> Self {
        Self { root, config: Config::default(), digest: None, hold: None }
    }
}

/// Whether a reference stands for something that is used as it is.
fn is_plain(reference: &ImageRef) -> bool {
    match reference {
        ImageRef::Host | ImageRef::Directory(_) => true,
        ImageRef::Path(path) => path.is_dir(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
