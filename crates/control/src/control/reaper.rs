//! Looking for what no sandbox has, from time to time.

use std::sync::Arc;
use std::time::Duration;

use super::Control;
use crate::provider::InUse;
use crate::settings::Settings;

/// How often it is looked for, unless orphans are kept for a shorter time.
const PERIOD: Duration = Duration::from_secs(60 * 60);
/// The shortest time between two looks: each lists every disk and every sandbox of the home.
const SHORTEST: Duration = Duration::from_secs(60);

// === impl Control ===

impl Control {
    /// Reaps now, as often as orphans ask for it, and when the settings change.
    pub(super) fn start_reaper(&self) {
        let (weak, mut settings) = (Arc::downgrade(&self.0), self.0.settings.subscribe());
        // Nobody waits for it: what a dead daemon left may take its time to end.
        self.0.lock().tasks.spawn(async move {
            loop {
                let Some(shared) = weak.upgrade() else { return };
                let pause = period(&shared.settings());
                Self(shared).reap().await;
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    changed = settings.changed() => if changed.is_err() { return },
                }
            }
        });
    }

    /// Removes what is left of sandboxes that are gone, and quarantines what the store does not know.
    async fn reap(&self) {
        match self.0.provider.reap(&self.in_use_source()).await {
            Ok(reaped) => {
                if reaped.removed > 0 {
                    tracing::info!(count = reaped.removed, "removed what was left of sandboxes that are gone");
                }
                for disk in reaped.quarantined {
                    tracing::warn!(
                        disk,
                        "the store does not know a disk: it is quarantined, see `carrel store orphans`"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "what is left of sandboxes could not be removed"),
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

/// How long to wait between two looks.
fn period(settings: &Settings) -> Duration {
    match settings.retention.orphans_age {
        Duration::ZERO => PERIOD,
        age => age.clamp(SHORTEST, PERIOD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Retention;

    #[test]
    fn orphans_that_are_kept_for_a_short_time_are_looked_for_more_often() {
        let looks = |seconds| {
            let orphans_age = Duration::from_secs(seconds);
            let retention = Retention { orphans_age, ..Retention::default() };
            period(&Settings { retention, ..Settings::default() }).as_secs()
        };
        assert_eq!([0, 1, 60, 300, 3600, 720 * 3600].map(looks), [3600, 60, 60, 300, 3600, 3600]);
    }
}
