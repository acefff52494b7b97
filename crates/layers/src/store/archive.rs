//! The tar of a root file system: it becomes an image of one layer.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::layer::{BLOB, Fresh, layer};
use super::pull::Complete;
use super::{ARCHIVES, Store, Stored, files};
use crate::archive::Form;
use crate::config::{Described, generated};
use crate::digest::{Digest, Hasher};
use crate::error::StoreError;
use crate::index::{self, Key};
use crate::manifest::{Descriptor, ImageManifest, Manifest, media};
use crate::progress::{Done, Progress};
use crate::unpack::{Compression, UnpackError, Unpacked};

/// How much is read at a time.
const BUFFER: usize = 256 << 10;

// === impl Store ===

impl Store {
    /// Takes the tar of a root file system, by gzip or zstd or as it is. It is read once: as long as the file is not
    /// changed, it is known which image it is.
    pub fn archive(&self, path: &Path, progress: &dyn Progress) -> Result<Stored, StoreError> {
        let failed = |error| self.failed(error);
        let missing = |source: io::Error| StoreError::Missing { path: path.to_owned(), source };
        let status = rustix::fs::stat(path).map_err(|errno| missing(errno.into()))?;
        if let Some(stored) = self.seen(&Key::new(&status))? {
            return Ok(stored);
        }
        index::settle(&status);
        // Nothing else than a file may be here by now, and opening it must not wait for anybody.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| missing(errno.into()))?;
        let status = rustix::fs::fstat(&file).map_err(|errno| missing(errno.into()))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(StoreError::Neither(path.to_owned()));
        }
        let key = Key::new(&status);
        let _adding = self.add()?;
        let archives = self.directory(ARCHIVES)?;
        let locked = index::lock(&archives, &key).map_err(failed)?;
        if let Some(stored) = self.seen(&key)? {
            return Ok(stored);
        }
        match self.import(path, &mut file.into(), &key, progress) {
            Ok(stored) => {
                locked.put(stored.digest).map_err(failed)?;
                Ok(stored)
            }
            Err(error) => {
                index::forget(&archives, &key);
                Err(error)
            }
        }
    }

    /// The image that a file is, if that is known and the image is here.
    fn seen(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        let archives = files::existing(&self.handle, ARCHIVES).map_err(|error| self.failed(error))?;
        let digest = archives.map_or(Ok(None), |archives| index::get(archives, key));
        match digest.map_err(|error| self.failed(error))? {
            Some(digest) => self.get(digest),
            None => Ok(None),
        }
    }

    /// Unpacks a file while it is digested, so that the tree is that of its digest whatever happens to the file.
    fn import(&self, path: &Path, file: &mut File, key: &Key, progress: &dyn Progress) -> Result<Stored, StoreError> {
        let failed = |error| self.failed(error);
        let missing = |source: io::Error| StoreError::Missing { path: path.to_owned(), source };
        let archive = |source| StoreError::Archive { path: path.to_owned(), source };
        let compression = sniff(file).map_err(missing)?;
        let size = file.metadata().map_err(missing)?.len();
        // What it is called is known when it was read.
        progress.begin(&[Descriptor::new(media_type(compression), Digest::of(b""), size)]);
        let fresh = self.fresh().map_err(failed)?;
        let (blob, unpacked) = self.read(file, &fresh, compression, progress, archive, missing)?;
        let now = rustix::fs::fstat(&*file).map_err(|errno| missing(errno.into()))?;
        if Key::new(&now) != *key {
            return Err(StoreError::Changed(path.to_owned()));
        }
        if let Some(hint) = holds_layers(fresh.tree()) {
            return Err(StoreError::Layers { path: path.to_owned(), hint });
        }
        let stored = self.import_layer(fresh, &unpacked, blob)?;
        progress.layer_done(0, Done::Fetched);
        Ok(stored)
    }

    /// Reads a file to its end, into the unpacker and beside it.
    fn read(
        &self,
        file: &mut File,
        fresh: &Fresh,
        compression: Compression,
        progress: &dyn Progress,
        archive: impl Fn(UnpackError) -> StoreError,
        missing: impl Fn(io::Error) -> StoreError,
    ) -> Result<(Descriptor, Unpacked), StoreError> {
        let failed = |error| self.failed(error);
        let mut unpacking = self.unpacker.start_form(fresh.tree(), compression, Form::Root).map_err(&archive)?;
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
                // It says why when it is asked how it ended.
                break;
            }
            state.write_all(bytes).and_then(|()| blob.write_all(bytes)).map_err(failed)?;
            progress.fetched(0, length);
            progress.unpacked(0, unpacking.progress());
        }
        let unpacked = unpacking.finish().map_err(archive)?;
        Ok((Descriptor::new(media_type(compression), state.digest(), length), unpacked))
    }

    /// Makes an image of a tree and the blob that it was unpacked from.
    fn import_layer(&self, fresh: Fresh, unpacked: &Unpacked, blob: Descriptor) -> Result<Stored, StoreError> {
        let failed = |error| self.failed(error);
        let layer = layer(blob, unpacked.diff_id, Form::Root);
        self.keep_written(fresh, unpacked, &layer)?;
        let bytes = generated(&[layer.diff_id]).map_err(failed)?;
        let described = Described::read(&bytes)?;
        self.keep_small(&bytes)?;
        let config = Descriptor::of(media::CONFIG, &bytes);
        let read = ImageManifest::new(config, vec![layer.blob.clone()]);
        let manifest = Manifest::written(&read).map_err(failed)?;
        self.finish(&Complete { manifest: &manifest, read: &read, described, layers: vec![layer] }, None)
    }
}

/// What a file is compressed by.
fn sniff(file: &mut File) -> io::Result<Compression> {
    let mut start = Vec::new();
    file.take(4).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(Compression::of(&start))
}

/// What a layer is called that is compressed so.
pub(super) fn media_type(compression: Compression) -> &'static str {
    match compression {
        Compression::None => media::LAYER,
        Compression::Gzip => media::LAYER_GZIP,
        Compression::Zstd => media::LAYER_ZSTD,
    }
}

/// How the file has to be named if its tree is that of an image in layers instead of a root file system.
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
