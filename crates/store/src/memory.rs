//! What the store remembers: rows, running execs, and the last events.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::backend::{Applied, Loaded, Range, SequenceBounds};
use crate::{Event, EventsError, Exec, ExecId, ExecState, Sandbox, SandboxId, SandboxState, Sequence};

/// All that was published. Whoever sees an event here sees the state that it announces.
#[derive(Debug)]
pub(crate) struct Memory {
    sandboxes: HashMap<SandboxId, Known>,
    running: BTreeMap<ExecId, Arc<Exec>>,
    recent: Tail,
    newest: u64,
    closed: bool,
    /// How many events of a sandbox are kept.
    keep: usize,
}

/// A sandbox.
#[derive(Debug)]
struct Known {
    row: Arc<Sandbox>,
    bounds: SequenceBounds,
    running: BTreeMap<ExecId, Arc<Exec>>,
    recent: Tail,
}

/// The last events.
#[derive(Debug)]
struct Tail {
    /// Everything after this is here.
    after: u64,
    events: VecDeque<Arc<Event>>,
}

/// What there is after some event.
#[derive(Debug)]
pub(crate) enum Next {
    /// Nothing, and nothing will come.
    Over,
    /// Nothing yet.
    Nothing,
    /// These.
    Here(Vec<Arc<Event>>),
    /// More than is remembered.
    Stored(Range),
    /// What follows was removed by retention, up to the oldest that is kept.
    Expired { oldest: Sequence },
}

// === impl Memory ===

impl Memory {
    pub(crate) fn new(loaded: Loaded, keep: usize) -> Self {
        let mut sandboxes = HashMap::with_capacity(loaded.sandboxes.len());
        for (row, bounds) in loaded.sandboxes {
            let recent = Tail::new(row.last_sequence);
            sandboxes.insert(row.id.clone(), Known { row: Arc::new(row), bounds, running: BTreeMap::new(), recent });
        }
        let recent = Tail::new(loaded.position);
        let mut memory =
            Self { sandboxes, running: BTreeMap::new(), recent, newest: loaded.position, closed: false, keep };
        for exec in loaded.running {
            memory.learn(Arc::new(exec));
        }
        memory
    }

    /// Takes in what a change made true.
    pub(crate) fn publish(&mut self, applied: &Applied, keep_of_all: usize) {
        let row = &applied.sandbox;
        if !self.sandboxes.contains_key(&row.id) {
            let (bounds, recent) = (SequenceBounds::default(), Tail::new(0));
            self.sandboxes.insert(row.id.clone(), Known { row: row.clone(), bounds, running: BTreeMap::new(), recent });
        }
        let Some(known) = self.sandboxes.get_mut(&row.id) else { return };
        known.row = row.clone();
        if row.state == SandboxState::Deleted {
            // Whoever follows it needs what is new; the rest is history, and read from the database.
            known.recent = Tail::new(known.recent.newest());
        }
        for event in &applied.events {
            known.recent.push(event, sequence, self.keep);
            self.recent.push(event, position, keep_of_all);
            self.newest = event.position;
        }
        for exec in &applied.execs {
            self.learn(exec.clone());
        }
    }

    fn learn(&mut self, exec: Arc<Exec>) {
        let Some(known) = self.sandboxes.get_mut(&exec.sandbox) else { return };
        if exec.state == ExecState::Running {
            known.running.insert(exec.id.clone(), exec.clone());
            self.running.insert(exec.id.clone(), exec);
        } else {
            known.running.remove(&exec.id);
            self.running.remove(&exec.id);
        }
    }

    pub(crate) fn forget(&mut self, sandbox: &SandboxId) {
        let Some(known) = self.sandboxes.remove(sandbox) else { return };
        for id in known.running.keys() {
            self.running.remove(id);
        }
        self.recent.events.retain(|event| event.sandbox != *sandbox);
    }

    /// Up to which sequence events of a sandbox were removed.
    pub(crate) fn trimmed(&self, sandbox: &SandboxId) -> Sequence {
        self.sandboxes.get(sandbox).map_or(0, |known| known.bounds.trimmed)
    }

    /// Events of a sandbox up to a sequence are not kept any more.
    pub(crate) fn set_trimmed(&mut self, sandbox: &SandboxId, through: Sequence) {
        let Some(known) = self.sandboxes.get_mut(sandbox) else { return };
        known.bounds.trimmed = through;
        known.recent.trim(through);
    }

