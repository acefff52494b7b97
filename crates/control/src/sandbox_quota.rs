//! Limits the number of sandboxes that are not deleted, running or not, and the total size of their specs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_store::{Sandbox, SandboxId};

use crate::codes::reason;
use crate::refusal::{Code, Refusal};
use crate::settings::ControlSettings;
use crate::share::{ShareExceeded, ShareHolder, ShareLimits, ShareUse};

/// This fraction of each limit is reserved for the daemon's own user.
const RESERVED_DIVISOR: u64 = 8;
/// Each other user may use this fraction of the size limit.
const USER_SHARE_DIVISOR: u64 = 4;
/// The hint for an exceeded limit.
const REMOVE_HINT: &str = "remove one with `carrel rm ID`";

/// The sandboxes that are not deleted.
#[derive(Debug, Default)]
pub(crate) struct SandboxQuota {
    entries: Mutex<HashMap<SandboxId, SandboxQuotaEntry>>,
}

/// What one sandbox uses.
#[derive(Clone, Copy, Debug)]
struct SandboxQuotaEntry {
    holder: ShareHolder,
    /// The size of its spec.
    bytes: u64,
    /// Whether it is not committed yet.
    pending: bool,
}

// === impl SandboxQuota ===

impl SandboxQuota {
    /// Reserves quota for a new sandbox. `is_kept` tells whether a committed sandbox is not deleted, so that quota is
    /// free as soon as a caller can see a deletion.
    pub(crate) fn reserve(
        &self,
        sandbox: &Sandbox,
        settings: &ControlSettings,
        is_kept: impl Fn(&SandboxId) -> bool,
    ) -> Result<(), Refusal> {
        let mut entries = self.lock();
        let entry = SandboxQuotaEntry { pending: true, ..SandboxQuotaEntry::of(sandbox) };
        if check(settings, &entries, &entry).is_err() {
            entries.retain(|id, entry| entry.pending || is_kept(id));
            check(settings, &entries, &entry)
                .map_err(|refusal: Refusal| refusal.about("sandbox_id", sandbox.id.as_str()))?;
        }
        entries.insert(sandbox.id.clone(), entry);
        Ok(())
    }

    /// Records a committed sandbox, whatever the limits are.
    pub(crate) fn record(&self, sandbox: &Sandbox) {
        self.lock().insert(sandbox.id.clone(), SandboxQuotaEntry::of(sandbox));
    }

    /// Releases the quota of a sandbox.
    pub(crate) fn release(&self, id: &SandboxId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, SandboxQuotaEntry>> {
        // No update in there is partial, so a poisoned lock is usable.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses a sandbox that exceeds a limit.
fn check(
    settings: &ControlSettings,
    entries: &HashMap<SandboxId, SandboxQuotaEntry>,
    new: &SandboxQuotaEntry,
) -> Result<(), Refusal> {
    let used = |amount: fn(&SandboxQuotaEntry) -> u64| {
        ShareUse::seen_by(new.holder, entries.values().map(|entry| (entry.holder, amount(entry))))
    };
    let refusal = |limit: &'static str, message: String| {
        Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, message).about("limit", limit)
    };
    let (total, bytes) = (bound(settings.kept_sandboxes), bound(settings.kept_specs));
    let limits = ShareLimits { total, each: bound(settings.user_sandboxes), reserved: reserved(total) };
    limits.check(new.holder, used(|_| 1), 1).map_err(|exceeded| match exceeded {
        ShareExceeded::Total(most) => refusal(
            "kept_sandboxes",
            format!(
                "there are {most} sandboxes of all users, including stopped and failed ones, which is the limit; {REMOVE_HINT}"
            ),
        ),
        ShareExceeded::Each(most) => refusal(
            "user_sandboxes",
            format!(
                "you have {most} sandboxes, including stopped and failed ones, which is the limit for one user; {REMOVE_HINT}"
            ),
        ),
    })?;
    let limits = ShareLimits { total: bytes, each: bytes.div_ceil(USER_SHARE_DIVISOR), reserved: reserved(bytes) };
    limits.check(new.holder, used(|entry| entry.bytes), new.bytes).map_err(|exceeded| {
        let (whose, most) = match exceeded {
            ShareExceeded::Total(most) => ("of all sandboxes", most),
            ShareExceeded::Each(most) => ("of your sandboxes", most),
        };
        let message = format!(
            "the spec has {} bytes, and those {whose} are limited to {most} in total; {REMOVE_HINT}",
            new.bytes
        );
        refusal("kept_specs", message)
    })
}

/// What is reserved for the daemon's own user.
fn reserved(total: u64) -> u64 {
    if total == u64::MAX { 0 } else { total / RESERVED_DIVISOR }
}

/// 0 means unlimited.
fn bound(limit: u64) -> u64 {
    if limit == 0 { u64::MAX } else { limit }
}

// === impl SandboxQuotaEntry ===

impl SandboxQuotaEntry {
    fn of(sandbox: &Sandbox) -> Self {
        Self { holder: sandbox.id.namespace().into(), bytes: sandbox.spec.len() as u64, pending: false }
    }
}
