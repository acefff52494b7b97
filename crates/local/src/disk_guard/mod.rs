//! The disk guard: keeps sandboxes from filling the host's disk. It checks the free space, rarely while there is much of it,
//! and finds the sandbox that uses it up.

mod policy;
mod sampler;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use carrel_control::provider::DiskSpace;
use carrel_sandbox::{FreeSpace, FreeSpaceReserve};
use carrel_shim_client::messages::{PauseReason, ShimState};
use carrel_shim_client::{AdoptError, DiscoveredSandbox, Liveness};
use rustix::fs::{CWD, Mode, OFlags};
use tokio::sync::{Notify, mpsc};

use self::policy::{GuardAction, GuardDecision, GuardPolicy};
use self::sampler::ActivitySampler;
use crate::{LocalInner, blocking, failed};

/// The loop of the guard and its state.
struct DiskGuard {
    inner: Weak<LocalInner>,
    policy: GuardPolicy,
    /// The usage counters of the sandboxes; none while they are not sampled.
    sampler: Option<ActivitySampler>,
    /// The sandboxes that are being paused.
    pausing: HashSet<String>,
    /// The sandboxes that could not be paused; logged once.
    unpausable: HashSet<String>,
    outcomes_rx: mpsc::UnboundedReceiver<PauseOutcome>,
    outcomes_tx: mpsc::UnboundedSender<PauseOutcome>,
}

/// The result of an attempt to pause or resume a sandbox.
struct PauseOutcome {
    incarnation: String,
    paused: bool,
    failure: Option<String>,
}

/// The sandboxes that their users resumed.
#[derive(Debug, Default)]
pub(crate) struct ResumedByUser {
    incarnations: Mutex<Vec<String>>,
    changed: Notify,
}

/// Runs the guard until the provider is dropped.
pub(crate) fn start(inner: &Arc<LocalInner>) {
    let settings = inner.settings();
    let reserve = FreeSpaceReserve { bytes: settings.host_free, inodes: settings.host_free_inodes };
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if !reserve.is_some() {
        return;
    }
    let (outcomes_tx, outcomes_rx) = mpsc::unbounded_channel();
    let guard = DiskGuard {
        inner: Arc::downgrade(inner),
        policy: GuardPolicy::new(reserve),
        sampler: None,
        pausing: HashSet::new(),
        unpausable: HashSet::new(),
        outcomes_rx,
        outcomes_tx,
    };
    drop(runtime.spawn(guard.run()));
}

// === impl ResumedByUser ===

impl ResumedByUser {
    pub(crate) fn add(&self, incarnation: &str) {
        self.locked().push(incarnation.to_owned());
        self.changed.notify_one();
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.locked())
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.incarnations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl DiskGuard ===

impl DiskGuard {
    async fn run(mut self) {
        let mut adopted = false;
        let mut measure = false;
        loop {
            let Some(inner) = self.inner.upgrade() else { return };
            if inner.running.is_empty() && !self.policy.has_restrictions() {
                // No sandbox is running.
                self.sampler = None;
                let changed = inner.running.changed();
                drop(inner);
                changed.notified().await;
                continue;
            }
            let free = match free(&inner).await {
                Ok(free) => free,
                Err(error) => {
                    tracing::warn!(%error, "failed to read the free space of the disk");
                    drop(inner);
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    continue;
                }
            };
            if !std::mem::replace(&mut adopted, true) {
                self.adopt(&inner, free).await;
            }
            self.receive_outcomes();
            for incarnation in inner.resumed.take() {
                self.policy.was_resumed(incarnation, Instant::now(), free);
            }
            let usage = if measure { self.measure(&inner).await } else { None };
            let GuardDecision { actions, next, measure: again } =
                self.policy.decide(Instant::now(), free, usage.as_ref());
            *inner.resumes_at.lock().unwrap_or_else(PoisonError::into_inner) = self.policy.resumes_at();
            for action in actions {
                self.act(&inner, action).await;
            }
            measure = again;
            match (again, &mut self.sampler) {
                // The counters up to now are the baseline of the next sample.
                (true, None) => drop(self.measure(&inner).await),
                (true, Some(sampler)) if usage.is_none() => {
                    sampler.reset();
                    drop(self.measure(&inner).await);
                }
                (true, Some(_)) => {}
                (false, _) if self.policy.has_restrictions() || !self.pausing.is_empty() => {}
                (false, _) => self.sampler = None,
            }
            let resumed = Arc::clone(&inner.resumed);
            drop(inner);
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = resumed.changed.notified() => {}
            }
        }
    }

