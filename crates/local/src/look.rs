//! What there is of a sandbox: looked at, once nobody is at it who cannot be talked to.

use std::time::Duration;

use carrel_control::provider::{Place, ProviderError};
use carrel_shim_client::{Found, Life, SandboxRecord};
use carrel_store::SandboxId;
use tokio::time::Instant;

use crate::{Inner, blocking, failed, ground};

/// How long somebody may be at a sandbox: a guest has 30 seconds to become ready.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long to look away, at first and at last. Nobody tells when a directory is left.
const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(100);

impl Inner {
    /// What there is of a sandbox. While it is being made, or is about to be gone, that is waited for.
    pub(crate) async fn look(&self, sandbox: &SandboxId) -> Result<Option<Found>, ProviderError> {
        self.look_for(&ground::name(sandbox)).await
    }

    /// The same by its name.
    pub(crate) async fn look_for(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        let (until, mut pause) = (Instant::now() + PATIENCE, FIRST);
        loop {
            match self.glance(name).await? {
                Some(found) if found.life == Life::Starting && Instant::now() < until => {}
                seen => return Ok(seen),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST);
        }
    }

    /// What there is of a sandbox at this moment.
    async fn glance(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        self.check_home()?;
        let (home, name) = (self.ground.home().to_owned(), name.to_owned());
        blocking(move || carrel_shim_client::find(&home, &name).map_err(failed)).await
    }

    /// Sees to the end of what dead supervisors left.
    pub(crate) async fn sweep(&self) -> Result<usize, ProviderError> {
        let _turn = self.sweeping.lock().await;
        let sandboxes = self.ground.sandboxes();
        blocking(move || carrel_shim::sweep(&sandboxes).map_err(failed)).await
    }
}

/// The record of a sandbox that is the control plane's: one that lasts.
pub(crate) fn lasting(found: &Found) -> Option<&SandboxRecord> {
    found.record.as_ref().filter(|record| record.lasting)
}

/// Whether what was found is this start of the sandbox.
pub(crate) fn is_of(found: &Found, place: &Place) -> bool {
    lasting(found).is_some_and(|record| record.incarnation == place.incarnation)
}
