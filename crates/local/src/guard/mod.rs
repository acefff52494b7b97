//! The guard of the host's disk: nobody fills it. It looks at what is free, rarely while there is much of it, and finds the
//! sandbox that takes it.

mod policy;
mod seen;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Instant;

use carrel_sandbox::{FreeSpace, Reserve};
use carrel_shim_client::messages::{PauseReason, State};
use carrel_shim_client::{AdoptError, Found, Life};
use rustix::fs::{CWD, Mode, OFlags};
use tokio::sync::mpsc;

use self::policy::{Action, Policy, Verdict};
use self::seen::Seen;
use crate::{Inner, blocking, failed};

/// The loop, and what it remembers.
struct Guard {
    inner: Weak<Inner>,
    policy: Policy,
    /// What each sandbox did until the last look; none while nobody looks.
    seen: Option<Seen>,
    /// Those that are being paused.
    pausing: HashSet<String>,
    done: mpsc::UnboundedReceiver<Outcome>,
    tell: mpsc::UnboundedSender<Outcome>,
}

/// How the attempt to pause or resume one ended.
struct Outcome {
    incarnation: String,
    paused: bool,
    failure: Option<String>,
}

/// Guards the disk for as long as there is somebody who makes sandboxes.
pub(crate) fn start(inner: &Arc<Inner>) {
    let reserve = Reserve { bytes: inner.settings.host_free, inodes: inner.settings.host_free_inodes };
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if !reserve.is_some() {
        return;
    }
    let (tell, done) = mpsc::unbounded_channel();
    let guard = Guard {
        inner: Arc::downgrade(inner),
        policy: Policy::new(reserve),
        seen: None,
        pausing: HashSet::new(),
        done,
        tell,
    };
    drop(runtime.spawn(guard.run()));
}

// === impl Guard ===

impl Guard {
    async fn run(mut self) {
        let mut adopted = false;
        let mut measure = false;
        loop {
            let Some(inner) = self.inner.upgrade() else { return };
            if inner.known.is_empty() && !self.policy.holds() {
                // Nobody can write.
                self.seen = None;
                let changed = inner.known.changed();
                drop(inner);
                changed.notified().await;
                continue;
            }
            let free = match free(&inner).await {
                Ok(free) => free,
                Err(error) => {
                    tracing::warn!(%error, "what is free on the disk cannot be told");
                    drop(inner);
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    continue;
                }
            };
            if !std::mem::replace(&mut adopted, true) {
                self.adopt(&inner, free).await;
            }
            self.hear();
            let usage = if measure { self.measure(&inner).await } else { None };
            let Verdict { actions, next, measure: again } = self.policy.look(Instant::now(), free, usage.as_ref());
            for action in actions {
                self.act(&inner, action).await;
            }
            measure = again;
            match (again, &mut self.seen) {
                // What everybody has done until now says nothing yet; from here on it does.
                (true, None) => drop(self.measure(&inner).await),
                (true, Some(seen)) if usage.is_none() => {
                    seen.begin_again();
                    drop(self.measure(&inner).await);
                }
                (true, Some(_)) => {}
                (false, _) if self.policy.holds() || !self.pausing.is_empty() => {}
                (false, _) => self.seen = None,
            }
            drop(inner);
            tokio::time::sleep(next).await;
        }
    }

    /// Finds again what a daemon before this one paused or slowed down.
    async fn adopt(&mut self, inner: &Arc<Inner>, free: FreeSpace) {
        self.measure(inner).await;
        let Some(seen) = self.seen.take() else { return };
        seen.speed_up_all();
        for found in seen.all() {
            let Ok(mut shim) = found.connect().await else { continue };
            let paused = shim.status().await.is_ok_and(|status| {
                status.state == State::Paused && status.pause_reason == Some(PauseReason::HostDisk)
            });
            if paused {
                self.policy.was_paused(shim.hello().incarnation.clone(), Instant::now(), free);
            }
        }
    }

    /// What each sandbox did since the last time.
    async fn measure(&mut self, inner: &Arc<Inner>) -> Option<HashMap<String, policy::Usage>> {
        let (home, seen) = (inner.ground.home().to_owned(), self.seen.take());
        let measured = blocking(move || {
            let mut seen = seen.map_or_else(Seen::new, Ok).map_err(failed)?;
            let usage = seen.look(&home).map_err(failed)?;
            Ok((seen, usage))
        });
        match measured.await {
            Ok((seen, usage)) => {
                self.seen = Some(seen);
                Some(usage)
            }
            Err(error) => {
                tracing::warn!(%error, "nobody can say who writes to the disk");
                None
            }
        }
    }