    /// Finds the sandboxes that an earlier daemon paused or slowed down.
    async fn adopt(&mut self, inner: &Arc<LocalInner>, free: FreeSpace) {
        self.measure(inner).await;
        let Some(sampler) = self.sampler.take() else { return };
        sampler.speed_up_all();
        for found in sampler.all() {
            let Ok(mut shim) = found.connect().await else { continue };
            let paused = shim.status().await.is_ok_and(|status| {
                status.state == ShimState::Paused && status.pause_reason == Some(PauseReason::HostDisk)
            });
            if paused {
                // Paused by an earlier daemon, or by the shim while no daemon ran.
                let sandbox = found.record.as_ref().map_or("", |record| &record.name);
                tracing::warn!(sandbox, "sandbox was paused before this daemon started: it fills the host's disk");
                self.policy.was_paused(shim.hello().incarnation.clone(), Instant::now(), free);
            }
        }
    }

    /// The usage of each sandbox since the last sample.
    async fn measure(&mut self, inner: &Arc<LocalInner>) -> Option<HashMap<String, policy::SandboxUsage>> {
        let (home, sampler) = (inner.paths.home().to_owned(), self.sampler.take());
        let measured = blocking(move || {
            let mut sampler = sampler.map_or_else(ActivitySampler::new, Ok).map_err(failed)?;
            let usage = sampler.sample(&home).map_err(failed)?;
            Ok((sampler, usage))
        });
        match measured.await {
            Ok((sampler, usage)) => {
                self.sampler = Some(sampler);
                Some(usage)
            }
            Err(error) => {
                tracing::warn!(%error, "failed to sample the disk writes of sandboxes");
                None
            }
        }
    }

    async fn act(&mut self, inner: &Arc<LocalInner>, action: GuardAction) {
        let Some(sampler) = &self.sampler else { return };
        match action {
            GuardAction::SlowDown(one) => {
                tracing::info!(sandbox = sampler.name(&one), "slowed down a sandbox that fills the host's disk");
                sampler.slow_down(&one);
            }
            GuardAction::SpeedUp(one) => {
                tracing::info!(sandbox = sampler.name(&one), "restored the CPU share of a sandbox");
                sampler.speed_up(&one);
            }
            GuardAction::Pause(one) => self.pause(inner, one),
            GuardAction::KillWriters(one) if self.pausing.contains(&one) => {
                tracing::warn!(sandbox = sampler.name(&one), "killed processes that did not stop writing");
                sampler.kill_writers(&one);
            }
            // Its user resumed it, or it was never paused.
            GuardAction::KillWriters(one) => self.pause(inner, one),
            GuardAction::Resume(one) => self.resume(inner, one),
        }
    }

    fn pause(&mut self, inner: &Arc<LocalInner>, incarnation: String) {
        let Some(sampler) = &self.sampler else { return };
        let name = sampler.name(&incarnation).to_owned();
        if let Some(missing) = sampler.no_freezer() {
            if self.unpausable.insert(incarnation.clone()) {
                let reason = missing.to_string();
                tracing::warn!(
                    sandbox = name,
                    reason,
                    "failed to pause a sandbox that fills the host's disk: killed the processes that write"
                );
            }
            sampler.kill_writers(&incarnation);
            // If it keeps writing, the policy finds it again.
            sampler.speed_up(&incarnation);
            self.policy.forget(&incarnation);
            return;
        }
        if !self.pausing.insert(incarnation.clone()) {
            return;
        }
        if !self.unpausable.contains(&incarnation) {
            tracing::warn!(sandbox = name, "paused a sandbox: it fills the host's disk");
        }
        self.request_pause(inner, incarnation, name, true);
    }

    fn resume(&mut self, inner: &Arc<LocalInner>, incarnation: String) {
        let name = self.sampler.as_ref().map(|sampler| sampler.name(&incarnation).to_owned()).unwrap_or_default();
        tracing::info!(sandbox = name, "resumed a sandbox: the host's disk has free space");
        self.request_pause(inner, incarnation, name, false);
    }

