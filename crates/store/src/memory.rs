//! What the store remembers: rows, running execs, and the last events.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::backend::{Applied, Loaded, Range};
use crate::{Event, EventsError, Exec, ExecId, ExecState, Sandbox, SandboxId, Sequence};

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
    /// No event up to here will come any more, whether there is one or not.
    floor: Sequence,
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
}

// === impl Memory ===

impl Memory {
    pub(crate) fn new(loaded: Loaded, keep: usize) -> Self {
        let mut sandboxes = HashMap::with_capacity(loaded.sandboxes.len());
        for (row, floor) in loaded.sandboxes {
            let recent = Tail::new(row.last_sequence);
            sandboxes.insert(row.id.clone(), Known { row: Arc::new(row), floor, running: BTreeMap::new(), recent });
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
            let recent = Tail::new(0);
            self.sandboxes
                .insert(row.id.clone(), Known { row: row.clone(), floor: 0, running: BTreeMap::new(), recent });
        }
        let Some(known) = self.sandboxes.get_mut(&row.id) else { return };
        known.row = row.clone();
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
        // What a power cut took was there for whoever saw it.
        if after > newest.max(known.floor) {
            Err(EventsError::Future { newest, oldest: 1.min(newest) })
        } else {
            Ok(newest)
        }
    }

    /// What happened to a sandbox after an event.
    pub(crate) fn next(&self, sandbox: &SandboxId, after: Sequence, most: usize) -> Next {
        match self.sandboxes.get(sandbox) {
            Some(known) if !self.closed => known.recent.next(after, known.row.last_sequence, sequence, most),
            _ => Next::Over,
        }
    }

    /// What happened to any sandbox after a position.
    pub(crate) fn next_of_all(&self, after: u64, most: usize) -> Next {
        if self.closed { Next::Over } else { self.recent.next(after, self.newest, position, most) }
    }
}

// === impl Tail ===

impl Tail {
    fn new(after: u64) -> Self {
        Self { after, events: VecDeque::new() }
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
