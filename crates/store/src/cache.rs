//! The in-memory cache of the store: rows, running execs, and recent events.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::backend::{AppliedChange, EventRange, LoadedRows, SequenceBounds};
use crate::{Event, EventsError, Exec, ExecId, ExecState, Sandbox, SandboxId, SandboxState, Sequence};

/// Everything that was published. A reader that sees an event here sees the state that it announces.
#[derive(Debug)]
pub(crate) struct RowCache {
    sandboxes: HashMap<SandboxId, CachedSandbox>,
    running: BTreeMap<ExecId, Arc<Exec>>,
    recent: EventTail,
    newest: u64,
    closed: bool,
    /// How many recent events of a sandbox are cached.
    keep: usize,
}

/// The cached row of a sandbox, with its running execs and recent events.
#[derive(Debug)]
struct CachedSandbox {
    row: Arc<Sandbox>,
    bounds: SequenceBounds,
    running: BTreeMap<ExecId, Arc<Exec>>,
    recent: EventTail,
}

/// The most recent events, in order.
#[derive(Debug)]
struct EventTail {
    /// All events after this sequence or position are cached.
    after: u64,
    events: VecDeque<Arc<Event>>,
}

/// The result of a lookup after some event.
#[derive(Debug)]
pub(crate) enum NextEvents {
    /// No more events will come.
    Closed,
    /// No newer event yet.
    None,
    Cached(Vec<Arc<Event>>),
    /// Events that are no longer cached, to be read from the database.
    Stored(EventRange),
    /// Retention removed the events that follow, up to the oldest that is kept.
    Expired {
        oldest: Sequence,
    },
}

// === impl RowCache ===

impl RowCache {
    pub(crate) fn new(loaded: LoadedRows, keep: usize) -> Self {
        let mut sandboxes = HashMap::with_capacity(loaded.sandboxes.len());
        for (row, bounds) in loaded.sandboxes {
            let recent = EventTail::new(row.last_sequence);
            sandboxes
                .insert(row.id.clone(), CachedSandbox { row: Arc::new(row), bounds, running: BTreeMap::new(), recent });
        }
        let recent = EventTail::new(loaded.position);
        let mut cache =
            Self { sandboxes, running: BTreeMap::new(), recent, newest: loaded.position, closed: false, keep };
        for exec in loaded.running {
            cache.record_exec(Arc::new(exec));
        }
        cache
    }

    /// Replaces the rows of a committed change and appends its events.
    pub(crate) fn publish(&mut self, applied: &AppliedChange, keep_of_all: usize) {
        let row = &applied.sandbox;
        if !self.sandboxes.contains_key(&row.id) {
            let (bounds, recent) = (SequenceBounds::default(), EventTail::new(0));
            self.sandboxes
                .insert(row.id.clone(), CachedSandbox { row: row.clone(), bounds, running: BTreeMap::new(), recent });
        }
        let Some(cached) = self.sandboxes.get_mut(&row.id) else { return };
        cached.row = row.clone();
        if row.state == SandboxState::Deleted {
            // Its listeners need new events only; older ones are read from the database.
            cached.recent = EventTail::new(cached.recent.newest());
        }
        for event in &applied.events {
            cached.recent.push(event, sequence, self.keep);
            self.recent.push(event, position, keep_of_all);
            self.newest = event.position;
        }
        for exec in &applied.execs {
            self.record_exec(exec.clone());
        }
    }

    fn record_exec(&mut self, exec: Arc<Exec>) {
        let Some(cached) = self.sandboxes.get_mut(&exec.sandbox) else { return };
        if exec.state == ExecState::Running {
            cached.running.insert(exec.id.clone(), exec.clone());
            self.running.insert(exec.id.clone(), exec);
        } else {
            cached.running.remove(&exec.id);
            self.running.remove(&exec.id);
        }
    }

    pub(crate) fn remove(&mut self, sandbox: &SandboxId) {
        let Some(cached) = self.sandboxes.remove(sandbox) else { return };
        for id in cached.running.keys() {
            self.running.remove(id);
        }
        self.recent.events.retain(|event| event.sandbox != *sandbox);
    }

    /// The sequence up to which retention removed the events of a sandbox.
    pub(crate) fn trimmed(&self, sandbox: &SandboxId) -> Sequence {
        self.sandboxes.get(sandbox).map_or(0, |cached| cached.bounds.trimmed)
    }

    /// Sets the sequence up to which retention removed the events of a sandbox.
    pub(crate) fn set_trimmed(&mut self, sandbox: &SandboxId, through: Sequence) {
        let Some(cached) = self.sandboxes.get_mut(sandbox) else { return };
        cached.bounds.trimmed = through;
        cached.recent.trim(through);
    }