    /// Leaves nothing of deleted sandboxes in memory but their rows.
    pub(crate) fn shrink(&mut self) {
        for known in self.sandboxes.values_mut().filter(|known| known.row.state == SandboxState::Deleted) {
            if known.recent.events.capacity() > 0 {
                known.recent = Tail::new(known.recent.newest());
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
        self.sandboxes.values().map(|known| known.row.clone()).collect()
    }

    /// The newest event of a sandbox.
    pub(crate) fn last_sequence(&self, id: &SandboxId) -> Option<Sequence> {
        Some(self.sandboxes.get(id)?.row.last_sequence)
    }

    pub(crate) fn running_exec(&self, id: &ExecId) -> Option<(Arc<Exec>, Sequence)> {
        let exec = self.running.get(id)?;
        Some((exec.clone(), self.last_sequence(&exec.sandbox)?))
    }

    pub(crate) fn running_execs(&self, sandbox: Option<&SandboxId>) -> Vec<(Arc<Exec>, Sequence)> {
        let of = |known: &Known| {
            known.running.values().map(|exec| (exec.clone(), known.row.last_sequence)).collect::<Vec<_>>()
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

    /// The newest event of a sandbox, if one can read on from `after`.
    pub(crate) fn anchor(&self, sandbox: &SandboxId, after: Sequence) -> Result<Sequence, EventsError> {
        let known = self.sandboxes.get(sandbox).ok_or(EventsError::Unknown)?;
        let newest = known.row.last_sequence;
        let oldest = (known.bounds.trimmed + 1).min(newest);
        // What a power cut took was there for whoever saw it.
        if after > newest.max(known.bounds.floor) {
            Err(EventsError::Future { newest, oldest })
        } else if known.has_lost(after) {
            Err(EventsError::Expired { oldest })
        } else {
            Ok(newest)
        }
    }

    /// What happened to a sandbox after an event.
    pub(crate) fn next(&self, sandbox: &SandboxId, after: Sequence, most: usize) -> Next {
        match self.sandboxes.get(sandbox) {
            Some(known) if !self.closed && known.has_lost(after) => Next::Expired { oldest: known.bounds.trimmed + 1 },
            Some(known) if !self.closed => known.recent.next(after, known.row.last_sequence, sequence, most),
            _ => Next::Over,
        }
    }

    /// What happened to any sandbox after a position.
    pub(crate) fn next_of_all(&self, after: u64, most: usize) -> Next {
        if self.closed { Next::Over } else { self.recent.next(after, self.newest, position, most) }
    }
}

// === impl Known ===

impl Known {
    /// Whether some of what follows an event was removed. Nobody has lost anything who begins with the oldest there is.
    fn has_lost(&self, after: Sequence) -> bool {
        (1..self.bounds.trimmed).contains(&after)
    }
}

// === impl Tail ===

impl Tail {
    fn new(after: u64) -> Self {
        Self { after, events: VecDeque::new() }
    }

    /// The newest event, whether it is here or not.
    fn newest(&self) -> u64 {
        self.events.back().map_or(self.after, |event| event.sequence)
    }

    fn trim(&mut self, through: Sequence) {
        while self.events.front().is_some_and(|event| event.sequence <= through) {
            self.events.pop_front();
        }
        self.after = self.after.max(through);
    }

    fn push(&mut self, event: &Arc<Event>, place: fn(&Event) -> u64, keep: usize) {
        self.events.push_back(event.clone());
        while self.events.len() > keep {
            if let Some(oldest) = self.events.pop_front() {
                self.after = place(&oldest);
            }
        }
    }

    fn next(&self, after: u64, newest: u64, place: fn(&Event) -> u64, most: usize) -> Next {
        if after >= newest {
            Next::Nothing
        } else if after < self.after {
            Next::Stored(Range { after, until: newest, most })
        } else {
            let first = self.events.partition_point(|event| place(event) <= after);
            let events: Vec<_> = self.events.iter().skip(first).take(most).cloned().collect();
            // Those of a sandbox that was purged are gone.
            if events.is_empty() { Next::Nothing } else { Next::Here(events) }
        }
    }
}

fn sequence(event: &Event) -> u64 {
    event.sequence
}

fn position(event: &Event) -> u64 {
    event.position
}
