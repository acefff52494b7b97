//! What the store takes on the disk.

use super::record::Records;
use super::users::Locked;
use super::{BLOBS, LAYERS, PARTIAL, Store, files};
use crate::digest::Digest;
use crate::error::StoreError;
use crate::lock;

/// What the store takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many images there are.
    pub images: u64,
    /// How many of them are in use.
    pub used: u64,
    /// How many layers there are.
    pub layers: u64,
    /// What unpacked layers take, in bytes.
    pub unpacked: u64,
    /// What blobs take, in bytes.
    pub blobs: u64,
    /// What pulls that did not end have left, in bytes.
    pub partial: u64,
    /// How much of all that would go if everything that is not in use were removed, in bytes.
    pub reclaimable: u64,
}

// === impl Store ===

impl Store {
    /// What everything takes.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        let failed = |error| self.failed(error);
        let records = self.records()?;
        let images = records.read.len().saturating_add(records.damaged.len()) as u64;
        let read = records.read.into_iter().filter(|record| self.in_use(record.digest)).collect();
        let used = Records { read, damaged: Vec::new() };
        let (layers, blobs) = (used.places(), used.blobs());
        let mut usage = Usage { images, used: used.read.len() as u64, ..Usage::default() };
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

    /// Whether something runs from an image, or needs it.
    pub fn in_use(&self, digest: Digest) -> bool {
        // Who needs it durably is known at once.
        if self.users(digest).map_or(true, |users| !users.is_empty()) {
            return true;
        }
        match self.locked(digest, lock::alone) {
            Ok(Locked::Held(held)) => {
                let used = held.users().map_or(true, |users| !users.is_empty());
                held.end();
                used
            }
            Ok(Locked::Gone) => false,
            Ok(Locked::Used) | Err(_) => true,
        }
    }
}
