//! Taking an image from a source: its layers at once, then the image, then its name.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags};

use super::blob::Halt;
use super::budget::{self, Budget};
use super::layer::{self, Wanted};
use super::patch::{self, Made, Sheet};
use super::record::{self, Layer, Record};
use super::{IMAGES, LAYERS, LOCK, PARTIAL, PATCH, RECORD, Store, Stored, TREE, USERS, files};
use crate::archive::Form;
use crate::config::Described;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::failpoint::Phase;
use crate::lock::Lock;
use crate::manifest::{Descriptor, ImageManifest, LARGEST_CONFIG, Manifest, ManifestError};
use crate::platform::Platform;
use crate::progress::{Done, Progress};
use crate::source::Source;
use crate::stop::Stop;

/// So many layers are fetched and unpacked at once.
const AT_ONCE: usize = 4;

/// An image that is being taken.
struct Pull<'a> {
    store: &'a Store,
    manifest: &'a Manifest,
    read: &'a ImageManifest,
    source: &'a dyn Source,
    platform: &'a Platform,
    progress: &'a dyn Progress,
    stop: &'a Stop,
    /// What its layers are, once that is known.
    layers: OnceCell<Vec<Layer>>,
}

/// An image of which all but the record is there.
pub(super) struct Complete<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) read: &'a ImageManifest,
    pub(super) described: Described,
    pub(super) layers: Vec<Layer>,
}

// === impl Store ===

impl Store {
    /// Takes an image from a source; what is here already is not fetched. The name stands for it from then on.
    pub fn pull(
        &self,
        name: Option<&str>,
        source: &dyn Source,
        platform: &Platform,
        progress: &dyn Progress,
    ) -> Result<Stored, StoreError> {
        self.pull_until(name, source, platform, progress, &Stop::new())
    }

    /// The same for as long as it is not told to stop. Then what has come is kept for the next one.
    pub fn pull_until(
        &self,
        name: Option<&str>,
        source: &dyn Source,
        platform: &Platform,
        progress: &dyn Progress,
        stop: &Stop,
    ) -> Result<Stored, StoreError> {
        let outcome = self.pulled(name, source, platform, progress, stop);
        outcome.map_err(|error| match error {
            // What fails because of that is not what is told.
            _ if stop.is_said() => StoreError::Stopped,
            // Whoever came upon it first, it is the disk.
            error if error.is_full() => self.full(),
            error => error,
        })
    }

    fn pulled(
        &self,
        name: Option<&str>,
        source: &dyn Source,
        platform: &Platform,
        progress: &dyn Progress,
        stop: &Stop,
    ) -> Result<Stored, StoreError> {
        // A name that is none is refused before anything is fetched.
        name.map(super::place_of).transpose()?;
        Phase::Manifest.begin();
        let manifest = source.manifest(platform)?;
        let read = manifest.read()?;
        Phase::Manifest.end();
        progress.begin(&read.layers);
        let layers = OnceCell::new();
        let pull = Pull { store: self, manifest: &manifest, read: &read, source, platform, progress, stop, layers };
        let outcome = self.add().and_then(|_adding| pull.named(name));
        if outcome.as_ref().is_err_and(|error| error.is_final() || error.is_full()) {
            let layers = pull.layers.get().map_or(&[][..], Vec::as_slice);
            // What is told is why it was refused; what stays now goes with the next removal.
            let _collected = self.refuse(layers);
        }
        outcome
    }

    /// Names an image that is recorded, if it is to have a name, and describes it.
    pub(super) fn settle(&self, name: Option<&str>, digest: Digest) -> Result<Stored, StoreError> {
        let _held = self.hold(digest)?;
        if let Some(name) = name {
            Phase::NameRecorded.begin();
            self.record_name(name, digest)?;
            Phase::NameRecorded.end();
        }
        self.get(digest)?.ok_or_else(|| StoreError::Unknown(digest.to_string()))
    }

