//! What there is of a sandbox: looked at, once nobody is at it who cannot be talked to.

use std::time::Duration;

use carrel_control::provider::{Place, ProviderError};
use carrel_shim_client::{Found, Life, SandboxRecord};
use carrel_store::SandboxId;
use tokio::time::Instant;

use crate::{LocalInner, blocking, failed, paths};

/// How long somebody may be at a sandbox: a guest has 30 seconds to become ready.
const TIMEOUT: Duration = Duration::from_secs(40);
/// How long to look away, at first and at last. Nobody tells when a directory is left.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl LocalInner {
    /// What there is of a sandbox. While it is being made, or is about to be gone, that is waited for.
    pub(crate) async fn find(&self, sandbox: &SandboxId) -> Result<Option<Found>, ProviderError> {
        self.find_by_name(&paths::name(sandbox)).await
    }

    /// The same by its name.
    pub(crate) async fn find_by_name(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        let (until, mut interval) = (Instant::now() + TIMEOUT, MIN_POLL_INTERVAL);
        loop {
            match self.find_now(name).await? {
                Some(found) if found.life == Life::Starting && Instant::now() < until => {}
                found => return Ok(found),
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// What there is of a sandbox at this moment.
    async fn find_now(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        self.check_home()?;
        let (home, name) = (self.paths.home().to_owned(), name.to_owned());
        blocking(move || carrel_shim_client::find(&home, &name).map_err(failed)).await
    }

    /// Sees to the end of what dead supervisors left.
    pub(crate) async fn sweep(&self) -> Result<usize, ProviderError> {
        let _lock = self.sweep_lock.lock().await;
        let sandboxes = self.paths.sandboxes();
        blocking(move || carrel_shim::sweep(&sandboxes).map_err(failed)).await
    }
}

/// The record of a sandbox that is the control plane's: one that lasts.
pub(crate) fn persistent_record(found: &Found) -> Option<&SandboxRecord> {
    found.record.as_ref().filter(|record| record.lasting)
}

/// Whether what was found is this start of the sandbox.
pub(crate) fn is_incarnation(found: &Found, place: &Place) -> bool {
    persistent_record(found).is_some_and(|record| record.incarnation == place.incarnation)
}