    /// Drops the cached events of deleted sandboxes.
    pub(crate) fn shrink(&mut self) {
        for cached in self.sandboxes.values_mut().filter(|cached| cached.row.state == SandboxState::Deleted) {
            if cached.recent.events.capacity() > 0 {
                cached.recent = EventTail::new(cached.recent.newest());
            }
        }
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        Some(self.sandboxes.get(id)?.row.clone())
    }

    pub(crate) fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        self.sandboxes.values().map(|cached| cached.row.clone()).collect()
    }

    /// The newest sequence of a sandbox.
    pub(crate) fn last_sequence(&self, id: &SandboxId) -> Option<Sequence> {
        Some(self.sandboxes.get(id)?.row.last_sequence)
    }

    pub(crate) fn running_exec(&self, id: &ExecId) -> Option<(Arc<Exec>, Sequence)> {
        let exec = self.running.get(id)?;
        Some((exec.clone(), self.last_sequence(&exec.sandbox)?))
    }

    pub(crate) fn running_execs(&self, sandbox: Option<&SandboxId>) -> Vec<(Arc<Exec>, Sequence)> {
        let of = |cached: &CachedSandbox| {
            cached.running.values().map(|exec| (exec.clone(), cached.row.last_sequence)).collect::<Vec<_>>()
        };
        match sandbox {
            Some(id) => self.sandboxes.get(id).map(of).unwrap_or_default(),
            None => self.running.keys().filter_map(|id| self.running_exec(id)).collect(),
        }
    }

    /// The newest position.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The newest sequence of a sandbox, if a cursor can start after `after`.
    pub(crate) fn newest_after(&self, sandbox: &SandboxId, after: Sequence) -> Result<Sequence, EventsError> {
        let cached = self.sandboxes.get(sandbox).ok_or(EventsError::Unknown)?;
        let newest = cached.row.last_sequence;
        let oldest = (cached.bounds.trimmed + 1).min(newest);
        // A client may have seen events that a power cut took.
        if after > newest.max(cached.bounds.floor) {
            Err(EventsError::Future { newest, oldest })
        } else if cached.has_lost(after) {
            Err(EventsError::Expired { oldest })
        } else {
            Ok(newest)
        }
    }

    /// The events of a sandbox after a sequence.
    pub(crate) fn next(&self, sandbox: &SandboxId, after: Sequence, most: usize) -> NextEvents {
        match self.sandboxes.get(sandbox) {
            Some(cached) if !self.closed && cached.has_lost(after) => {
                NextEvents::Expired { oldest: cached.bounds.trimmed + 1 }
            }
            Some(cached) if !self.closed => cached.recent.next(after, cached.row.last_sequence, sequence, most),
            _ => NextEvents::Closed,
        }
    }

    /// The events of all sandboxes after a position.
    pub(crate) fn next_of_all(&self, after: u64, most: usize) -> NextEvents {
        if self.closed { NextEvents::Closed } else { self.recent.next(after, self.newest, position, most) }
    }
}

// === impl CachedSandbox ===

impl CachedSandbox {
    /// Whether retention removed events that follow `after`. A cursor that starts at 0 gets the oldest that are kept.
    fn has_lost(&self, after: Sequence) -> bool {
        (1..self.bounds.trimmed).contains(&after)
    }
}

// === impl EventTail ===

impl EventTail {
    fn new(after: u64) -> Self {
        Self { after, events: VecDeque::new() }
    }

    /// The newest sequence, whether it is cached or not.
    fn newest(&self) -> u64 {
        self.events.back().map_or(self.after, |event| event.sequence)
    }

    fn trim(&mut self, through: Sequence) {
        while self.events.front().is_some_and(|event| event.sequence <= through) {
            self.events.pop_front();
        }
        self.after = self.after.max(through);
    }

    fn push(&mut self, event: &Arc<Event>, key: fn(&Event) -> u64, keep: usize) {
        self.events.push_back(event.clone());
        while self.events.len() > keep {
            if let Some(oldest) = self.events.pop_front() {
                self.after = key(&oldest);
            }
        }
    }

    fn next(&self, after: u64, newest: u64, key: fn(&Event) -> u64, most: usize) -> NextEvents {
        if after >= newest {
            NextEvents::None
        } else if after < self.after {
            NextEvents::Stored(EventRange { after, until: newest, most })
        } else {
            let first = self.events.partition_point(|event| key(event) <= after);
            let events: Vec<_> = self.events.iter().skip(first).take(most).cloned().collect();
            // The events of a purged sandbox are not cached any more.
            if events.is_empty() { NextEvents::None } else { NextEvents::Cached(events) }
        }
    }
}

fn sequence(event: &Event) -> u64 {
    event.sequence
}

fn position(event: &Event) -> u64 {
    event.position
}
