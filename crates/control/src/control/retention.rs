//! Removes deleted sandboxes, events, execs and logs that exceed their retention.

use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use carrel_store::{Exec, ExecId, RetentionLimit, Sandbox, SandboxId, SandboxState, Sequence, StoreError};

use super::orphans::provider_failed;
use super::{Control, ControlInner};
use crate::codes::reason;
use crate::provider::{ExecOutput, ProviderError, RemovedLogs};
use crate::refusal::{Code, Refusal};
use crate::settings::{Caller, ControlSettings, Retention};

/// The longest time between two runs.
const MAX_PERIOD: Duration = Duration::from_secs(60);
/// The shortest time between two runs.
const MIN_PERIOD: Duration = Duration::from_millis(10);
/// How many events of a deleted sandbox are removed in one transaction. More are removed in batches before it.
const MAX_EVENTS_PER_PURGE: Sequence = 5000;
/// The specs of deleted sandboxes may use this fraction of the limit for all specs, in addition to it.
const DELETED_SPECS_DIVISOR: u64 = 4;
/// A deleted sandbox with a row of more than this is removed without waiting for the next run.
const LARGE_ROW_BYTES: u64 = 16 << 10;

/// Why retention could not be enforced.
#[derive(Debug, thiserror::Error)]
enum RetentionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

// === impl Control ===

impl Control {
    /// Enforces retention now and periodically.
    pub(super) fn start_retention(&self) {
        let (weak, mut settings) = (Arc::downgrade(&self.0), self.0.settings.subscribe());
        let large = Arc::clone(&self.0.large_deleted);
        self.0.lock().tasks.spawn(async move {
            loop {
                let Some(delay) = enforce(&weak).await else { return };
                let next = tokio::time::sleep(delay);
                tokio::pin!(next);
                loop {
                    tokio::select! {
                        () = &mut next => break,
                        changed = settings.changed() => if changed.is_err() { return } else { break },
                        () = large.notified() => enforce_deleted(&weak).await,
                    }
                }
            }
        });
    }

    /// Removes the output of execs that have ended and was last written longer ago than this. Returns how much was
    /// removed.
    pub async fn prune_logs(&self, caller: &Caller, older_than: Duration) -> Result<RemovedLogs, Refusal> {
        if !caller.trusted {
            let message = "only the daemon's own user may remove the output of all users";
            return Err(Refusal::new(Code::PermissionDenied, reason::PRUNE_FORBIDDEN, message));
        }
        self.0.remove_old_logs(older_than).await.map_err(|error| provider_failed(&error))
    }

    /// The retained output of an exec.
    pub async fn exec_output(&self, caller: &Caller, id: &str) -> Result<(Arc<Exec>, ExecOutput), Refusal> {
        let (exec, _) = self.exec(caller, id).await?;
        let output = self.0.provider.output(&exec.sandbox, &exec.id).await.map_err(|error| provider_failed(&error))?;
        Ok((exec, output))
    }
}

/// Enforces retention. Returns the time until the next run; `None` if the daemon is shutting down.
async fn enforce(shared: &Weak<ControlInner>) -> Option<Duration> {
    let shared = shared.upgrade()?;
    let settings = shared.settings();
    let mut delay = period(&settings);
    // The requests that fail report it.
    if shared.provider.check_home().is_err() {
        return Some(delay);
    }
    shared.lock().reap_finished();
    shared.store.shrink();
    for removed in [
        shared.remove_deleted(&settings).await,
        shared.remove_events(&settings).await,
        shared.remove_execs(&settings).await,
        shared.remove_logs(&settings).await,
    ] {
        match removed {
            Ok(()) => {}
            // The daemon is shutting down.
            Err(RetentionError::Store(StoreError::Closed)) => return None,
            Err(error) => {
                tracing::warn!(%error, "what exceeds its retention could not be removed");
                delay = MAX_PERIOD;
            }
        }
    }
    Some(delay)
}

