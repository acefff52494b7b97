//! Discovery of what exists of a sandbox on this host.

use std::time::Duration;

use carrel_control::provider::{Place, ProviderError};
use carrel_shim_client::{DiscoveredSandbox, Liveness, SandboxRecord};
use carrel_store::SandboxId;
use tokio::time::Instant;

use crate::{LocalInner, blocking, failed, paths};

/// How long a sandbox may be starting or stopping: a guest has 30 seconds to become ready.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Poll intervals: nothing notifies when a directory is released.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl LocalInner {
    /// What exists of a sandbox. Waits while it is starting or stopping.
    pub(crate) async fn find(&self, sandbox: &SandboxId) -> Result<Option<DiscoveredSandbox>, ProviderError> {
        self.find_by_name(&paths::name(sandbox)).await
    }

    /// The same, by the name of the sandbox.
    pub(crate) async fn find_by_name(&self, name: &str) -> Result<Option<DiscoveredSandbox>, ProviderError> {
        let (until, mut interval) = (Instant::now() + TIMEOUT, MIN_POLL_INTERVAL);
        loop {
            match self.find_now(name).await? {
                Some(found) if found.life == Liveness::Starting && Instant::now() < until => {}
                found => return Ok(found),
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// What exists of a sandbox right now.
    async fn find_now(&self, name: &str) -> Result<Option<DiscoveredSandbox>, ProviderError> {
        self.check_home()?;
        let (home, name) = (self.paths.home().to_owned(), name.to_owned());
        blocking(move || carrel_shim_client::find(&home, &name).map_err(failed)).await
    }

    /// Cleans up after dead shims.
    pub(crate) async fn sweep(&self) -> Result<usize, ProviderError> {
        let _lock = self.sweep_lock.lock().await;
        let sandboxes = self.paths.sandboxes();
        blocking(move || carrel_shim::sweep(&sandboxes).map_err(failed)).await
    }
}

/// The record of a persistent sandbox; ephemeral ones do not belong to the control plane.
pub(crate) fn persistent_record(found: &DiscoveredSandbox) -> Option<&SandboxRecord> {
    found.record.as_ref().filter(|record| record.lasting)
}

/// Whether a found sandbox is the given incarnation.
pub(crate) fn is_incarnation(found: &DiscoveredSandbox, place: &Place) -> bool {
    persistent_record(found).is_some_and(|record| record.incarnation == place.incarnation)
}
