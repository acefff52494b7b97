//! The events of one sandbox, one after the other.

use std::collections::HashMap;

use crate::SandboxState::{Deleted, Deleting, Failed, Pending, Ready, Stopped};
use crate::sqlite::TrimmedHistory;
use crate::{Details, Event, EventType, Exec, ExecId, ExecState, Sandbox, SandboxState, Sequence};

/// What a state may be followed by, besides itself.
const NEXT: &[(SandboxState, &[SandboxState])] = &[
    (Pending, &[Ready, Failed, Deleting]),
    (Ready, &[Stopped, Failed, Deleting]),
    (Stopped, &[Pending, Deleting]),
    (Failed, &[Pending, Deleting]),
    (Deleting, &[Deleted, Failed]),
    (Deleted, &[]),
];

/// What the events say.
pub(super) struct History {
    gaps: HashMap<Sequence, Sequence>,
    /// Whether a repair left events or execs behind: then the rest need not add up.
    is_incomplete: bool,
    /// What retention removed: the beginning of the events, and the oldest of the execs that had ended.
    trimmed: TrimmedHistory,
    newest: Option<Newest>,
    execs: HashMap<ExecId, Told>,
    violations: Vec<String>,
}

struct Newest {
    sequence: Sequence,
    position: u64,
    state: SandboxState,
}

/// What the events say of an exec.
#[derive(Default)]
struct Told {
    started: u32,
    ended: Vec<ExecState>,
    /// Whether there is such an exec.
    known: bool,
}

// === impl History ===

impl History {
    pub(super) fn new(is_incomplete: bool, trimmed: TrimmedHistory) -> Self {
        let (gaps, execs) = (HashMap::new(), HashMap::new());
        Self { gaps, is_incomplete, trimmed, newest: None, execs, violations: Vec::new() }
    }

    /// Whether the beginning of the events was removed.
    fn is_trimmed(&self) -> bool {
        self.trimmed.events > 0
    }

    pub(super) fn add_gap(&mut self, after: Sequence, until: Sequence) {
        self.gaps.insert(after, until);
    }

    /// The sequence that follows one, behind all gaps.
    fn following(&self, sequence: Sequence) -> Sequence {
        let mut last = sequence;
        while let Some(until) = self.gaps.get(&last).filter(|until| **until > last) {
            last = *until;
        }
        last + 1
    }

    pub(super) fn complain(&mut self, violation: String) {
        self.violations.push(violation);
    }

    pub(super) fn add(&mut self, event: &Event) {
        self.check_place(event);
        self.check_kind(event);
        self.newest = Some(Newest { sequence: event.sequence, position: event.position, state: event.state });
    }

    fn check_place(&mut self, event: &Event) {
        let Event { sequence, position, state, .. } = *event;
        let Some(last) = &self.newest else {
            if sequence != self.following(self.trimmed.events) {
                self.complain(format!("its first event is {sequence}"));
            }
            if sequence != 1 && (self.is_incomplete || self.is_trimmed()) {
                return;
            }
            if event.kind != EventType::SandboxAccepted || state != Pending {
                self.complain(format!("its first event is {:?} with {state:?}", event.kind));
            }
            return;
        };
        let (before, was) = (last.sequence, last.state);
        let out_of_order = position <= last.position;
        if sequence != self.following(before) {
            self.complain(format!("event {sequence} follows {before}"));
        }
        if out_of_order {
            self.complain(format!("event {sequence} was committed before {before}"));
        }
        let allowed = NEXT.iter().filter(|(from, _)| *from == was).flat_map(|(_, to)| to.iter());
        let lost = self.is_incomplete && sequence != before + 1;
        if state != was && !lost && !allowed.into_iter().any(|to| *to == state) {
            self.complain(format!("at event {sequence} it went from {was:?} to {state:?}"));
        }
    }

