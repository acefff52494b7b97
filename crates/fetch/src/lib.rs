//! Gets images: from the local store, from a registry, or from an archive.
//!
//! [`Images`] resolves a reference and holds the image in the store for as long as the caller keeps the result.

mod error;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use carrel_image::{ImageRef, RootFs, RootFsDirectory};
use carrel_layers::archive::ArchiveLimits;
use carrel_layers::{
    CancellationToken, Digest, ImageConfig, ImagePin, ImageSource, ImageStore, ImageStoreError, OciLayout, Platform,
    PullProgress, SourceError, StoredImage, Unpacker,
};
use carrel_registry::{ImageName, RegistriesConfig, Registry, RegistryCredentials, RegistryError};

pub use self::error::FetchError;

/// The program that unpacks layers, in the directory of the other programs.
const UNPACK_PROGRAM: &str = "carrel-unpack";
/// How often a lookup is repeated when the image is removed between lookup and hold.
const MAX_ATTEMPTS: usize = 4;

/// The images in one home directory.
#[derive(Debug)]
pub struct Images {
    home: PathBuf,
    unpacker: PathBuf,
    registries: RwLock<Arc<RegistriesConfig>>,
    platform: Platform,
    store: OnceLock<ImageStore>,
}

/// When an image is pulled from its registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// Pull even if the image is in the local store.
    Always,
    /// Pull only if the image is not in the local store.
    #[default]
    Missing,
    /// Do not pull.
    Never,
}

/// An image that is ready to run. It is not removed from the store while this value exists.
#[derive(Debug)]
pub struct Image {
    /// The layers and files that the sandbox mounts.
    pub root: RootFs,
    /// Defaults for its commands; empty for `host` and directories.
    pub config: ImageConfig,
    /// Its digest in the store; `None` for `host` and directories.
    pub digest: Option<Digest>,
    hold: Option<ImagePin>,
}

#[derive(Clone, Copy)]
struct PullContext<'a> {
    progress: &'a dyn PullProgress,
    stop: &'a CancellationToken,
}

/// The path of `carrel-unpack`, in the directory of another program.
pub fn unpacker(helper: &Path) -> PathBuf {
    helper.with_file_name(UNPACK_PROGRAM)
}

// === impl Images ===

impl Images {
    /// Opens the images of a home directory; `carrel-unpack` is in the directory of `helper`.
    pub fn new(home: &Path, helper: &Path, registries: RegistriesConfig) -> Self {
        let (home, unpacker) = (home.to_owned(), unpacker(helper));
        let registries = RwLock::new(Arc::new(registries));
        Self { home, unpacker, registries, platform: Platform::host(), store: OnceLock::new() }
    }

    /// Selects another platform than the host's.
    #[must_use]
    pub fn with_platform(self, platform: Platform) -> Self {
        Self { platform, ..self }
    }

