//! Imports the tar of a root file system as an image of one layer.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::layer::{BLOB, StagedLayer, layer};
use super::pull::UnrecordedImage;
use super::{ARCHIVES, ImageStore, StoredImage, files};
use crate::archive::ArchiveForm;
use crate::archive_index::{self, ArchiveKey};
use crate::config::{ParsedConfig, generated};
use crate::digest::{Digest, Hasher};
use crate::error::ImageStoreError;
use crate::manifest::{Descriptor, ImageManifest, Manifest, media};
use crate::progress::{LayerOutcome, PullProgress};
use crate::unpack::{Compression, UnpackError, UnpackedLayer};

/// The read size.
const BUFFER: usize = 256 << 10;

// === impl ImageStore ===

impl ImageStore {
    /// Imports the tar of a root file system, which may be compressed. An unchanged file is read only once.
    pub fn archive(&self, path: &Path, progress: &dyn PullProgress) -> Result<StoredImage, ImageStoreError> {
        let failed = |error| self.failed(error);
        let missing = |source: io::Error| ImageStoreError::Missing { path: path.to_owned(), source };
        let status = rustix::fs::stat(path).map_err(|errno| missing(errno.into()))?;
        if let Some(stored) = self.indexed(&ArchiveKey::new(&status))? {
            return Ok(stored);
        }
        archive_index::wait_for_next_timestamp(&status);
        // The path may have become something else than a file; opening it must not block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| missing(errno.into()))?;
        let status = rustix::fs::fstat(&file).map_err(|errno| missing(errno.into()))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(ImageStoreError::NotDirectoryOrFile(path.to_owned()));
        }
        let key = ArchiveKey::new(&status);
        let _adding = self.add()?;
        let archives = self.directory(ARCHIVES)?;
        let locked = archive_index::lock(&archives, &key).map_err(failed)?;
        if let Some(stored) = self.indexed(&key)? {
            return Ok(stored);
        }
        match self.import(path, &mut file.into(), &key, progress) {
            Ok(stored) => {
                locked.put(stored.digest).map_err(failed)?;
                Ok(stored)
            }
            Err(error) => {
                archive_index::forget(&archives, &key);
                Err(error)
            }
        }
    }

    /// The image of an archive that was imported before and is still in the store.
    fn indexed(&self, key: &ArchiveKey) -> Result<Option<StoredImage>, ImageStoreError> {
        let archives = files::existing(&self.handle, ARCHIVES).map_err(|error| self.failed(error))?;
        let digest = archives.map_or(Ok(None), |archives| archive_index::get(archives, key));
        match digest.map_err(|error| self.failed(error))? {
            Some(digest) => self.get(digest),
            None => Ok(None),
        }
    }

    /// Unpacks and hashes a file in one pass, so that tree and digest match even if the file changes.
    fn import(
        &self,
        path: &Path,
        file: &mut File,
        key: &ArchiveKey,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage, ImageStoreError> {
        let failed = |error| self.failed(error);
        let missing = |source: io::Error| ImageStoreError::Missing { path: path.to_owned(), source };
        let archive = |source| ImageStoreError::Archive { path: path.to_owned(), source };
        let compression = sniff(file).map_err(missing)?;
        let size = file.metadata().map_err(missing)?.len();
        // Its digest is known only after reading it.
        progress.begin(&[Descriptor::new(media_type(compression), Digest::of(b""), size)]);
        let fresh = self.fresh().map_err(failed)?;
        let (blob, unpacked) = self.read(file, &fresh, compression, progress, archive, missing)?;
        let now = rustix::fs::fstat(&*file).map_err(|errno| missing(errno.into()))?;
        if ArchiveKey::new(&now) != *key {
            return Err(ImageStoreError::Changed(path.to_owned()));
        }
        if let Some(hint) = holds_layers(fresh.tree()) {
            return Err(ImageStoreError::Layers { path: path.to_owned(), hint });
        }
        let stored = self.import_layer(fresh, &unpacked, blob)?;
        progress.layer_done(0, LayerOutcome::Fetched);
        Ok(stored)
    }

    /// Feeds a file to the unpacker and to the hash.
    fn read(
        &self,
        file: &mut File,
        fresh: &StagedLayer,
        compression: Compression,
        progress: &dyn PullProgress,
        archive: impl Fn(UnpackError) -> ImageStoreError,
        missing: impl Fn(io::Error) -> ImageStoreError,
    ) -> Result<(Descriptor, UnpackedLayer), ImageStoreError> {
        let failed = |error| self.failed(error);
        let mut unpacking = self.unpacker.start_form(fresh.tree(), compression, ArchiveForm::Root).map_err(&archive)?;
        let mut blob = fresh.file(BLOB).map_err(failed)?;
        let (mut state, mut length, mut buffer) = (Hasher::default(), 0_u64, vec![0; BUFFER]);
        loop {
            let read = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(missing(error)),
            };
            if !self.has_room().map_err(failed)? {
                return Err(self.full());
            }
            let bytes = buffer.get(..read).unwrap_or_default();
            length = length.saturating_add(read as u64);
            if unpacking.write_all(bytes).is_err() {
                // `finish` returns the unpacker's error.
                break;
            }
            state.write_all(bytes).and_then(|()| blob.write_all(bytes)).map_err(failed)?;
            progress.fetched(0, length);
            progress.unpacked(0, unpacking.progress());
        }
        let unpacked = unpacking.finish().map_err(archive)?;
        Ok((Descriptor::new(media_type(compression), state.digest(), length), unpacked))
    }

    /// Records an image of one layer and its blob.
    fn import_layer(
        &self,
        fresh: StagedLayer,
        unpacked: &UnpackedLayer,
        blob: Descriptor,
    ) -> Result<StoredImage, ImageStoreError> {
        let failed = |error| self.failed(error);
        let layer = layer(blob, unpacked.diff_id, ArchiveForm::Root);
        self.keep_written(fresh, unpacked, &layer)?;
        let bytes = generated(&[layer.diff_id]).map_err(failed)?;
        let described = ParsedConfig::read(&bytes)?;
        self.write_small_blob(&bytes)?;
        let config = Descriptor::of(media::CONFIG, &bytes);
        let read = ImageManifest::new(config, vec![layer.blob.clone()]);
        let manifest = Manifest::written(&read).map_err(failed)?;
        self.finish(&UnrecordedImage { manifest: &manifest, read: &read, described, layers: vec![layer] }, None)
    }
}

/// Detects the compression of a file.
fn sniff(file: &mut File) -> io::Result<Compression> {
    let mut start = Vec::new();
    file.take(4).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(Compression::of(&start))
}

/// The media type of a layer.
pub(super) fn media_type(compression: Compression) -> &'static str {
    match compression {
        Compression::None => media::LAYER,
        Compression::Gzip => media::LAYER_GZIP,
        Compression::Zstd => media::LAYER_ZSTD,
    }
}

/// The reference prefix for an archive that turns out to contain layers instead of a root file system.
fn holds_layers(tree: &OwnedFd) -> Option<&'static str> {
    let there = |name: &str| rustix::fs::statat(tree, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    if ["usr", "bin", "etc"].into_iter().any(there) {
        None
    } else if there("oci-layout") {
        Some("oci-archive")
    } else {
        there("manifest.json").then_some("docker-archive")
    }
}
