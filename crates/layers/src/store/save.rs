//! Saves the changes of a sandbox as an image: the layers of its base and one more.

use std::fs::File;
use std::io::{self, Write};

use super::layer::{BLOB, layer};
use super::pull::UnrecordedImage;
use super::record::{ImageLayer, ImageRecord};
use super::{BLOBS, ImageStore, StoredImage, files};
use crate::archive::ArchiveForm;
use crate::config::{self, ImageConfig, ParsedConfig};
use crate::digest::{Digest, Hasher};
use crate::error::{ImageStoreError, is_full};
use crate::manifest::{Descriptor, ImageManifest, Manifest, media};
use crate::progress::PullProgress;
use crate::save::{self, SandboxChanges};
use crate::source::SourceError;
use crate::unpack::{Compression, UnpackError, UnpackProcess};

/// The compression level: low, because the user waits.
const EFFORT: u32 = 4;

/// Receives a compressed layer: writes, hashes and unpacks it.
struct LayerSink<'a> {
    store: &'a ImageStore,
    blob: File,
    state: Hasher,
    length: u64,
    unpacking: UnpackProcess,
    /// Whether the unpacker failed.
    refused: bool,
}

// === impl ImageStore ===

impl ImageStore {
    /// Creates an image from changes on top of a base, or on nothing, and names it. The new layer is unpacked like that
    /// of any other image.
    pub fn save(
        &self,
        base: Option<Digest>,
        changes: &SandboxChanges,
        config: &ImageConfig,
        name: &str,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage, ImageStoreError> {
        super::place_of(name)?;
        let _adding = self.add()?;
        let _held = base.map(|base| self.hold(base)).transpose()?;
        let base = base.map(|base| self.base(base)).transpose()?;
        let (layer, skipped) = self.save_layer(changes)?;
        if skipped > 0 {
            progress.message(&format!("skipped {skipped} sockets or devices"));
        }
        let (mut layers, original) = base.map_or_else(Default::default, |(record, bytes)| (record.layers, Some(bytes)));
        for layer in &mut layers {
            layer.blob.media_type = plain(&layer.blob.media_type).to_owned();
        }
        layers.push(layer);
        let diff_ids: Vec<_> = layers.iter().map(|layer| layer.diff_id).collect();
        let bytes = config::changed(original.as_deref(), config, &diff_ids).map_err(|error| self.failed(error))?;
        let described = ParsedConfig::read(&bytes)?;
        self.write_small_blob(&bytes)?;
        let blobs = layers.iter().map(|layer| layer.blob.clone()).collect();
        let read = ImageManifest::new(Descriptor::of(media::CONFIG, &bytes), blobs);
        let manifest = Manifest::written(&read).map_err(|error| self.failed(error))?;
        // A saved image can be pulled again.
        manifest.read()?;
        self.finish(&UnrecordedImage { manifest: &manifest, read: &read, described, layers }, Some(name))
    }

    /// A base image with its configuration.
    fn base(&self, digest: Digest) -> Result<(ImageRecord, Vec<u8>), ImageStoreError> {
        let record = self.record(digest)?.ok_or_else(|| ImageStoreError::Unknown(digest.to_string()))?;
        let described = record.described.digest;
        let bytes = files::read(&self.handle, &format!("{BLOBS}/{}", described.hex()));
        let bytes = bytes.map_err(|error| self.failed(error))?;
        Ok((record, bytes.ok_or(SourceError::Missing { what: "configuration", digest: described })?))
    }

    /// Writes and unpacks a layer. Returns the number of skipped files.
    fn save_layer(&self, changes: &SandboxChanges) -> Result<(ImageLayer, u64), ImageStoreError> {
        let failed = |error| self.failed(error);
        let unpack = |source| ImageStoreError::Unpack { blob: Digest::of(b""), source };
        let fresh = self.fresh().map_err(failed)?;
        let unpacking = self.unpacker.start(fresh.tree(), Compression::Gzip).map_err(unpack)?;
        let (blob, state) = (fresh.file(BLOB).map_err(failed)?, Hasher::default());
        let sink = LayerSink { store: self, blob, state, length: 0, unpacking, refused: false };
        // Without name and time in the gzip header, so that the same changes give the same bytes.
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
                return Err(ImageStoreError::Save { entry, source: error.source });
            }
        };
        let packing = packing.into_inner().map_err(|error| failed(error.into_error()))?;
        let LayerSink { state, length, unpacking, .. } = packing.finish().map_err(failed)?;
        let unpacked = unpacking.finish().map_err(unpack)?;
        let digest = state.digest();
        let blob = Descriptor::new(media::LAYER_GZIP, digest, length);
        let layer = layer(blob, unpacked.diff_id, ArchiveForm::Layer);
        self.keep_written(fresh, &unpacked, &layer)?;
        Ok((layer, saved.skipped))
    }
}

/// The error of an unpacker that accepts no more input.
fn refusal(packing: flate2::write::GzEncoder<LayerSink<'_>>) -> UnpackError {
    let early = || UnpackError::Process(io::ErrorKind::BrokenPipe.into());
    match packing.finish() {
        Ok(sink) => sink.unpacking.finish().err().unwrap_or_else(early),
        Err(error) => UnpackError::Process(error),
    }
}

/// The OCI media type for a Docker one.
fn plain(media_type: &str) -> &str {
    match media_type {
        media::DOCKER_LAYER => media::LAYER,
        media::DOCKER_LAYER_GZIP => media::LAYER_GZIP,
        media::DOCKER_LAYER_ZSTD => media::LAYER_ZSTD,
        other => other,
    }
}

// === impl LayerSink ===

impl Write for LayerSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.refused {
            // Accept the rest, so that `finish` can return the unpacker's error.
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
