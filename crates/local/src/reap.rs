//! Removes leftovers of deleted sandboxes from this host, and quarantines disks that the store does not know.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_control::provider::{InUse, InUseSource, ProviderError, Reaped, UnknownIncarnation};
use carrel_layout::ID_RANGES;
use carrel_shim_client::{DiscoveredSandbox, Liveness, SandboxRecord};

use crate::discovery::persistent_record;
use crate::paths::{HomePaths, is_disk_name};
use crate::stop::{collect, remove_disk};
use crate::{LocalInner, blocking, failed, manifests, services};

/// Everything that a home has, at one time.
pub(crate) struct Inventory {
    /// The persistent sandboxes and their services.
    pub(crate) found: Vec<DiscoveredSandbox>,
    /// The names of all disks, including those that only services have.
    pub(crate) disks: BTreeSet<String>,
}

/// What the control plane knows of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOwner {
    /// It belongs to a sandbox.
    Sandbox,
    /// It belonged to a sandbox that was deleted.
    Deleted,
    Unknown,
}

impl LocalInner {
    /// Lists everything that the home has.
    pub(crate) async fn inventory(&self) -> Result<Inventory, ProviderError> {
        self.check_home()?;
        let home = self.paths.home().to_owned();
        let found = blocking(move || carrel_shim_client::sandboxes(&home).map_err(failed)).await?;
        let mut disks: BTreeSet<String> = names(self.paths.disks()).await?.into_iter().collect();
        disks.extend(names(self.paths.services()).await?);
        // `lost+found` belongs to the file system.
        disks.retain(|name| is_disk_name(name));
        Ok(Inventory { found: found.into_iter().filter(|one| persistent_record(one).is_some()).collect(), disks })
    }

    /// Removes the leftovers of deleted sandboxes, and quarantines unknown disks. An error does not stop the rest.
    pub(crate) async fn reap(&self, in_use: &InUseSource) -> Result<Reaped, ProviderError> {
        // A sandbox is in the store before anything of it exists, so a disk that is listed first and then not in the store
        // is an orphan.
        let inventory = self.inventory().await?;
        let in_use = in_use();
        let mut reaped = Reaped::default();
        let (mut first, mut unknown) = (None, Vec::new());
        let mut count = |what: &str, outcome: Result<usize, ProviderError>| match outcome {
            Ok(more) => reaped.removed += more,
            Err(error) => {
                tracing::warn!(what, %error, "failed to remove leftovers of a sandbox; retrying later");
                first.get_or_insert(error);
            }
        };
        for one in &inventory.found {
            if let Some(record) = persistent_record(one) {
                count(&record.incarnation, self.reap_sandbox(one, record, &in_use).await);
                unknown.extend(self.unknown_incarnation(one, record, &in_use));
            }
        }
        // Directories of dead ephemeral sandboxes.
        count("directories", self.sweep().await);
        for disk in inventory.disks.iter().filter(|disk| !self.running.holds_disk(disk)) {
            match in_use.owner(disk) {
                // Known again, after another restore for example: a later quarantine starts anew.
                DiskOwner::Sandbox => count(disk, self.forget_orphan(disk).await.map(|()| 0)),
                DiskOwner::Deleted => count(disk, self.remove_unused(disk).await),
                DiskOwner::Unknown => match self.quarantine(&inventory, disk).await {
                    Ok(true) => reaped.quarantined.push(disk.clone()),
                    Ok(false) => {}
                    Err(error) => count(disk, Err(error)),
                },
            }
        }
        count("groups", blocking(|| carrel_shim::sweep_groups(Path::new(ID_RANGES)).map_err(failed)).await);
        reaped.unknown_incarnations = unknown;
        first.map_or(Ok(reaped), Err)
    }

    /// The incarnation, if it runs on the disk of a known sandbox and the store does not know it.
    fn unknown_incarnation(
        &self,
        found: &DiscoveredSandbox,
        record: &SandboxRecord,
        in_use: &InUse,
    ) -> Option<UnknownIncarnation> {
        let disk = disk_of(&self.paths, record)?;
        let is_unknown = found.life == Liveness::Running
            && record.create.network_of.is_none()
            && !in_use.incarnations.contains(&record.incarnation)
            && matches!(in_use.owner(&disk), DiskOwner::Sandbox);
        is_unknown.then(|| UnknownIncarnation { disk, incarnation: record.incarnation.clone() })
    }

    /// Removes the leftovers of an incarnation that is not current.
    async fn reap_sandbox(
        &self,
        found: &DiscoveredSandbox,
        record: &SandboxRecord,
        in_use: &InUse,
    ) -> Result<usize, ProviderError> {
        let start = services::main_incarnation(record);
        if in_use.incarnations.contains(start) {
            return Ok(0);
        }
        let disk = disk_of(&self.paths, record);
        match disk.as_deref().map(|disk| in_use.owner(disk)) {
            Some(DiskOwner::Unknown) => return Ok(0),
            Some(DiskOwner::Sandbox) | None if found.life == Liveness::Running => {
                // The store is older than this incarnation, which the control plane adopts.
                return Ok(0);
            }
            Some(DiskOwner::Sandbox | DiskOwner::Deleted) | None => {}
        }
        // A concurrent operation may claim it.
        let _lock = self.locks.lock(&record.name).await;
        if self.running.holds_incarnation(start) {
            return Ok(0);
        }
        self.stop_found(found, Duration::ZERO).await?;
        collect(&found.directory, &record.incarnation).await?;
        Ok(1)
    }

    /// Removes a disk with everything that belongs to it. Nothing may run on it.
    pub(crate) async fn remove_unused(&self, disk: &str) -> Result<usize, ProviderError> {
        let services = services::remove_disks(&self.paths.services().join(disk)).await?;
        remove_disk(&self.paths.disks().join(disk)).await?;
        let (directory, disk) = (self.paths.manifests(), disk.to_owned());
        blocking(move || manifests::remove(&directory, &disk).map_err(failed)).await?;
        Ok(services + 1)
    }
}

/// The disk that a sandbox runs on, or that of a service's main sandbox.
pub(crate) fn disk_of(paths: &HomePaths, record: &SandboxRecord) -> Option<String> {
    let directory = &record.create.kept_disk.as_ref()?.directory.0;
    let below = |root: PathBuf| {
        let name = directory.strip_prefix(root).ok()?.components().next()?;
        name.as_os_str().to_str().map(str::to_owned)
    };
    below(paths.disks()).or_else(|| below(paths.services()))
}

/// The names in a directory; none if it does not exist.
pub(crate) async fn names(directory: PathBuf) -> Result<Vec<String>, ProviderError> {
    blocking(move || {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(format_args!("{}: {error}", directory.display()))),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(failed)?.file_name().into_string().ok());
        }
        Ok(names)
    })
    .await
}

/// Classifies disks by what the store knows of them.
pub(crate) trait DiskOwners {
    fn owner(&self, disk: &str) -> DiskOwner;
}

impl DiskOwners for InUse {
    fn owner(&self, disk: &str) -> DiskOwner {
        if self.disks.contains(disk) {
            DiskOwner::Sandbox
        } else if self.deleted.contains(disk) {
            DiskOwner::Deleted
        } else {
            DiskOwner::Unknown
        }
    }
}