    fn check_kind(&mut self, event: &Event) {
        let ended = match event.kind {
            EventType::ExecStarted => None,
            EventType::ExecFinished => Some(ExecState::Finished),
            EventType::ExecFailed => Some(ExecState::Failed),
            EventType::ExecCancelled => Some(ExecState::Cancelled),
            EventType::SandboxPaused | EventType::SandboxUnpaused if event.state != Ready => {
                let Event { sequence, kind, state, .. } = event;
                return self.complain(format!("event {sequence} is {kind:?} of one that is {state:?}"));
            }
            _ => return,
        };
        let Details::Exec { exec, state, .. } = &event.details else {
            return self.complain(format!("event {} is about an exec and names none", event.sequence));
        };
        if *state != ended.unwrap_or(ExecState::Running) {
            self.complain(format!("event {} is {:?} and says {state:?}", event.sequence, event.kind));
        }
        let told = self.execs.entry(exec.clone()).or_default();
        let in_turn = told.ended.is_empty()
            && (told.started == u32::from(ended.is_some())
                || (told.started == 0 && ended.is_some() && self.trimmed.events > 0));
        match ended {
            None => told.started += 1,
            Some(state) => told.ended.push(state),
        }
        if !in_turn && !self.is_incomplete {
            let (exec, kind) = (exec.clone(), event.kind);
            self.complain(format!("event {} is {kind:?} of {exec}, which is not its turn", event.sequence));
        }
    }

    /// Holds an exec against what was told of it.
    pub(super) fn check_exec(&mut self, exec: &Exec, state: SandboxState) {
        if self.is_incomplete {
            return;
        }
        let told = self.execs.entry(exec.id.clone()).or_default();
        told.known = true;
        let (started, ends) = (told.started, told.ended.len());
        let said = told.ended.first().copied();
        // Its beginning, or all of it, may have been removed.
        let (may_lack_start, may_lack_end) = (self.is_trimmed(), self.is_trimmed() && started == 0);
        if started != 1 && !(started == 0 && may_lack_start) {
            self.complain(format!("exec {} was started {started} times", exec.id));
        }
        if exec.state == ExecState::Running {
            if ends != 0 {
                self.complain(format!("exec {} runs, and has ended", exec.id));
            }
            if state == Deleted {
                self.complain(format!("exec {} runs in a sandbox that is gone", exec.id));
            }
        } else if ends != 1 {
            if ends == 0 && may_lack_end {
                return;
            }
            self.complain(format!("exec {} ended {ends} times", exec.id));
        } else if said != Some(exec.state) {
            self.complain(format!("exec {} is {:?}, and its last event says otherwise", exec.id, exec.state));
        }
    }

    /// Holds the row against its newest event.
    pub(super) fn end(mut self, row: &Sandbox, ceiling: Sequence) -> Vec<String> {
        if row.last_sequence > ceiling {
            self.complain(format!("its newest event is above its ceiling, {ceiling}"));
        }
        if self.is_incomplete {
            return self.violations;
        }
        let unknown: Vec<_> = self.execs.iter().filter(|(_, told)| !told.known).map(|(id, _)| id.clone()).collect();
        // Those that retention removed had ended.
        let had_ended = unknown.iter().filter(|id| self.execs.get(*id).is_some_and(|told| !told.ended.is_empty()));
        let are_trimmed = had_ended.count() as u64 <= self.trimmed.execs;
        for exec in unknown {
            if are_trimmed && self.execs.get(&exec).is_some_and(|told| !told.ended.is_empty()) {
                continue;
            }
            self.complain(format!("its events tell of exec {exec}, which there is not"));
        }
        match &self.newest {
            None => self.complain("it has no event".into()),
            Some(newest) => {
                let (sequence, state) = (newest.sequence, newest.state);
                if row.last_sequence != sequence {
                    self.complain(format!("its newest event is {sequence}, and its row says {}", row.last_sequence));
                }
                if row.state != state {
                    self.complain(format!("it is {:?}, and its newest event says {state:?}", row.state));
                }
            }
        }
        self.violations
    }
}
