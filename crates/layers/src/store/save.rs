//! An image of what a sandbox has changed: the layers of another, and one more.

use std::fs::File;
use std::io::{self, Write};

use super::layer::{BLOB, layer};
use super::pull::Complete;
use super::record::{Layer, Record};
use super::{BLOBS, Store, Stored, files};
use crate::archive::Form;
use crate::config::{self, Config, Described};
use crate::digest::{Digest, Hasher};
use crate::error::{StoreError, is_full};
use crate::manifest::{Descriptor, ImageManifest, Manifest, media};
use crate::progress::Progress;
use crate::save::{self, Changes};
use crate::source::SourceError;
use crate::unpack::{Compression, UnpackError, Unpacking};

/// How hard a layer is compressed: who saves waits for it.
const EFFORT: u32 = 4;

/// Where the bytes of a compressed layer go.
struct Sink<'a> {
    store: &'a Store,
    blob: File,
    state: Hasher,
    length: u64,
    unpacking: Unpacking,
    /// Whether the unpacker takes no more, and can say why.
    refused: bool,
}

// === impl Store ===

impl Store {
    /// Makes an image of what was changed over another, or over nothing. The name stands for it from then on. Everything
    /// is unpacked as it would be by anybody else who gets the image.
    pub fn save(
        &self,
        base: Option<Digest>,
        changes: &Changes,
        config: &Config,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<Stored, StoreError> {
        super::place_of(name)?;
        let _adding = self.add()?;
        let _held = base.map(|base| self.hold(base)).transpose()?;
        let base = base.map(|base| self.base(base)).transpose()?;
        let (layer, skipped) = self.save_layer(changes)?;
        if skipped > 0 {
            progress.said(&format!("{skipped} sockets or devices are left out"));
        }
        let (mut layers, original) = base.map_or_else(Default::default, |(record, bytes)| (record.layers, Some(bytes)));
        for layer in &mut layers {
            layer.blob.media_type = plain(&layer.blob.media_type).to_owned();
        }
        layers.push(layer);
        let diff_ids: Vec<_> = layers.iter().map(|layer| layer.diff_id).collect();
        let bytes = config::changed(original.as_deref(), config, &diff_ids).map_err(|error| self.failed(error))?;
        let described = Described::read(&bytes)?;
        self.keep_small(&bytes)?;
        let blobs = layers.iter().map(|layer| layer.blob.clone()).collect();
        let read = ImageManifest::new(Descriptor::of(media::CONFIG, &bytes), blobs);
        let manifest = Manifest::written(&read).map_err(|error| self.failed(error))?;
        // What is saved can be pulled again.
        manifest.read()?;
        self.finish(&Complete { manifest: &manifest, read: &read, described, layers }, Some(name))
    }

    /// An image to build on, with its configuration.
    fn base(&self, digest: Digest) -> Result<(Record, Vec<u8>), StoreError> {
        let record = self.record(digest)?.ok_or_else(|| StoreError::Unknown(digest.to_string()))?;
        let described = record.described.digest;
        let bytes = files::read(&self.handle, &format!("{BLOBS}/{}", described.hex()));
        let bytes = bytes.map_err(|error| self.failed(error))?;
        Ok((record, bytes.ok_or(SourceError::Missing { what: "configuration", digest: described })?))
    }

    /// Writes a layer, and unpacks it on its way. How many things were left out.
    fn save_layer(&self, changes: &Changes) -> Result<(Layer, u64), StoreError> {
        let failed = |error| self.failed(error);
        let unpack = |source| StoreError::Unpack { blob: Digest::of(b""), source };
        let fresh = self.fresh().map_err(failed)?;
        let unpacking = self.unpacker.start(fresh.tree(), Compression::Gzip).map_err(unpack)?;
        let (blob, state) = (fresh.file(BLOB).map_err(failed)?, Hasher::default());
        let sink = Sink { store: self, blob, state, length: 0, unpacking, refused: false };
        // Without a name and a time in it, so that the same changes are the same bytes.
        let packing = flate2::GzBuilder::new().write(sink, flate2::Compression::new(EFFORT));
        let mut packing = io::BufWriter::with_capacity(256 << 10, packing);
        let outcome = save::layer(changes, &mut packing);
        let refused = packing.get_ref().get_ref().refused;
        let saved = match outcome {
            Ok(saved) => saved,
            Err(_) if refused => {
                let (packing, _) = packing.into_parts();
                return Err(unpack(refusal(packing)));
            }
            Err(error) if is_full(&error.source) => return Err(self.full()),
            Err(error) => {
                let entry = String::from_utf8_lossy(&error.entry).into_owned();
                return Err(StoreError::Save { entry, source: error.source });
            }
        };
        let packing = packing.into_inner().map_err(|error| failed(error.into_error()))?;
        let Sink { state, length, unpacking, .. } = packing.finish().map_err(failed)?;
        let unpacked = unpacking.finish().map_err(unpack)?;
        let digest = state.digest();
        let blob = Descriptor::new(media::LAYER_GZIP, digest, length);
        let layer = layer(blob, unpacked.diff_id, Form::Layer);
        self.keep_written(fresh, &unpacked, &layer)?;
        Ok((layer, saved.skipped))
    }
}

/// What the unpacker says that takes no more.
fn refusal(packing: flate2::write::GzEncoder<Sink<'_>>) -> UnpackError {
    let early = || UnpackError::Process(io::ErrorKind::BrokenPipe.into());
    match packing.finish() {
        Ok(sink) => sink.unpacking.finish().err().unwrap_or_else(early),
        Err(error) => UnpackError::Process(error),
    }
}

/// What a layer is called in a manifest of ours, whoever wrote it.
fn plain(media_type: &str) -> &str {
    match media_type {
        media::DOCKER_LAYER => media::LAYER,
        media::DOCKER_LAYER_GZIP => media::LAYER_GZIP,
        media::DOCKER_LAYER_ZSTD => media::LAYER_ZSTD,
        other => other,
    }
}

// === impl Sink ===

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.refused {
            // So that the end can be written, and the unpacker be asked.
            return Ok(bytes.len());
        }
        if !self.store.has_room()? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.state.write_all(bytes)?;
        self.blob.write_all(bytes)?;
        self.length = self.length.saturating_add(bytes.len() as u64);
        self.unpacking.write_all(bytes).inspect_err(|_| self.refused = true)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
