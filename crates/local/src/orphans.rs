//! Orphans: disks that the store does not know, kept until the operator decides, or for a configured time.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use carrel_control::provider::{InUseSource, Orphan, ProviderError};
use carrel_shim_client::Liveness;
use carrel_store::Timestamp;

use crate::discovery::persistent_record;
use crate::paths::is_disk_name;
use crate::reap::{DiskOwner, DiskOwners, Inventory, disk_of};
use crate::stop::collect;
use crate::{LocalInner, blocking, failed, manifests, services};

/// How long a sandbox on an orphan has to exit when the orphan is removed.
const GRACE: Duration = Duration::from_secs(10);

impl LocalInner {
    /// Lists the orphans.
    pub(crate) async fn orphans(&self, in_use: &InUseSource) -> Result<Vec<Orphan>, ProviderError> {
        let inventory = self.inventory().await?;
        let in_use = in_use();
        let unknown = inventory.disks.iter().filter(|disk| in_use.owner(disk) == DiskOwner::Unknown);
        let mut orphans = Vec::new();
        for disk in unknown {
            orphans.extend(self.describe(&inventory, disk).await?.map(|(_, orphan)| orphan));
        }
        Ok(orphans)
    }

    /// Quarantines a disk, and removes it when its time is up. Returns whether the disk was found just now.
    pub(crate) async fn quarantine(&self, inventory: &Inventory, disk: &str) -> Result<bool, ProviderError> {
        let Some((is_new, orphan)) = self.describe(inventory, disk).await? else { return Ok(false) };
        if !is_new && orphan.removed_at.is_some_and(|at| at <= now()) {
            tracing::warn!(disk, "removing a quarantined disk: its retention time is over");
            self.remove_orphan(disk).await?;
        }
        Ok(is_new)
    }

    /// Keeps an orphan from being removed.
    pub(crate) async fn release_orphan(&self, disk: &str) -> Result<(), ProviderError> {
        self.running.hold_disk(disk);
        self.forget_orphan(disk).await
    }

    /// Stops what runs on an orphan, and removes it with its disk.
    pub(crate) async fn remove_orphan(&self, disk: &str) -> Result<(), ProviderError> {
        if !is_disk_name(disk) {
            return Err(failed(format_args!("{disk:?} is not a valid disk name")));
        }
        for found in self.inventory().await?.found {
            let Some(record) =
                persistent_record(&found).filter(|record| disk_of(&self.paths, record).as_deref() == Some(disk))
            else {
                continue;
            };
            let _lock = self.locks.lock(&record.name).await;
            self.stop_found(&found, GRACE).await?;
            collect(&found.directory, &record.incarnation).await?;
        }
        self.remove_unused(disk).await?;
        self.forget_orphan(disk).await
    }

    /// Ends the quarantine of a disk.
    pub(crate) async fn forget_orphan(&self, disk: &str) -> Result<(), ProviderError> {
        let marker = self.paths.quarantine().join(disk);
        blocking(move || match std::fs::remove_file(&marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed(format_args!("{}: {error}", marker.display())))
            }
            _ => Ok(()),
        })
        .await
    }

    /// Describes an orphan, and returns whether it is new; `None` if it was removed since the inventory.
    async fn describe(&self, inventory: &Inventory, disk: &str) -> Result<Option<(bool, Orphan)>, ProviderError> {
        let is_on_it = |found: &&carrel_shim_client::DiscoveredSandbox| {
            let record =
                persistent_record(found).filter(|record| services::main_incarnation(record) == record.incarnation);
            found.life == Liveness::Running
                && record.and_then(|record| disk_of(&self.paths, record)).as_deref() == Some(disk)
        };
        let running =
            inventory.found.iter().find(is_on_it).and_then(persistent_record).map(|record| record.incarnation.clone());
        let (marker, manifests) = (self.paths.quarantine().join(disk), self.paths.manifests());
        let directories = [self.paths.disks().join(disk), self.paths.services().join(disk)];
        let (name, kept) = (disk.to_owned(), self.settings().orphans_kept);
        blocking(move || {
            let (is_new, since) =
                mark(&marker).map_err(|error| failed(format_args!("{}: {error}", marker.display())))?;
            // A removal deletes the disk and then the marker, which may have been written in between or afterwards.
            if !directories.iter().any(|directory| directory.exists()) {
                let _removed = std::fs::remove_file(&marker);
                return Ok(None);
            }
            let is_bounded = running.is_none() && !kept.is_zero();
            let removed_at = is_bounded.then(|| later(since, kept));
            let manifest = manifests::load(&manifests, &name);
            Ok(Some((is_new, Orphan { disk: name, manifest, running, since, removed_at })))
        })
        .await
    }
}

/// Stores the current time in a file, unless it has one; returns whether it is new, and the time.
fn mark(path: &Path) -> io::Result<(bool, Timestamp)> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            if let Ok(since) = text.trim().parse() {
                return Ok((false, Timestamp(since)));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let now = now();
    std::fs::write(path, format!("{}\n", now.0))?;
    Ok((true, now))
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

fn later(since: Timestamp, by: Duration) -> Timestamp {
    Timestamp(since.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_the_quarantine_is_stored_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let (is_new, since) = mark(&path).unwrap();
        assert!(is_new);
        assert_eq!(mark(&path).unwrap(), (false, since));
        // A power failure may have emptied it.
        std::fs::write(&path, "").unwrap();
        assert!(mark(&path).unwrap().0);
    }
}