    /// The current registry configuration.
    pub fn registries(&self) -> Arc<RegistriesConfig> {
        Arc::clone(&self.registries.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the registry configuration for pulls that start from now on.
    pub fn set_registries(&self, registries: RegistriesConfig) {
        *self.registries.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(registries);
    }

    /// The layer store, which is opened on first use.
    pub fn store(&self) -> Result<&ImageStore, FetchError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = ImageStore::open(&self.home, self.unpacker())?;
        Ok(self.store.get_or_init(|| store))
    }

    /// The layer store if it exists; nothing is created.
    pub fn existing_store(&self) -> Result<Option<&ImageStore>, FetchError> {
        if let Some(store) = self.store.get() {
            return Ok(Some(store));
        }
        let store = ImageStore::open_existing(&self.home, self.unpacker())?;
        Ok(store.map(|store| self.store.get_or_init(|| store)))
    }

    fn unpacker(&self) -> Unpacker {
        Unpacker { program: self.unpacker.clone(), limits: ArchiveLimits::default() }
    }

    /// Gets an image, and pulls or unpacks it if needed.
    pub fn get(
        &self,
        reference: &ImageRef,
        policy: PullPolicy,
        progress: &dyn PullProgress,
    ) -> Result<Image, FetchError> {
        self.get_cancellable(reference, policy, progress, &CancellationToken::new())
    }

    /// Like [`Self::get`], and gives up when `stop` is set.
    pub fn get_cancellable(
        &self,
        reference: &ImageRef,
        policy: PullPolicy,
        progress: &dyn PullProgress,
        stop: &CancellationToken,
    ) -> Result<Image, FetchError> {
        if is_in_place(reference) {
            return Ok(RootFs::resolve(reference)?.into());
        }
        self.hold(|| self.store_image(reference, policy, PullContext { progress, stop }))
    }

    /// Gets an image only if nothing must be pulled or unpacked for it.
    pub fn get_local(&self, reference: &ImageRef) -> Result<Option<Image>, FetchError> {
        if !is_in_place(reference) && !matches!(reference, ImageRef::Registry(_)) {
            return Ok(None);
        }
        match self.get(reference, PullPolicy::Never, &()) {
            Err(FetchError::NotFound(_)) => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Gets an image for a caller without privileges: registry images are pulled anonymously, from public addresses
    /// only, and are not stored under their name.
    pub fn get_public(
        &self,
        reference: &ImageRef,
        progress: &dyn PullProgress,
        stop: &CancellationToken,
    ) -> Result<Image, FetchError> {
        let ImageRef::Registry(text) = reference else {
            return self.get_cancellable(reference, PullPolicy::Missing, progress, stop);
        };
        self.hold(|| {
            let registry = Registry::public_only(text.parse()?, &self.registries());
            self.pull_from_registry(text, registry, None, PullContext { progress, stop })
        })
    }

    /// Gets an image of the store by its digest; never pulls.
    pub fn get_by_digest(&self, digest: Digest) -> Result<Image, FetchError> {
        let gone = || FetchError::NotInStore(digest);
        self.hold(|| self.store()?.get(digest)?.ok_or_else(gone)).map_err(|error| match error {
            FetchError::Store(ImageStoreError::Unknown(_)) => gone(),
            error => error,
        })
    }

    /// Pulls or imports an image into the store. `host` and directories cannot be stored.
    pub fn fetch(
        &self,
        reference: &ImageRef,
        policy: PullPolicy,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage, FetchError> {
        self.store_image(reference, policy, PullContext { progress, stop: &CancellationToken::new() })
    }

    fn store_image(
        &self,
        reference: &ImageRef,
        policy: PullPolicy,
        context: PullContext<'_>,
    ) -> Result<StoredImage, FetchError> {
        match reference {
            ImageRef::Host | ImageRef::Directory(_) => Err(FetchError::NotStorable(reference.clone())),
            ImageRef::Path(path) if path.is_dir() => Err(FetchError::NotStorable(reference.clone())),
            ImageRef::Path(path) => Ok(self.store()?.archive(path, context.progress)?),
            ImageRef::Oci { path, name } => {
                self.import(reference, OciLayout::directory(path, name.as_deref()), context)
            }
            ImageRef::OciArchive { path, name } => {
                self.import(reference, self.store()?.layout(path, name.as_deref()), context)
            }
            ImageRef::DockerArchive { path, name } => {
                self.import(reference, self.store()?.docker_archive(path, name.as_deref()), context)
            }
            ImageRef::Registry(text) => self.resolve_name(text, policy, context),
        }
    }

    /// Imports an image from a layout or archive.
    fn import<S: ImageSource>(
        &self,
        reference: &ImageRef,
        source: Result<S, SourceError>,
        context: PullContext<'_>,
    ) -> Result<StoredImage, FetchError> {
        let source = source.map_err(ImageStoreError::from)?;
        let imported = self.pull(None, &source, context);
        imported.map_err(|error| FetchError::Import { reference: reference.clone(), error: error.into() })
    }

    /// Finds an image by name or digest, and pulls it if the policy says so.
    fn resolve_name(
        &self,
        text: &str,
        policy: PullPolicy,
        context: PullContext<'_>,
    ) -> Result<StoredImage, FetchError> {
        if let Ok(digest) = Digest::from_str(text) {
            return self.store()?.get(digest)?.ok_or(FetchError::NotInStore(digest));
        }
        let name: ImageName = text.parse()?;
        let full = name.to_string();
        if policy != PullPolicy::Always
            && let Some(stored) = self.store()?.find(&full)?.filter(|stored| self.matches_platform(stored))
        {
            return Ok(stored);
        }
        if policy == PullPolicy::Never {
            return Err(FetchError::NotFound(full));
        }
        let registry = Registry::new(name, &self.registries(), &RegistryCredentials::of_user());
        let stored = self.pull_from_registry(text, registry, self.stored_name(&full), context)?;
        if self.stored_name(&full).is_none() {
            context.progress.message(&format!(
                "the image is for {} and has no name in the local store; use its digest",
                self.platform
            ));
        }
        Ok(stored)
    }

    /// The name to store an image under, if its platform is the host's: a name always means an image for this host.
    fn stored_name<'a>(&self, full: &'a str) -> Option<&'a str> {
        Platform::host().accepts(&self.platform).then_some(full)
    }

    /// Whether an image is for the selected platform, or names none.
    fn matches_platform(&self, stored: &StoredImage) -> bool {
        stored.config.platform.as_ref().is_none_or(|there| self.platform.accepts(there))
    }

    /// Pulls an image from its registry.
    fn pull_from_registry(
        &self,
        text: &str,
        registry: Result<Registry, RegistryError>,
        full: Option<&str>,
        context: PullContext<'_>,
    ) -> Result<StoredImage, FetchError> {
        let registry = registry.map_err(FetchError::Registry);
        let pulled = registry.and_then(|registry| self.pull(full, &registry, context));
        pulled.map_err(|error| FetchError::Pull { name: text.to_owned(), error: error.into() })
    }

    fn pull(
        &self,
        name: Option<&str>,
        source: &dyn ImageSource,
        context: PullContext<'_>,
    ) -> Result<StoredImage, FetchError> {
        Ok(self.store()?.pull_cancellable(name, source, &self.platform, context.progress, context.stop)?)
    }

    /// Holds the image that `find` returns, and retries if it was removed in between.
    fn hold(&self, find: impl Fn() -> Result<StoredImage, FetchError>) -> Result<Image, FetchError> {
        let mut attempts = 0;
        loop {
            let stored = find()?;
            attempts += 1;
            match self.store()?.hold(stored.digest) {
                Ok(hold) => {
                    let StoredImage { root, config, digest, .. } = stored;
                    return Ok(Image { root, config, digest: Some(digest), hold: Some(hold) });
                }
                Err(ImageStoreError::Unknown(_)) if attempts < MAX_ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

// === impl Image ===

impl Image {
    /// Adds the directory if the image lacks it, with symlinks of the image resolved.
    pub fn ensure_directory(&mut self, directory: &str) {
        if let Some(path) = self.root.missing_directory(directory) {
            self.root.directories.push(RootFsDirectory { path, mode: 0o755, owner: 0 });
        }
    }

    /// Whether the store keeps the image while this value exists.
    pub fn is_held(&self) -> bool {
        self.hold.is_some()
    }
}

impl From<RootFs> for Image {
    fn from(root: RootFs) -> Self {
        Self { root, config: ImageConfig::default(), digest: None, hold: None }
    }
}

/// Whether an image is used in place, without the store.
fn is_in_place(reference: &ImageRef) -> bool {
    match reference {
        ImageRef::Host | ImageRef::Directory(_) => true,
        ImageRef::Path(path) => path.is_dir(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
