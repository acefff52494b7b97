//! Pushes an image, byte for byte as received.

use std::collections::HashSet;
use std::io;

use super::{BLOBS, ImageStore, files};
use crate::digest::Digest;
use crate::error::ImageStoreError;
use crate::manifest::Descriptor;
use crate::progress::{LayerOutcome, PullProgress};
use crate::source::{ImageTarget, SourceError};

// === impl ImageStore ===

impl ImageStore {
    /// Pushes what the target lacks, then the manifest.
    pub fn push(
        &self,
        digest: Digest,
        target: &dyn ImageTarget,
        progress: &dyn PullProgress,
    ) -> Result<(), ImageStoreError> {
        let _held = self.hold(digest)?;
        let record = self.record(digest)?.ok_or_else(|| ImageStoreError::Unknown(digest.to_string()))?;
        let layers: Vec<_> = record.layers.iter().map(|layer| layer.blob.clone()).collect();
        progress.begin(&layers);
        let mut sent = HashSet::new();
        for (number, layer) in layers.iter().enumerate() {
            let how = if sent.insert(layer.digest) { self.send(layer, target)? } else { LayerOutcome::AlreadyPresent };
            progress.fetched(number, layer.size);
            progress.layer_done(number, how);
        }
        self.send(&record.described, target)?;
        let path = format!("{BLOBS}/{}", digest.hex());
        let manifest = files::read(&self.handle, &path).map_err(|error| self.failed(error))?;
        let manifest = manifest.ok_or(SourceError::Missing { what: "manifest", digest })?;
        Ok(target.manifest(&record.media_type, &manifest)?)
    }

    fn send(&self, blob: &Descriptor, target: &dyn ImageTarget) -> Result<LayerOutcome, ImageStoreError> {
        if target.has(blob)? {
            return Ok(LayerOutcome::AlreadyPresent);
        }
        let path = format!("{BLOBS}/{}", blob.digest.hex());
        let open = || files::open(&self.handle, &path);
        if open().map_err(|error| self.failed(error))?.is_none() {
            return Err(SourceError::Missing { what: "blob", digest: blob.digest }.into());
        }
        target.blob(blob, &|| match open()? {
            Some(file) => Ok(Box::new(file)),
            None => Err(io::ErrorKind::NotFound.into()),
        })?;
        Ok(LayerOutcome::Fetched)
    }
}
