//! How many sandboxes are kept, running or not, and how large what they are made from may be together.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_store::{Sandbox, SandboxId};

use crate::refusal::{Code, Refusal};
use crate::settings::Settings;
use crate::share::{ShareExceeded, ShareHolder, ShareLimits, ShareUse};
use crate::words::reason;

/// The part of each limit that only the daemon's own user may use.
const RESERVED: u64 = 8;
/// The part of all bytes that one other user may use.
const EACH: u64 = 4;
/// What makes room.
const REMOVE: &str = "remove one with `carrel rm ID`";

/// The sandboxes that are not deleted.
#[derive(Debug, Default)]
pub(crate) struct KeptSandboxes {
    kept: Mutex<HashMap<SandboxId, KeptSandbox>>,
}

/// What one of them takes.
#[derive(Clone, Copy, Debug)]
struct KeptSandbox {
    holder: ShareHolder,
    /// The size of its spec.
    bytes: u64,
    /// It is not in the store yet.
    asked: bool,
}

// === impl KeptSandboxes ===

impl KeptSandboxes {
    /// Takes a place for a new sandbox. `is_kept` says of those in the store whether they are: as soon as anyone can see
    /// that one is deleted, there is room.
    pub(crate) fn take(
        &self,
        sandbox: &Sandbox,
        settings: &Settings,
        is_kept: impl Fn(&SandboxId) -> bool,
    ) -> Result<(), Refusal> {
        let mut kept = self.lock();
        let entry = KeptSandbox { asked: true, ..KeptSandbox::of(sandbox) };
        if check(settings, &kept, &entry).is_err() {
            kept.retain(|id, entry| entry.asked || is_kept(id));
            check(settings, &kept, &entry).map_err(|refusal| refusal.about("sandbox_id", sandbox.id.as_str()))?;
        }
        kept.insert(sandbox.id.clone(), entry);
        Ok(())
    }

    /// Counts a sandbox that is in the store, whatever the limits are now.
    pub(crate) fn count(&self, sandbox: &Sandbox) {
        self.lock().insert(sandbox.id.clone(), KeptSandbox::of(sandbox));
    }

    /// Gives back the place of a sandbox.
    pub(crate) fn give_back(&self, id: &SandboxId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, KeptSandbox>> {
        // Nothing in there is ever half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses one more where that is over a limit.
fn check(settings: &Settings, kept: &HashMap<SandboxId, KeptSandbox>, new: &KeptSandbox) -> Result<(), Refusal> {
    let used = |amount: fn(&KeptSandbox) -> u64| {
        ShareUse::seen_by(new.holder, kept.values().map(|entry| (entry.holder, amount(entry))))
    };
    let full = |limit: &'static str, words: String| {
        Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, words).about("limit", limit)
    };
    let (total, bytes) = (bound(settings.kept_sandboxes), bound(settings.kept_specs));
    let limits = ShareLimits { total, each: bound(settings.user_sandboxes), reserved: reserved(total) };
    limits.check(new.holder, used(|_| 1), 1).map_err(|exceeded| match exceeded {
        ShareExceeded::Total(most) => full(
            "kept_sandboxes",
            format!(
                "{most} sandboxes of all users are kept, stopped and failed ones included, which is the limit: {REMOVE}"
            ),
        ),
        ShareExceeded::Each(most) => full(
            "user_sandboxes",
            format!(
                "you keep {most} sandboxes, stopped and failed ones included, which is the limit of one user: {REMOVE}"
            ),
        ),
    })?;
    let limits = ShareLimits { total: bytes, each: bytes.div_ceil(EACH), reserved: reserved(bytes) };
    limits.check(new.holder, used(|entry| entry.bytes), new.bytes).map_err(|exceeded| {
        let (whose, most) = match exceeded {
            ShareExceeded::Total(most) => ("of all kept sandboxes", most),
            ShareExceeded::Each(most) => ("of the sandboxes that you keep", most),
        };
        let words = format!(
            "the spec has {} bytes, and those {whose} may have {most} together, which is the limit: {REMOVE}",
            new.bytes
        );
        full("kept_specs", words)
    })
}

/// What is left to the daemon's own user of what is bounded.
fn reserved(total: u64) -> u64 {
    if total == u64::MAX { 0 } else { total / RESERVED }
}

/// 0 is no bound.
fn bound(limit: u64) -> u64 {
    if limit == 0 { u64::MAX } else { limit }
}

// === impl KeptSandbox ===

impl KeptSandbox {
    fn of(sandbox: &Sandbox) -> Self {
        Self { holder: sandbox.id.namespace().into(), bytes: sandbox.spec.len() as u64, asked: false }
    }
}
