//! Stops and removes sandboxes.

use std::path::Path;
use std::time::{Duration, Instant};

use carrel_control::provider::{Place, ProviderError};
use carrel_sandbox::{DiskError, PersistentDisk};
use carrel_shim_client::messages::FactKind;
use carrel_shim_client::{DiscoveredSandbox, Liveness};

use crate::discovery::{is_incarnation, persistent_record};
use crate::pidfd::AsyncPidFd;
use crate::reap::disk_of;
use crate::start::is_stopped_error;
use crate::{LocalInner, blocking, failed, manifests, paths};

/// How long a shim may take beyond the grace period before it is killed.
const EXTRA_WAIT: Duration = Duration::from_secs(5);
/// The minimum grace period of services, unless the main sandbox has none.
const MIN_SERVICE_GRACE: Duration = Duration::from_millis(500);
/// How many times to retry what another process blocks briefly.
const MAX_ATTEMPTS: u32 = 8;
/// The first retry delay; it doubles.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(5);

impl LocalInner {
    /// Stops an incarnation, if it runs.
    pub(crate) async fn stop(&self, place: &Place, grace: Duration) -> Result<(), ProviderError> {
        self.pending_starts.cancel(&place.incarnation);
        let _lock = self.locks.lock(&paths::name(&place.sandbox)).await;
        self.stop_incarnation(place, grace).await
    }

    /// Removes what is left of an incarnation, but not its disk.
    pub(crate) async fn forget(&self, place: &Place) -> Result<(), ProviderError> {
        let _lock = self.locks.lock(&paths::name(&place.sandbox)).await;
        self.collect(place).await
    }

    /// Removes everything but the logs.
    pub(crate) async fn remove(&self, place: &Place) -> Result<(), ProviderError> {
        self.pending_starts.cancel(&place.incarnation);
        let _lock = self.locks.lock(&paths::name(&place.sandbox)).await;
        self.end_reader(place).await?;
        self.stop_incarnation(place, Duration::ZERO).await?;
        self.collect(place).await?;
        // A daemon that died may have left an earlier incarnation.
        self.clear(place).await?;
        self.remove_services(place).await?;
        remove_disk(&self.paths.disk(place)?).await?;
        let (directory, disk) = (self.paths.manifests(), place.disk.clone());
        blocking(move || manifests::remove(&directory, &disk).map_err(failed)).await?;
        self.running.release_disk(place);
        Ok(())
    }

    /// Stops an incarnation, if it runs, and then its services, which it may need until it has stopped.
    pub(crate) async fn stop_incarnation(&self, place: &Place, grace: Duration) -> Result<(), ProviderError> {
        let until = Instant::now() + grace;
        // Cancelled first, so that the supervisors do not react to the stop.
        let supervised = self.supervised.cancel(&place.incarnation);
        let ended = self.stop_main(place, grace).await;
        let left = until.saturating_duration_since(Instant::now()).max(grace.min(MIN_SERVICE_GRACE));
        ended.and(self.stop_services(place, supervised, left).await)
    }

    async fn stop_main(&self, place: &Place, grace: Duration) -> Result<(), ProviderError> {
        let found = self.find(&place.sandbox).await?.filter(|found| is_incarnation(found, place));
        if let Some(found) = found {
            self.stop_found(&found, grace).await?;
        }
        self.running.remove(place).await;
        Ok(())
    }

    /// Stops a found sandbox. When this returns, nothing of it runs, and its journal has its end.
    pub(crate) async fn stop_found(&self, found: &DiscoveredSandbox, grace: Duration) -> Result<(), ProviderError> {
        let handle = found.record.as_ref().and_then(|record| record.shim_handle());
        let Some(process) = handle.map(AsyncPidFd::new).transpose().map_err(failed)? else {
            return if has_recorded_end(found) { Ok(()) } else { self.sweep_found(found).await };
        };
        let result = async {
            match found.connect().await {
                // Whether it answers or exits without an answer: the exit of its process counts.
                Ok(mut client) => client.stop(grace).await.is_ok(),
                Err(error) => is_stopped_error(&error),
            }
        };
        let result = tokio::time::timeout(grace.saturating_add(EXTRA_WAIT), result).await.unwrap_or(false);
        if result && process.exits_within(EXTRA_WAIT).await {
            return Ok(());
        }
        tracing::warn!(directory = %found.directory.display(), "a shim does not exit; killing it");
        process.kill().map_err(failed)?;
        if !process.exits_within(EXTRA_WAIT).await {
            return Err(failed("the shim of the sandbox does not exit"));
        }
        self.sweep_found(found).await
    }