    /// Records an image of which everything has its place, once it is on the disk, and then names it.
    pub(super) fn finish(&self, complete: &Complete<'_>, name: Option<&str>) -> Result<Stored, StoreError> {
        let digest = complete.manifest.digest;
        loop {
            if self.record(digest)?.is_none() {
                self.record_image(complete)?;
            }
            match self.settle(name, digest) {
                // Somebody has removed it right away. What it is made of is still there, as long as something is added.
                Err(StoreError::Unknown(_)) => {}
                outcome => return outcome,
            }
        }
    }

    fn record_image(&self, complete: &Complete<'_>) -> Result<(), StoreError> {
        let Complete { manifest, read, described, layers } = complete;
        self.keep_small(&manifest.bytes)?;
        let shown = record::shown(layers);
        let (sheets, unpacked) = self.sheets(&shown)?;
        let staged = self.staged()?;
        let record = |patched| Record {
            digest: manifest.digest,
            media_type: manifest.media_type.clone(),
            size: manifest.bytes.len() as u64,
            described: read.config.clone(),
            config: described.config.clone(),
            layers: layers.clone(),
            shown: shown.clone(),
            unpacked,
            patched,
            stored: record::now(),
        };
        let write = || -> std::io::Result<()> {
            let patched = patch::make(&sheets, || staged.directory(PATCH))?;
            files::create(staged.handle(), RECORD)?.write_all(&serde_json::to_vec(&record(patched))?)?;
            files::create(staged.handle(), LOCK)?;
            files::directory(staged.handle(), USERS)?;
            Ok(rustix::fs::syncfs(&self.handle)?)
        };
        write().map_err(|error| if patch::is_too_much(&error) { StoreError::Unfounded } else { self.failed(error) })?;
        let images = self.directory(IMAGES)?;
        Phase::ImageRecorded.begin();
        staged.keep(&images, &manifest.digest.hex()).map_err(|error| self.failed(error))?;
        rustix::fs::fsync(&images).map_err(|errno| self.failed(errno.into()))?;
        Phase::ImageRecorded.end();
        Ok(())
    }

    /// The layers that can be seen, and the sizes of all their files. Each may say much, and all together not more.
    fn sheets(&self, shown: &[Digest]) -> Result<(Vec<Sheet>, u64), StoreError> {
        let most = budget::whole(self.unpacker.limits).bytes;
        let (mut sheets, mut unpacked, mut spent, mut made) = (Vec::new(), 0_u64, 0_u64, Made::default());
        for place in shown {
            let about = self.about(*place)?.ok_or_else(|| StoreError::Unknown(format!("layer {place}")))?;
            unpacked = unpacked.saturating_add(about.bytes);
            spent = spent.saturating_add(about.spent());
            if spent > most {
                return Err(StoreError::TooLarge(most));
            }
            let sheet = Sheet { tree: self.tree(*place)?, made: about.made().collect() };
            if !made.add(&sheet) {
                return Err(StoreError::Unfounded);
            }
            sheets.push(sheet);
        }
        Ok((sheets, unpacked))
    }

    /// The tree of a layer.
    fn tree(&self, place: Digest) -> Result<OwnedFd, StoreError> {
        let path = format!("{LAYERS}/{}/{TREE}", place.hex());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.handle, path, flags, Mode::empty()).map_err(|errno| self.failed(errno.into()))
    }
}

// === impl Pull ===