/// Enforces the retention of deleted sandboxes only.
async fn enforce_deleted(shared: &Weak<ControlInner>) {
    let Some(shared) = shared.upgrade() else { return };
    if shared.provider.check_home().is_ok()
        && let Err(error) = shared.remove_deleted(&shared.settings()).await
    {
        tracing::warn!(%error, "what exceeds its retention could not be removed");
    }
}

/// The size of a row, in bytes.
fn size(sandbox: &Sandbox) -> u64 {
    let labels = sandbox.labels.iter().map(|(key, value)| key.len() + value.len());
    (sandbox.spec.len() + sandbox.error_message.len() + labels.sum::<usize>()) as u64
}

/// The deleted sandboxes that exceed the size limit. The owner that uses the most loses its oldest ones first.
/// `deleted` is sorted by age, the oldest first.
fn too_large(deleted: &[Arc<Sandbox>], most: u64) -> HashSet<SandboxId> {
    let mut total = 0_u64;
    let mut owners: HashMap<u32, (u64, VecDeque<&Arc<Sandbox>>)> = HashMap::new();
    for sandbox in deleted {
        total += size(sandbox);
        let (bytes, theirs) = owners.entry(sandbox.owner).or_default();
        *bytes += size(sandbox);
        theirs.push_back(sandbox);
    }
    let mut removed = HashSet::new();
    while total > most {
        let largest = owners.values_mut().filter(|(_, theirs)| !theirs.is_empty()).max_by_key(|(bytes, _)| *bytes);
        let Some((bytes, theirs)) = largest else { break };
        let Some(oldest) = theirs.pop_front() else { break };
        (total, *bytes) = (total - size(oldest), *bytes - size(oldest));
        removed.insert(oldest.id.clone());
    }
    removed
}

/// How many deleted sandboxes of each owner exceed the count limit. The owner with the most loses the first, so that no
/// owner displaces those of others.
fn surplus(deleted: &[Arc<Sandbox>], most: usize) -> HashMap<u32, usize> {
    let mut owners: HashMap<u32, usize> = HashMap::new();
    deleted.iter().for_each(|sandbox| *owners.entry(sandbox.owner).or_default() += 1);
    let mut counts: BinaryHeap<_> = owners.into_iter().map(|(owner, count)| (count, owner)).collect();
    let mut surplus = HashMap::new();
    for _ in most..deleted.len() {
        let Some((count, owner)) = counts.pop() else { break };
        *surplus.entry(owner).or_default() += 1;
        counts.push((count.saturating_sub(1), owner));
    }
    surplus
}

/// The time between two runs; it is shorter if something expires sooner.
fn period(settings: &ControlSettings) -> Duration {
    let Retention { events_age, execs_age, logs_age, .. } = settings.retention;
    let ages = [deleted_age(settings), events_age, execs_age, logs_age];
    let shortest = ages.into_iter().filter(|age| !age.is_zero()).min();
    shortest.map_or(MAX_PERIOD, |shortest| shortest.clamp(MIN_PERIOD, MAX_PERIOD))
}

fn deleted_age(settings: &ControlSettings) -> Duration {
    settings.retention.deleted_age.unwrap_or(settings.cleanup_ttl)
}

fn keep(settings: &ControlSettings, count: u64, age: Duration) -> RetentionLimit {
    let since = (!age.is_zero()).then(|| settings.clock.ago(age));
    RetentionLimit { count: Some(count).filter(|count| *count > 0), since }
}

// === impl ControlInner ===

impl ControlInner {
    /// Triggers a run if the row of a deleted sandbox is large.
    pub(crate) fn sandbox_deleted(&self, sandbox: &Sandbox) {
        if size(sandbox) > LARGE_ROW_BYTES {
            self.large_deleted.notify_one();
        }
    }

