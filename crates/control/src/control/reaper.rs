//! Periodically removes leftovers of deleted sandboxes and quarantines orphans.

use std::sync::Arc;
use std::time::Duration;

use super::Control;
use crate::provider::InUse;
use crate::settings::ControlSettings;

/// The longest time between two runs.
const MAX_PERIOD: Duration = Duration::from_secs(60 * 60);
/// The shortest time between two runs. Each run lists every disk and every sandbox of the home.
const MIN_PERIOD: Duration = Duration::from_secs(60);

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
                Self(shared).reap().await;
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    changed = settings.changed() => if changed.is_err() { return },
                }
            }
        });
    }

    /// Removes leftovers of deleted sandboxes, and quarantines disks that the store does not know.
    async fn reap(&self) {
        match self.0.provider.reap(&self.in_use_source()).await {
            Ok(reaped) => {
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
    }

    pub(super) fn in_use_source(&self) -> impl Fn() -> InUse + Send + Sync + use<> {
        let store = self.0.store.clone();
        move || {
            let mut in_use = InUse::default();
            for sandbox in store.sandboxes() {
                if sandbox.state == carrel_store::SandboxState::Deleted {
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