    /// Has the end of a dead shim recorded. Errors of other sandboxes in the sweep do not count.
    async fn sweep_found(&self, found: &DiscoveredSandbox) -> Result<(), ProviderError> {
        let directory = found.directory.clone();
        let swept = blocking(move || carrel_shim::sweep_directory(&directory).map_err(failed)).await;
        let name = found.record.as_ref().map(|record| record.name.clone());
        let (home, Some(name)) = (self.paths.home().to_owned(), name) else { return swept };
        match blocking(move || carrel_shim_client::find(&home, &name).map_err(failed)).await? {
            Some(again) if !has_recorded_end(&again) => swept,
            _ => Ok(()),
        }
    }

    /// Removes what is left of an incarnation, but not its disk. It must not be running.
    pub(crate) async fn collect(&self, place: &Place) -> Result<(), ProviderError> {
        let found = self.find(&place.sandbox).await?;
        // If another incarnation has the name, nothing of this one is left.
        let is_other = found.is_some_and(|found| found.record.is_some() && !is_incarnation(&found, place));
        if !is_other {
            collect(&self.paths.directory(&place.sandbox), &place.incarnation).await?;
        }
        self.collect_services(place).await?;
        self.running.release_incarnation(place);
        Ok(())
    }

    /// The sandbox that has this name and runs on another disk, which the store does not know: an orphan.
    pub(crate) async fn orphan_of_that_name(&self, place: &Place) -> Result<Option<String>, ProviderError> {
        let Some(found) = self.find(&place.sandbox).await? else { return Ok(None) };
        let record = persistent_record(&found).filter(|_| found.life == Liveness::Running);
        Ok(record.and_then(|record| disk_of(&self.paths, record)).filter(|disk| *disk != place.disk))
    }

    /// Stops and removes the persistent sandbox with this name, of any incarnation, but no orphan.
    pub(crate) async fn clear(&self, place: &Place) -> Result<(), ProviderError> {
        if self.orphan_of_that_name(place).await?.is_some() {
            return Ok(());
        }
        self.clear_services(place).await?;
        let Some(found) = self.find(&place.sandbox).await? else { return Ok(()) };
        let Some(record) = persistent_record(&found) else { return Ok(()) };
        tracing::info!(sandbox = %place.sandbox, incarnation = record.incarnation, "removing an earlier incarnation");
        self.stop_found(&found, Duration::ZERO).await?;
        collect(&found.directory, &record.incarnation).await
    }
}

/// Whether the journal of a dead sandbox has its end.
fn has_recorded_end(found: &DiscoveredSandbox) -> bool {
    match &found.life {
        Liveness::Dead { facts, .. } => {
            facts.last().is_some_and(|fact| matches!(fact.kind, FactKind::Ended | FactKind::Failed))
        }
        Liveness::Starting | Liveness::Running => false,
    }
}

/// Removes the directory of a stopped incarnation.
pub(crate) async fn collect(directory: &Path, incarnation: &str) -> Result<(), ProviderError> {
    let is_gone = |directory: &Path, incarnation: &str| {
        let (directory, incarnation) = (directory.to_owned(), incarnation.to_owned());
        blocking(move || carrel_shim::collect_incarnation(&directory, &incarnation).map_err(failed))
    };
    for attempt in 0..MAX_ATTEMPTS {
        // Another process may be looking at it.
        if is_gone(directory, incarnation).await? {
            return Ok(());
        }
        tokio::time::sleep(FIRST_RETRY_DELAY * 2u32.saturating_pow(attempt)).await;
    }
    Err(failed("failed to remove the sandbox: it is still running"))
}

/// Removes a disk with its content. It may be in use for a moment longer.
pub(crate) async fn remove_disk(directory: &Path) -> Result<(), ProviderError> {
    let mut attempt = 0;
    loop {
        let disk = directory.to_owned();
        let removed = tokio::task::spawn_blocking(move || PersistentDisk::remove(&disk)).await.map_err(failed)?;
        match removed {
            Ok(()) => return Ok(()),
            Err(DiskError::Directory { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(DiskError::InUse(_)) if attempt < MAX_ATTEMPTS => {}
            Err(error) => return Err(failed(error)),
        }
        tokio::time::sleep(FIRST_RETRY_DELAY * 2u32.saturating_pow(attempt)).await;
        attempt += 1;
    }
}