    async fn act(&mut self, inner: &Arc<Inner>, action: Action) {
        let Some(seen) = &self.seen else { return };
        match action {
            Action::SlowDown(one) => {
                tracing::info!(sandbox = seen.name(&one), "a sandbox that fills the disk is slowed down");
                seen.slow_down(&one);
            }
            Action::SpeedUp(one) => seen.speed_up(&one),
            Action::Pause(one) => self.pause(inner, one),
            Action::Insist(one) if self.pausing.contains(&one) => {
                tracing::warn!(sandbox = seen.name(&one), "processes that do not stop writing are killed");
                seen.kill_writers(&one);
            }
            // It continues by somebody's will, or was never paused.
            Action::Insist(one) => self.pause(inner, one),
            Action::Resume(one) => self.resume(inner, one),
        }
    }

    fn pause(&mut self, inner: &Arc<Inner>, incarnation: String) {
        if !self.pausing.insert(incarnation.clone()) {
            return;
        }
        let name = self.seen.as_ref().map(|seen| seen.name(&incarnation).to_owned()).unwrap_or_default();
        tracing::warn!(sandbox = name, "a sandbox is paused: it fills the disk of the host");
        self.ask(inner, incarnation, name, true);
    }

    fn resume(&mut self, inner: &Arc<Inner>, incarnation: String) {
        let name = self.seen.as_ref().map(|seen| seen.name(&incarnation).to_owned()).unwrap_or_default();
        tracing::info!(sandbox = name, "a sandbox continues: there is room on the disk of the host");
        self.ask(inner, incarnation, name, false);
    }

    /// Asks a supervisor, which may take as long as its sandbox needs to stop.
    fn ask(&self, inner: &Arc<Inner>, incarnation: String, name: String, paused: bool) {
        let (home, tell) = (inner.ground.home().to_owned(), self.tell.clone());
        drop(tokio::spawn(async move {
            let asked = async {
                let (incarnation, name) = (incarnation.clone(), name);
                let found = blocking(move || find(&home, &name, &incarnation)).await.map_err(|error| error.message)?;
                let mut shim =
                    found.ok_or("it is gone")?.connect().await.map_err(|error: AdoptError| error.to_string())?;
                let asked = if paused {
                    shim.pause_for(PauseReason::HostDisk).await
                } else {
                    shim.resume_from(PauseReason::HostDisk).await
                };
                asked.map_err(|error| error.to_string())
            };
            let failure = asked.await.err();
            // Nobody is left to be told when the guard is gone.
            let _told = tell.send(Outcome { incarnation, paused, failure });
        }));
    }

    /// Hears how attempts ended.
    fn hear(&mut self) {
        while let Ok(Outcome { incarnation, paused, failure }) = self.done.try_recv() {
            if paused {
                self.pausing.remove(&incarnation);
            }
            match (failure, &self.seen) {
                (Some(error), _) => {
                    tracing::warn!(incarnation, error, paused, "a sandbox cannot be paused or resumed");
                    self.policy.forget(&incarnation);
                }
                // What is stopped need not be slow.
                (None, Some(seen)) => seen.speed_up(&incarnation),
                (None, None) => {}
            }
        }
    }
}

/// What is free where disks are.
async fn free(inner: &Arc<Inner>) -> Result<FreeSpace, carrel_control::provider::ProviderError> {
    let disks = inner.ground.disks();
    blocking(move || {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, &disks, flags, Mode::empty()).map_err(failed)?;
        FreeSpace::of(opened).map_err(failed)
    })
    .await
}

/// An incarnation of a sandbox that runs.
fn find(
    home: &std::path::Path,
    name: &str,
    incarnation: &str,
) -> Result<Option<Found>, carrel_control::provider::ProviderError> {
    let found = carrel_shim_client::find(home, name).map_err(failed)?;
    let is = |found: &Found| found.record.as_ref().is_some_and(|record| record.incarnation == incarnation);
    Ok(found.filter(|found| found.life == Life::Running && is(found)))
}
