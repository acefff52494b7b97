//! How much this machine takes on.

use std::collections::HashMap;
use std::sync::Mutex;

use carrel_store::SandboxId;

use crate::descriptors::DescriptorUse;
use crate::refusal::{Code, Refusal};
use crate::settings::Settings;
use crate::words::reason;

/// Those that take room.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    taken: Mutex<HashMap<SandboxId, Room>>,
}

/// What one takes.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// The memory that it may use.
    memory: u64,
    /// Whether it is still to be written down that it is there.
    asked: bool,
}

// === impl Admission ===

impl Admission {
    /// Takes room for one more, if there is. `is_there` says of those that have been written down whether they take any: as
    /// soon as anyone can see that one does not, there is room.
    pub(crate) fn take(
        &self,
        id: &SandboxId,
        memory: u64,
        settings: &Settings,
        (is_there, is_starting): (impl Fn(&SandboxId) -> bool, impl Fn(&SandboxId) -> bool),
    ) -> Result<(), Refusal> {
        let mut taken = self.lock();
        let refused = check(settings, &taken, id, memory);
        if refused.is_err() {
            taken.retain(|id, room| room.asked || is_there(id));
            check(settings, &taken, id, memory)?;
        }
        check_descriptors(settings, &taken, is_starting).map_err(|refusal| refusal.about("sandbox_id", id.as_str()))?;
        taken.insert(id.clone(), Room { memory, asked: true });
        Ok(())
    }

    /// It is written down that one is there, whatever the limit is now.
    pub(crate) fn count(&self, id: &SandboxId, memory: u64) {
        self.lock().insert(id.clone(), Room { memory, asked: false });
    }

    /// Gives its room back.
    pub(crate) fn give_back(&self, id: &SandboxId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Room>> {
        // Nothing in there is ever half done.
        self.taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Refuses one more where there are too few descriptors for it.
fn check_descriptors(
    settings: &Settings,
    taken: &HashMap<SandboxId, Room>,
    is_starting: impl Fn(&SandboxId) -> bool,
) -> Result<(), Refusal> {
    // No more can be starting than there are; only if that were too many, they are told apart.
    if settings.descriptors.has_room(DescriptorUse::Start { beside: taken.len() as u64 }) {
        return Ok(());
    }
    let starting = taken.iter().filter(|(id, room)| room.asked || is_starting(id)).count();
    settings.descriptors.check(DescriptorUse::Start { beside: starting as u64 })
}

/// Refuses one more where that is over a limit.
fn check(settings: &Settings, taken: &HashMap<SandboxId, Room>, id: &SandboxId, memory: u64) -> Result<(), Refusal> {
    let full = |limit: &str, words: String| {
        Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, words)
            .about("limit", limit)
            .about("sandbox_id", id.as_str())
    };
    if let Some(most) = settings.most_sandboxes.filter(|most| taken.len() as u64 >= *most) {
        return Err(full("sandboxes", format!("{most} sandboxes run here, which is the limit: stop one first")));
    }
    let used = taken.values().fold(0, |sum: u64, room| sum.saturating_add(room.memory));
    if let Some(most) = settings.most_memory.filter(|most| used.saturating_add(memory) > *most) {
        let words =
            format!("sandboxes here may use {used} bytes of memory; {memory} more are over the limit of {most}");
        return Err(full("memory", words));
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
    fn there_is_room_up_to_the_limit_and_again_when_one_is_gone() {
        let admission = Admission::default();
        let settings = Settings { most_sandboxes: Some(2), most_memory: Some(100), ..Settings::default() };
        let take = |name: &str, memory| {
            admission.take(
                &id(name),
                memory,
                &settings,
                (|there: &SandboxId| there.as_str() != "gone", |_: &SandboxId| false),
            )
        };
        take("first", 60).unwrap();
        let refused = take("second", 41).unwrap_err();
        assert_eq!((refused.reason, refused.metadata["limit"].as_str()), ("LIMIT_REACHED", "memory"));
        take("second", 40).unwrap();
        assert_eq!(take("third", 0).unwrap_err().metadata["limit"], "sandboxes");
        admission.give_back(&id("first"));
        take("gone", 1).unwrap();
        assert!(take("third", 60).is_err(), "nobody can have seen that it is gone");
        admission.count(&id("gone"), 1);
        take("third", 60).unwrap();
    }

    #[test]
    fn what_starts_has_not_opened_all_of_its_descriptors_yet() {
        let (admission, names) = (Admission::default(), ["first", "second", "third", "fourth"]);
        let descriptors = Descriptors::new(|| 128, || 48);
        let settings = Settings { descriptors, ..Settings::default() };
        let take = |name: &str, ready: bool| {
            admission.take(&id(name), 0, &settings, (|_: &SandboxId| true, |_: &SandboxId| !ready))
        };
        for name in &names[..3] {
            take(name, false).unwrap();
            admission.count(&id(name), 0);
        }
        let refused = take(names[3], false).unwrap_err();
        assert_eq!((refused.reason, refused.metadata["limit"].as_str()), ("LIMIT_REACHED", "descriptors"));
        assert_eq!(refused.metadata["sandbox_id"], "fourth");
        take(names[3], true).unwrap();
    }
}
