//! Disk usage of the store.

use super::record::ImageRecords;
use super::references::ImageLock;
use super::{BLOBS, ImageStore, LAYERS, PARTIAL, files};
use crate::digest::Digest;
use crate::error::ImageStoreError;
use crate::lock;

/// Disk usage of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// The number of images.
    pub images: u64,
    /// How many images are in use.
    pub used: u64,
    /// The number of unpacked layers.
    pub layers: u64,
    /// Bytes of unpacked layers.
    pub unpacked: u64,
    /// Bytes of blobs.
    pub blobs: u64,
    /// Bytes of interrupted pulls.
    pub partial: u64,
    /// Bytes that `prune` with `unused` would free.
    pub reclaimable: u64,
}

// === impl ImageStore ===

impl ImageStore {
    /// Measures the disk usage.
    pub fn usage(&self) -> Result<StoreUsage, ImageStoreError> {
        let failed = |error| self.failed(error);
        let records = self.records()?;
        let images = records.read.len().saturating_add(records.damaged.len()) as u64;
        let read = records.read.into_iter().filter(|record| self.in_use(record.digest)).collect();
        let used = ImageRecords { read, damaged: Vec::new() };
        let (layers, blobs) = (used.places(), used.blobs());
        let mut usage = StoreUsage { images, used: used.read.len() as u64, ..StoreUsage::default() };
        for name in files::names(&self.handle, LAYERS).map_err(failed)? {
            let Ok(layer) = Digest::from_hex(&name) else { continue };
            let bytes = self.about(layer)?.map_or(0, |about| about.bytes);
            usage.layers += 1;
            usage.unpacked = usage.unpacked.saturating_add(bytes);
            if !layers.contains(&layer) {
                usage.reclaimable = usage.reclaimable.saturating_add(bytes);
            }
        }
        for (directory, partial) in [(BLOBS, false), (PARTIAL, true)] {
            for name in files::all_names(&self.handle, directory).map_err(failed)? {
                let bytes = files::size(&self.handle, &format!("{directory}/{name}")).map_err(failed)?.unwrap_or(0);
                let total = if partial { &mut usage.partial } else { &mut usage.blobs };
                *total = total.saturating_add(bytes);
                if partial || !Digest::from_hex(&name).is_ok_and(|blob| blobs.contains(&blob)) {
                    usage.reclaimable = usage.reclaimable.saturating_add(bytes);
                }
            }
        }
        Ok(usage)
    }

    /// Whether an image has users.
    pub fn in_use(&self, digest: Digest) -> bool {
        // Persistent users can be checked without the lock.
        if self.users(digest).map_or(true, |users| !users.is_empty()) {
            return true;
        }
        match self.locked(digest, lock::try_exclusive) {
            Ok(ImageLock::Held(held)) => {
                let used = held.users().map_or(true, |users| !users.is_empty());
                held.end();
                used
            }
            Ok(ImageLock::Gone) => false,
            Ok(ImageLock::Used) | Err(_) => true,
        }
    }
}