    /// Sends the request to a shim, which may take as long as its sandbox needs to freeze.
    fn request_pause(&self, inner: &Arc<LocalInner>, incarnation: String, name: String, paused: bool) {
        let (home, outcomes_tx) = (inner.paths.home().to_owned(), self.outcomes_tx.clone());
        drop(tokio::spawn(async move {
            let result = async {
                let (incarnation, name) = (incarnation.clone(), name);
                let found = blocking(move || find(&home, &name, &incarnation)).await.map_err(|error| error.message)?;
                let mut shim = found
                    .ok_or("the sandbox does not exist")?
                    .connect()
                    .await
                    .map_err(|error: AdoptError| error.to_string())?;
                let result = if paused {
                    shim.pause_for(PauseReason::HostDisk).await
                } else {
                    shim.resume_for(PauseReason::HostDisk).await
                };
                result.map_err(|error| error.to_string())
            };
            let failure = result.await.err();
            // The receiver is dropped with the guard.
            let _sent = outcomes_tx.send(PauseOutcome { incarnation, paused, failure });
        }));
    }

    /// Receives the results of attempts.
    fn receive_outcomes(&mut self) {
        while let Ok(PauseOutcome { incarnation, paused, failure }) = self.outcomes_rx.try_recv() {
            if paused {
                self.pausing.remove(&incarnation);
            }
            match (failure, &self.sampler) {
                (Some(error), _) => {
                    if !paused || self.unpausable.insert(incarnation.clone()) {
                        tracing::warn!(incarnation, error, paused, "failed to pause or resume a sandbox");
                    }
                    self.policy.forget(&incarnation);
                }
                // A paused sandbox need not be slowed down.
                (None, Some(sampler)) => sampler.speed_up(&incarnation),
                (None, None) => {}
            }
        }
    }
}

/// The free space where disks are stored, and the reserve; none without a reserve.
pub(crate) fn disk_space(inner: &LocalInner) -> Option<DiskSpace> {
    let settings = inner.settings();
    let reserve = FreeSpaceReserve { bytes: settings.host_free, inodes: settings.host_free_inodes };
    let free = free_in(&inner.paths.disks()).ok().filter(|_| reserve.is_some())?;
    let (is_low, summary) = (reserve.is_touched(free), reserve.describe(free));
    let resumes_at = *inner.resumes_at.lock().unwrap_or_else(PoisonError::into_inner);
    // Before its first check, the guard assumes that a sandbox which a shim paused was paused just now.
    let pause_summary = reserve.describe_pause(free, resumes_at.unwrap_or_else(|| reserve.resume_threshold(free)));
    Some(DiskSpace { free: free.bytes, reserve: reserve.bytes, is_low, summary, pause_summary })
}

/// The reserve of inodes for the file system of a home, as configured or by default; none where inodes are not counted. For
/// a home that does not exist yet, the nearest existing parent counts.
pub fn reserved_inodes(home: &std::path::Path, given: Option<u64>) -> Option<u64> {
    let free = home.ancestors().find_map(|path| free_in(path).ok());
    given.or_else(|| {
        free.filter(|free| free.inodes.is_some())
            .map(|free| FreeSpaceReserve { bytes: 0, inodes: None }.inodes_on(free))
    })
}

/// The free space where disks are stored.
async fn free(inner: &Arc<LocalInner>) -> Result<FreeSpace, carrel_control::provider::ProviderError> {
    let disks = inner.paths.disks();
    blocking(move || free_in(&disks).map_err(failed)).await
}

fn free_in(disks: &std::path::Path) -> Result<FreeSpace, rustix::io::Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    FreeSpace::of(rustix::fs::openat(CWD, disks, flags, Mode::empty())?)
}

/// The record of a running incarnation.
fn find(
    home: &std::path::Path,
    name: &str,
    incarnation: &str,
) -> Result<Option<DiscoveredSandbox>, carrel_control::provider::ProviderError> {
    let found = carrel_shim_client::find(home, name).map_err(failed)?;
    let is = |found: &DiscoveredSandbox| found.record.as_ref().is_some_and(|record| record.incarnation == incarnation);
    Ok(found.filter(|found| found.life == Liveness::Running && is(found)))
}
