//! Admission control: how many sandboxes this host runs at the same time.

use std::collections::HashMap;
use std::sync::Mutex;

use carrel_store::SandboxId;

use crate::codes::reason;
use crate::descriptors::DescriptorUse;
use crate::refusal::{Code, Refusal};
use crate::settings::ControlSettings;

/// The capacity that sandboxes use.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    entries: Mutex<HashMap<SandboxId, AdmissionEntry>>,
}

/// The capacity that one sandbox uses.
#[derive(Clone, Copy, Debug)]
struct AdmissionEntry {
    /// Its memory limit.
    memory: u64,
    /// Whether its start is not committed yet.
    pending: bool,
}

// === impl Admission ===

impl Admission {
    /// Reserves capacity for one more sandbox. `uses_capacity` tells it for committed sandboxes, so that capacity is
    /// free as soon as a caller can see that a sandbox stopped.
    pub(crate) fn reserve(
        &self,
        id: &SandboxId,
        memory: u64,
        settings: &ControlSettings,
        (uses_capacity, is_starting): (impl Fn(&SandboxId) -> bool, impl Fn(&SandboxId) -> bool),
    ) -> Result<(), Refusal> {
        let mut entries = self.lock();
        let refused = check(settings, &entries, id, memory);
        if refused.is_err() {
            entries.retain(|id, entry| entry.pending || uses_capacity(id));
            check(settings, &entries, id, memory)?;
        }
        check_descriptors(settings, &entries, is_starting)
            .map_err(|refusal| refusal.about("sandbox_id", id.as_str()))?;
        entries.insert(id.clone(), AdmissionEntry { memory, pending: true });
        Ok(())
    }

    /// Records the capacity of a committed sandbox, whatever the limits are.
    pub(crate) fn record(&self, id: &SandboxId, memory: u64) {
        self.lock().insert(id.clone(), AdmissionEntry { memory, pending: false });
    }

    /// Releases the capacity of a sandbox.
    pub(crate) fn release(&self, id: &SandboxId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, AdmissionEntry>> {
        // No update in there is partial, so a poisoned lock is usable.
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Refuses a start for which there are too few descriptors.
fn check_descriptors(
    settings: &ControlSettings,
    entries: &HashMap<SandboxId, AdmissionEntry>,
    is_starting: impl Fn(&SandboxId) -> bool,
) -> Result<(), Refusal> {
    // The number of entries is an upper bound of those that are starting; they are counted only if it is too high.
    if settings.descriptors.has_room(DescriptorUse::Start { beside: entries.len() as u64 }) {
        return Ok(());
    }
    let starting = entries.iter().filter(|(id, entry)| entry.pending || is_starting(id)).count();
    settings.descriptors.check(DescriptorUse::Start { beside: starting as u64 })
}

/// Refuses a start that exceeds a limit.
fn check(
    settings: &ControlSettings,
    entries: &HashMap<SandboxId, AdmissionEntry>,
    id: &SandboxId,
    memory: u64,
) -> Result<(), Refusal> {
    let refusal = |limit: &str, message: String| {
        Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, message)
            .about("limit", limit)
            .about("sandbox_id", id.as_str())
    };
    if let Some(most) = settings.max_sandboxes.filter(|most| entries.len() as u64 >= *most) {
        return Err(refusal("sandboxes", format!("{most} sandboxes are running, which is the limit; stop one first")));
    }
    let used = entries.values().fold(0, |sum: u64, entry| sum.saturating_add(entry.memory));
    if let Some(most) = settings.max_memory.filter(|most| used.saturating_add(memory) > *most) {
        let message =
            format!("running sandboxes may use {used} bytes of memory; {memory} more would exceed the limit of {most}");
        return Err(refusal("memory", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::Descriptors;

    fn id(text: &str) -> SandboxId {
        SandboxId::new(text).unwrap()
    }

    #[test]
    fn sandboxes_are_admitted_up_to_the_limit_and_again_when_one_stops() {
        let admission = Admission::default();
        let settings = ControlSettings { max_sandboxes: Some(2), max_memory: Some(100), ..ControlSettings::default() };
        let reserve = |name: &str, memory| {
            admission.reserve(
                &id(name),
                memory,
                &settings,
                (|there: &SandboxId| there.as_str() != "stopped", |_: &SandboxId| false),
            )
        };
        reserve("first", 60).unwrap();
        let refused = reserve("second", 41).unwrap_err();
        assert_eq!((refused.reason, refused.metadata["limit"].as_str()), ("LIMIT_REACHED", "memory"));
        reserve("second", 40).unwrap();
        assert_eq!(reserve("third", 0).unwrap_err().metadata["limit"], "sandboxes");
        admission.release(&id("first"));
        reserve("stopped", 1).unwrap();
        assert!(reserve("third", 60).is_err(), "its start is not committed, so no caller can have seen it stop");
        admission.record(&id("stopped"), 1);
        reserve("third", 60).unwrap();
    }

    #[test]
    fn descriptors_of_sandboxes_that_are_starting_are_reserved() {
        let (admission, names) = (Admission::default(), ["first", "second", "third", "fourth"]);
        let descriptors = Descriptors::new(|| 128, || 48);
        let settings = ControlSettings { descriptors, ..ControlSettings::default() };
        let reserve = |name: &str, ready: bool| {
            admission.reserve(&id(name), 0, &settings, (|_: &SandboxId| true, |_: &SandboxId| !ready))
        };
        for name in &names[..3] {
            reserve(name, false).unwrap();
            admission.record(&id(name), 0);
        }
        let refused = reserve(names[3], false).unwrap_err();
        assert_eq!((refused.reason, refused.metadata["limit"].as_str()), ("LIMIT_REACHED", "descriptors"));
        assert_eq!(refused.metadata["sandbox_id"], "fourth");
        reserve(names[3], true).unwrap();
    }
}
