//! From a reference to an image that is here: found in the store, or had from where it comes from.
//!
//! Whoever runs something from an image asks here ([`Images`]), and holds what it is given for as long as it is used.

mod error;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use carrel_image::{Directory, GuestPath, ImageRef, RootFs, Stacked};
use carrel_layers::archive::Limits;
use carrel_layers::{
    Config, Digest, DockerArchive, Hold, Layout, Platform, Progress, Source, SourceError, Store, StoreError, Stored,
    Unpacker,
};
use carrel_registry::{Credentials, Name, Registry, Settings};

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
    registries: Settings,
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

/// The program that unpacks, beside another helper.
pub fn unpacker(helper: &Path) -> PathBuf {
    helper.with_file_name(UNPACKER)
}

// === impl Images ===

impl Images {
    /// The images of a home, unpacked by the program beside `helper`, from registries that are set up like that.
    pub fn new(home: &Path, helper: &Path, registries: Settings) -> Self {
        let (home, unpacker) = (home.to_owned(), unpacker(helper));
        Self { home, unpacker, registries, platform: Platform::host(), store: OnceLock::new() }
    }

    /// The same for another platform.
    #[must_use]
    pub fn on(self, platform: Platform) -> Self {
        Self { platform, ..self }
    }

    /// What is special about registries.
    pub fn registries(&self) -> &Settings {
        &self.registries
    }

    /// The store that they are in.
    pub fn store(&self) -> Result<&Store, FetchError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let unpacker = Unpacker { program: self.unpacker.clone(), limits: Limits::default() };
        let store = Store::open(&self.home, unpacker)?;
        Ok(self.store.get_or_init(|| store))
    }

    /// Has an image, from wherever it is.
    pub fn get(&self, reference: &ImageRef, when: When, progress: &dyn Progress) -> Result<Image, FetchError> {
        match reference {
            ImageRef::Host | ImageRef::Directory(_) => return Ok(RootFs::resolve(reference)?.into()),
            ImageRef::Path(path) if path.is_dir() => return Ok(RootFs::resolve(reference)?.into()),
            _ => {}
        }
        self.held(|| self.stored(reference, when, progress))
    }

    /// Has an image for somebody who may have what everybody may: one of a registry is asked for there, without a login,
    /// and is not named here.
    pub fn public(&self, reference: &ImageRef, progress: &dyn Progress) -> Result<Image, FetchError> {
        let ImageRef::Registry(text) = reference else { return self.get(reference, When::Missing, progress) };
        self.held(|| {
            let name: Name = text.parse()?;
            self.asked_for(text, name, &Credentials::none(), None, progress)
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
        match reference {
            ImageRef::Host | ImageRef::Directory(_) => Err(FetchError::NotStored(reference.clone())),
            ImageRef::Path(path) if path.is_dir() => Err(FetchError::NotStored(reference.clone())),
            ImageRef::Path(path) => Ok(self.store()?.archive(path, progress)?),
            ImageRef::Oci { path, name } => self.filed(reference, Layout::directory(path, name.as_deref()), progress),
            ImageRef::OciArchive { path, name } => {
                self.filed(reference, Layout::archive(path, name.as_deref()), progress)
            }
            ImageRef::DockerArchive { path, name } => {
                self.filed(reference, DockerArchive::open(path, name.as_deref()), progress)
            }
            ImageRef::Registry(text) => self.named(text, when, progress),
        }
    }

    /// An image in a file or a directory of layers.
    fn filed<S: Source>(
        &self,
        reference: &ImageRef,
        source: Result<S, SourceError>,
        progress: &dyn Progress,
    ) -> Result<Stored, FetchError> {
        let source = source.map_err(StoreError::from)?;
        let filed = self.pull(None, &source, progress);
        filed.map_err(|error| FetchError::Filed { reference: reference.clone(), error: error.into() })
    }

    /// An image by its name, or by its digest.
    fn named(&self, text: &str, when: When, progress: &dyn Progress) -> Result<Stored, FetchError> {
        if let Ok(digest) = Digest::from_str(text) {
            return self.store()?.get(digest)?.ok_or(FetchError::Gone(digest));
        }
        let name: Name = text.parse()?;
        let full = name.to_string();
        if when != When::Always {
            if let Some(stored) = self.store()?.find(&full)? {
                return Ok(stored);
            }
        }
        if when == When::Never {
            return Err(FetchError::NotHere(full));
        }
        self.asked_for(text, name, &Credentials::of_user(), Some(&full), progress)
    }

    /// An image of a registry, asked for there.
    fn asked_for(
        &self,
        text: &str,
        name: Name,
        credentials: &Credentials,
        full: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Stored, FetchError> {
        let pulled = Registry::new(name, &self.registries, credentials)
            .map_err(FetchError::Registry)
            .and_then(|registry| self.pull(full, &registry, progress));
        pulled.map_err(|error| FetchError::Pull {
            beside: Path::new(text).exists(),
            name: text.to_owned(),
            error: error.into(),
        })
    }

    fn pull(&self, name: Option<&str>, source: &dyn Source, progress: &dyn Progress) -> Result<Stored, FetchError> {
        Ok(self.store()?.pull(name, source, &self.platform, progress)?)
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
    /// Sees to it that a directory is there in which a command is to start.
    pub fn furnish(&mut self, directory: &str) {
        let Ok(path) = GuestPath::new(directory) else { return };
        let is_there = Stacked::open(&self.root.layers).is_ok_and(|layers| layers.has(&path));
        if !is_there && !self.root.directories.iter().any(|made| made.path == path) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn images(home: &Path) -> Images {
        Images::new(home, Path::new("/nowhere/carrel-shim"), Settings::default())
    }

    fn get(images: &Images, text: &str, when: When) -> Result<Image, FetchError> {
        images.get(&text.parse().unwrap(), when, &())
    }

    #[test]
    fn the_host_and_a_directory_need_no_store() {
        let (home, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let images = images(home.path());
        assert!(get(&images, "host", When::Always).unwrap().root.layers.is_empty());
        let image = get(&images, root.path().to_str().unwrap(), When::Never).unwrap();
        assert_eq!((image.root.layers.len(), image.digest, image.is_held()), (1, None, false));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
        let not_stored = images.stored(&"host".parse().unwrap(), When::Missing, &()).unwrap_err();
        assert_eq!(not_stored.to_string(), "host is used as it is, and not kept in the store");
    }

    #[test]
    fn what_is_not_here_is_told_by_its_full_name() {
        let home = tempfile::tempdir().unwrap();
        let images = images(home.path());
        let error = get(&images, "python:3.12", When::Never).unwrap_err().to_string();
        assert!(error.starts_with("image docker.io/library/python:3.12 is not here\nhint: "), "{error}");
        let digest = Digest::of(b"nothing");
        let gone = format!("image {digest} is not in the store any more");
        assert_eq!(images.known(digest).unwrap_err().to_string(), gone);
        assert_eq!(get(&images, &digest.to_string(), When::Always).unwrap_err().to_string(), gone);
        assert!(matches!(get(&images, "Upper", When::Never), Err(FetchError::Name(_))));
    }

    #[test]
    fn a_directory_to_start_in_is_made_only_if_it_is_missing() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("there")).unwrap();
        let mut image = Image::from(RootFs::layer(root.path().to_owned()));
        for directory in ["/there", "/missing/deep", "/missing/deep", "/", "../x"] {
            image.furnish(directory);
        }
        let made: Vec<_> = image.root.directories.iter().map(|made| made.path.as_path().to_owned()).collect();
        assert_eq!(made, [PathBuf::from("missing/deep")]);
    }
}
