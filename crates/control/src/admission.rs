//! How much this machine takes on.

use std::collections::HashMap;
use std::sync::Mutex;

use carrel_store::SandboxId;

use crate::refusal::{Code, Refusal};
use crate::words::reason;

/// Those that take room.
#[derive(Debug)]
pub(crate) struct Admission {
    most_sandboxes: Option<u64>,
    most_memory: Option<u64>,
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
    pub(crate) fn new(most_sandboxes: Option<u64>, most_memory: Option<u64>) -> Self {
        Self { most_sandboxes, most_memory, taken: Mutex::default() }
    }

    /// Takes room for one more, if there is. `is_there` says of those that have been written down whether they take any: as
    /// soon as anyone can see that one does not, there is room.
    pub(crate) fn take(
        &self,
        id: &SandboxId,
        memory: u64,
        is_there: impl Fn(&SandboxId) -> bool,
    ) -> Result<(), Refusal> {
        let mut taken = self.lock();
        let refused = self.check(&taken, id, memory);
        if refused.is_err() {
            taken.retain(|id, room| room.asked || is_there(id));
            self.check(&taken, id, memory)?;
        }
        taken.insert(id.clone(), Room { memory, asked: true });
        Ok(())
    }

    fn check(&self, taken: &HashMap<SandboxId, Room>, id: &SandboxId, memory: u64) -> Result<(), Refusal> {
        let full = |limit: &str, words: String| {
            Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, words)
                .about("limit", limit)
                .about("sandbox_id", id.as_str())
        };
        if let Some(most) = self.most_sandboxes.filter(|most| taken.len() as u64 >= *most) {
            return Err(full("sandboxes", format!("{most} sandboxes run here, which is the limit: stop one first")));
        }
        let used = taken.values().fold(0, |sum: u64, room| sum.saturating_add(room.memory));
        if let Some(most) = self.most_memory.filter(|most| used.saturating_add(memory) > *most) {
            let words =
                format!("sandboxes here may use {used} bytes of memory; {memory} more are over the limit of {most}");
            return Err(full("memory", words));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SandboxId {
        SandboxId::new(text).unwrap()
    }

    #[test]
    fn there_is_room_up_to_the_limit_and_again_when_one_is_gone() {
        let admission = Admission::new(Some(2), Some(100));
        let take = |name: &str, memory| admission.take(&id(name), memory, |there| there.as_str() != "gone");
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
}
