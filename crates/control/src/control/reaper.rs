//! Periodically removes leftovers of deleted sandboxes and quarantines orphans.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use carrel_store::{Sandbox, SandboxState};

use super::Control;
use crate::actor::ActorRequest;
use crate::provider::{InUse, UnknownIncarnation};
use crate::settings::ControlSettings;

/// The longest time between two runs.
const MAX_PERIOD: Duration = Duration::from_secs(60 * 60);
/// The shortest time between two runs. Each run lists every disk and every sandbox of the home.
const MIN_PERIOD: Duration = Duration::from_secs(60);
/// When an incarnation that could not be adopted is looked at again.
const ADOPTION_RETRY: Duration = Duration::from_secs(1);

// === impl Control ===

impl Control {
    /// Reaps now, periodically, and when the settings change.
    pub(super) fn start_reaper(&self) {
        let (weak, mut settings) = (Arc::downgrade(&self.0), self.0.settings.subscribe());
        // It runs in the background, because leftovers of a dead daemon may take long to stop.
        self.0.lock().tasks.spawn(async move {
            loop {
                let Some(shared) = weak.upgrade() else { return };
                let delay = period(&shared.settings());
                // A sandbox whose adoption has to wait, for the end of its former incarnation, is looked at soon.
                let delay = if Self(shared).reap().await { delay } else { delay.min(ADOPTION_RETRY) };
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    changed = settings.changed() => if changed.is_err() { return },
                }
            }
        });
    }

    /// Removes leftovers of deleted sandboxes, quarantines disks that the store does not know, and adopts what runs on disks of
    /// known sandboxes. Returns whether nothing is left to adopt.
    async fn reap(&self) -> bool {
        let mut unknown = Vec::new();
        match self.0.provider.reap(&self.in_use_source()).await {
            Ok(reaped) => {
                unknown = reaped.unknown_incarnations;
                if reaped.removed > 0 {
                    tracing::info!(count = reaped.removed, "removed leftovers of deleted sandboxes");
                }
                for disk in reaped.quarantined {
                    tracing::warn!(
                        disk,
                        "a disk that the store does not know is in quarantine; hint: `carrel store orphans`"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "leftovers of sandboxes could not be removed"),
        }
        let mut is_complete = true;
        for found in unknown {
            is_complete &= self.adopt_incarnation(found).await;
        }
        if is_complete {
            self.0.is_compared.store(true, Ordering::Release);
        }
        is_complete
    }

    /// Makes what runs on the disk of a sandbox its current incarnation: the store is a backup from before its start.
    async fn adopt_incarnation(&self, UnknownIncarnation { disk, incarnation }: UnknownIncarnation) -> bool {
        let known = self.0.store.sandboxes().into_iter().find(|sandbox| sandbox.disk == disk);
        let Some(sandbox) = known.filter(|sandbox| sandbox.incarnation != incarnation) else { return true };
        let adopted = self.dispatch(&sandbox.id, ActorRequest::Adopt(incarnation)).await;
        match adopted {
            Ok(_) => tracing::warn!(
                sandbox = %sandbox.id,
                "a sandbox is running that the store has as stopped: adopted, since the store is older"
            ),
            Err(ref refusal) => tracing::debug!(sandbox = %sandbox.id, ?refusal, "a running sandbox is adopted later"),
        }
        let can_wait = |sandbox: &Sandbox| sandbox.state != SandboxState::Failed;
        adopted.is_ok() || !self.0.store.sandbox(&sandbox.id).is_some_and(|sandbox| can_wait(&sandbox))
    }

    pub(super) fn in_use_source(&self) -> impl Fn() -> InUse + Send + Sync + use<> {
        let store = self.0.store.clone();
        move || {
            let mut in_use = InUse::default();
            for sandbox in store.sandboxes() {
                if sandbox.state == SandboxState::Deleted {
                    in_use.deleted.insert(sandbox.disk.clone());
                } else {
                    in_use.incarnations.insert(sandbox.incarnation.clone());
                    in_use.disks.insert(sandbox.disk.clone());
                }
            }
            in_use
        }
    }
}

/// The time between two runs; it is shorter if orphans expire sooner.
fn period(settings: &ControlSettings) -> Duration {
    match settings.retention.orphans_age {
        Duration::ZERO => MAX_PERIOD,
        age => age.clamp(MIN_PERIOD, MAX_PERIOD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Retention;

    #[test]
    fn the_reaper_runs_more_often_if_orphans_expire_soon() {
        let period_of = |seconds| {
            let orphans_age = Duration::from_secs(seconds);
            let retention = Retention { orphans_age, ..Retention::default() };
            period(&ControlSettings { retention, ..ControlSettings::default() }).as_secs()
        };
        assert_eq!([0, 1, 60, 300, 3600, 720 * 3600].map(period_of), [3600, 60, 60, 300, 3600, 3600]);
    }
}
