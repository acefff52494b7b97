//! What is left of jobs that are no longer kept, so that none of them ever runs again.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use carrel_shim_client::messages::JobCommand;

/// Traces of jobs: of the id of each, and of its command.
#[derive(Debug, Default)]
pub(super) struct Past {
    traces: HashMap<u128, u64>,
    hashers: [RandomState; 2],
}

// === impl Past ===

impl Past {
    /// Remembers a job, by the trace of its command.
    pub(super) fn remember(&mut self, id: &str, trace: u64) {
        let key = self.key(id);
        self.traces.insert(key, trace);
    }

    /// The trace of the command of a job that was remembered.
    pub(super) fn knows(&self, id: &str) -> Option<u64> {
        self.traces.get(&self.key(id)).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.traces.len()
    }

    /// Two hashes with keys that nobody knows: no two ids have the same.
    fn key(&self, id: &str) -> u128 {
        let [one, other] = &self.hashers;
        (u128::from(one.hash_one(id)) << 64) | u128::from(other.hash_one(id))
    }

    /// What tells commands apart: all of it but the size of a terminal.
    pub(super) fn trace_of(&self, command: &JobCommand) -> u64 {
        let [one, _] = &self.hashers;
        let JobCommand { program, args, env, cwd, user, tty, stdin, timeout_ms, keep_bytes, rlimits, .. } = command;
        let limits: Vec<_> = rlimits.iter().map(|limit| (&limit.resource, limit.soft, limit.hard)).collect();
        one.hash_one((program, args, env, cwd, user, tty, stdin, timeout_ms, keep_bytes, limits))
    }
}