impl Pull<'_> {
    fn named(&self, name: Option<&str>) -> Result<Stored, StoreError> {
        loop {
            if self.store.record(self.manifest.digest)?.is_some() {
                // Whoever recorded it may have been killed right then.
                Lock::sweep(&self.store.directory(PARTIAL)?, &self.turn()).map_err(|error| self.store.failed(error))?;
                self.all_there();
            } else {
                self.take()?;
            }
            match self.store.settle(name, self.manifest.digest) {
                // Somebody has removed it right away.
                Err(StoreError::Unknown(_)) => {}
                outcome => return outcome,
            }
        }
    }

    /// What whoever takes this image has locked.
    fn turn(&self) -> String {
        format!("{}.image", self.manifest.digest.hex())
    }

    fn all_there(&self) {
        (0..self.read.layers.len()).for_each(|number| self.progress.layer_done(number, Done::There));
    }

    /// Takes an image that is not here. One at a time does.
    fn take(&self) -> Result<(), StoreError> {
        let Self { store, manifest, read, .. } = self;
        self.goes_on()?;
        let lock = Lock::take_unless(&store.directory(PARTIAL)?, &self.turn(), || self.stop.is_said());
        let _one = lock.map_err(|error| store.failed(error))?;
        if store.record(manifest.digest)?.is_some() {
            self.all_there();
            return Ok(());
        }
        let packed = read.layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.size));
        let most = budget::whole(store.unpacker.limits).bytes;
        if packed > most {
            return Err(StoreError::TooLarge(most));
        }
        let bytes = store.small(&read.config, LARGEST_CONFIG, self.source)?;
        let described = Described::read(&bytes)?;
        if let Some(there) = described.config.platform.as_ref().filter(|there| !self.platform.accepts(there)) {
            self.progress.said(&format!("the image is for {there}, and {} was asked for", self.platform));
        }
        let (layers, diff_ids) = (read.layers.len(), described.layers.len());
        if layers != diff_ids {
            return Err(ManifestError::Layers { layers, diff_ids }.into());
        }
        let layer = |(diff_id, blob): (&Digest, &Descriptor)| layer::layer(blob.clone(), *diff_id, Form::Layer);
        let layers = self.layers.get_or_init(|| described.layers.iter().zip(&read.layers).map(layer).collect()).clone();
        self.take_layers(&layers)?;
        self.goes_on()?;
        store.keep_small(&bytes)?;
        store.record_image(&Complete { manifest, read, described, layers })
    }

    fn goes_on(&self) -> Result<(), StoreError> {
        if self.stop.is_said() { Err(StoreError::Stopped) } else { Ok(()) }
    }

    /// Takes all layers, several at once. When one fails, the others are stopped.
    fn take_layers(&self, layers: &[Layer]) -> Result<(), StoreError> {
        let Self { store, source, progress, .. } = *self;
        let known = store.known()?;
        let mut seen = HashSet::new();
        let each = layers.iter().enumerate();
        // One that is there twice is done with when the first is.
        let (first, again): (Vec<_>, Vec<_>) =
            each.partition(|(_, layer)| seen.insert((layer.place, layer.blob.digest)));
        let (next, halt, failure) = (AtomicUsize::new(0), Halt::new(self.stop), Mutex::new(None));
        let budget = Budget::new(store.unpacker.limits);
        let work = || -> Result<(), StoreError> {
            while let Some((number, layer)) = first.get(next.fetch_add(1, Ordering::Relaxed)) {
                let compression = layer.blob.compression()?;
                let (number, budget, halt, known) = (*number, &budget, &halt, &known);
                let wanted = Wanted { number, layer, compression, source, known, budget, halt, progress };
                progress.layer_done(number, store.layer(&wanted)?);
            }
            Ok(())
        };
        let guarded = || {
            if let Err(error) = work() {
                // Those that are stopped by it come later, and are not what is told.
                if let Ok(mut failure) = failure.lock() {
                    failure.get_or_insert_with(|| {
                        halt.fail(error.is_final() || error.is_full());
                        error
                    });
                }
                next.store(usize::MAX / 2, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..first.len().min(AT_ONCE) {
                scope.spawn(guarded);
            }
            guarded();
        });
        if let Some(error) = failure.into_inner().unwrap_or_default() {
            return Err(error);
        }
        again.iter().for_each(|(number, _)| progress.layer_done(*number, Done::There));
        Ok(())
    }
}