    /// Purges deleted sandboxes that exceed their retention, the oldest first.
    async fn remove_deleted(&self, settings: &ControlSettings) -> Result<(), RetentionError> {
        for (sandbox, newest) in self.overdue_deleted(settings) {
            // Once the row is purged, no later run would find the logs.
            self.provider.remove_logs(&sandbox).await?;
            while newest > MAX_EVENTS_PER_PURGE && self.store.trim_events(&sandbox, newest).await? > 0 {}
            match self.store.purge(&sandbox).await {
                Ok(()) | Err(StoreError::Unknown) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The deleted sandboxes that exceed their retention, the oldest first, each with its newest sequence.
    fn overdue_deleted(&self, settings: &ControlSettings) -> Vec<(SandboxId, Sequence)> {
        let mut deleted = self.store.sandboxes();
        deleted.retain(|sandbox| sandbox.state == SandboxState::Deleted);
        deleted.sort_by(|one, other| {
            one.state_changed_at.cmp(&other.state_changed_at).then_with(|| one.id.cmp(&other.id))
        });
        let (age, most) = (deleted_age(settings), settings.retention.deleted_count);
        let most = if most == 0 { usize::MAX } else { usize::try_from(most).unwrap_or(usize::MAX) };
        let surplus = surplus(&deleted, most);
        let bytes = Some(settings.kept_specs / DELETED_SPECS_DIVISOR).filter(|bytes| *bytes > 0).unwrap_or(u64::MAX);
        let too_large = too_large(&deleted, bytes);
        let is_old = |sandbox: &Sandbox| !age.is_zero() && settings.clock.since(sandbox.state_changed_at) >= age;
        let mut counts: HashMap<u32, usize> = HashMap::new();
        deleted.retain(|sandbox| {
            let count = counts.entry(sandbox.owner).or_default();
            *count += 1;
            let is_surplus = *count <= surplus.get(&sandbox.owner).copied().unwrap_or(0);
            is_surplus || is_old(sandbox) || too_large.contains(&sandbox.id)
        });
        deleted.iter().map(|sandbox| (sandbox.id.clone(), sandbox.last_sequence)).collect()
    }

    async fn remove_events(&self, settings: &ControlSettings) -> Result<(), RetentionError> {
        let keep = keep(settings, settings.retention.events_count, settings.retention.events_age);
        for (sandbox, through) in self.store.overdue_events(keep).await? {
            while self.store.trim_events(&sandbox, through).await? > 0 {}
        }
        Ok(())
    }

    async fn remove_execs(&self, settings: &ControlSettings) -> Result<(), RetentionError> {
        let keep = keep(settings, settings.retention.execs_count, settings.retention.execs_age);
        loop {
            let mut overdue: BTreeMap<SandboxId, Vec<ExecId>> = BTreeMap::new();
            for (sandbox, exec) in self.store.overdue_execs(keep).await? {
                overdue.entry(sandbox).or_default().push(exec);
            }
            let mut removed = 0;
            for (sandbox, execs) in overdue {
                self.provider.remove_exec_logs(&sandbox, &execs).await?;
                removed += self.store.trim_execs(&sandbox, execs).await?;
            }
            if removed == 0 {
                return Ok(());
            }
        }
    }

    async fn remove_logs(&self, settings: &ControlSettings) -> Result<(), RetentionError> {
        let age = settings.retention.logs_age;
        if !age.is_zero() {
            self.remove_old_logs(age).await?;
        }
        Ok(())
    }

    async fn remove_old_logs(&self, age: Duration) -> Result<RemovedLogs, ProviderError> {
        let store = self.store.clone();
        let running = move |sandbox: &SandboxId| -> HashSet<ExecId> {
            store.running_execs(Some(sandbox)).into_iter().map(|(exec, _)| exec.id.clone()).collect()
        };
        self.provider.remove_old_logs(self.settings().clock.ago(age), Arc::new(running)).await
    }
}
