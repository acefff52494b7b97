//! Merges the spec of a request into that of a file.

use std::collections::HashSet;

use super::SpecDraft;

// === impl SpecDraft ===

impl SpecDraft {
    /// Merges a draft over a base. Text replaces text unless it is empty, pairs replace pairs key by key, and lists are
    /// appended, except the command, which is replaced as a whole.
    #[must_use]
    pub fn over(self, base: Self) -> Self {
        let command = if self.command.is_empty() { base.command } else { self.command };
        let known: HashSet<_> = base.builtin_tools.iter().cloned().collect();
        let more_tools = self.builtin_tools.into_iter().filter(|tool| !known.contains(tool)).collect();
        Self {
            image: text(self.image, base.image),
            mounts: appended(base.mounts, self.mounts),
            copies: appended(base.copies, self.copies),
            builtin_tools: appended(base.builtin_tools, more_tools),
            services: appended(base.services, self.services),
            labels: appended(base.labels, self.labels),
            envs: appended(base.envs, self.envs),
            idle_ttl: self.idle_ttl.or(base.idle_ttl),
            ports: appended(base.ports, self.ports),
            command,
            cpu_limit: text(self.cpu_limit, base.cpu_limit),
            memory_limit: text(self.memory_limit, base.memory_limit),
            disk_limit: text(self.disk_limit, base.disk_limit),
            gpus: text(self.gpus, base.gpus),
            restart: self.restart.or(base.restart),
        }
    }
}

fn text(over: String, base: String) -> String {
    if over.is_empty() { base } else { over }
}

fn appended<T, C: Extend<T> + IntoIterator<Item = T>>(mut base: C, over: C) -> C {
    base.extend(over);
    base
}
