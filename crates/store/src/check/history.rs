//! Checks the events of one sandbox, in order.

use std::collections::HashMap;

use super::violation::Violation;
use crate::SandboxState::{Deleted, Deleting, Failed, Pending, Ready, Stopped};
use crate::sqlite::TrimmedHistory;
use crate::{Event, EventDetails, EventType, Exec, ExecId, ExecState, Sandbox, SandboxState, Sequence};

/// The states that may follow a state, besides itself.
const NEXT: &[(SandboxState, &[SandboxState])] = &[
    (Pending, &[Ready, Failed, Deleting]),
    (Ready, &[Stopped, Failed, Deleting]),
    (Stopped, &[Pending, Deleting]),
    (Failed, &[Pending, Deleting]),
    (Deleting, &[Deleted, Failed]),
    (Deleted, &[]),
];

/// What the events of a sandbox tell about it.
pub(super) struct SandboxHistory {
    gaps: HashMap<Sequence, Sequence>,
    /// Whether a repair lost events or execs, so that the rest may be inconsistent.
    is_incomplete: bool,
    /// What retention removed: the oldest events, and the oldest of the ended execs.
    trimmed: TrimmedHistory,
    newest: Option<NewestEvent>,
    execs: HashMap<ExecId, ExecHistory>,
    violations: Vec<Violation>,
}

struct NewestEvent {
    sequence: Sequence,
    position: u64,
    state: SandboxState,
}

/// What the events tell about an exec.
#[derive(Default)]
struct ExecHistory {
    started: u32,
    ended: Vec<ExecState>,
    /// Whether the exec exists.
    known: bool,
}

// === impl SandboxHistory ===

impl SandboxHistory {
    pub(super) fn new(is_incomplete: bool, trimmed: TrimmedHistory) -> Self {
        let (gaps, execs) = (HashMap::new(), HashMap::new());
        Self { gaps, is_incomplete, trimmed, newest: None, execs, violations: Vec::new() }
    }

    /// Whether retention removed the oldest events.
    fn is_trimmed(&self) -> bool {
        self.trimmed.events > 0
    }

    pub(super) fn add_gap(&mut self, after: Sequence, until: Sequence) {
        self.gaps.insert(after, until);
    }

    /// The sequence that follows another one, after recorded gaps.
    fn following(&self, sequence: Sequence) -> Sequence {
        let mut last = sequence;
        while let Some(until) = self.gaps.get(&last).filter(|until| **until > last) {
            last = *until;
        }
        last + 1
    }

    pub(super) fn report(&mut self, violation: Violation) {
        self.violations.push(violation);
    }

    pub(super) fn add(&mut self, event: &Event) {
        self.check_order(event);
        self.check_kind(event);
        self.newest = Some(NewestEvent { sequence: event.sequence, position: event.position, state: event.state });
    }

    fn check_order(&mut self, event: &Event) {
        let Event { sequence, position, state, .. } = *event;
        let Some(last) = &self.newest else {
            if sequence != self.following(self.trimmed.events) {
                self.report(Violation::FirstSequence { sequence });
            }
            if sequence != 1 && (self.is_incomplete || self.is_trimmed()) {
                return;
            }
            if event.kind != EventType::SandboxAccepted || state != Pending {
                self.report(Violation::FirstType { kind: event.kind, state });
            }
            return;
        };
        let (before, was) = (last.sequence, last.state);
        let out_of_order = position <= last.position;
        if sequence != self.following(before) {
            self.report(Violation::Gap { sequence, before });
        }
        if out_of_order {
            self.report(Violation::CommitOrder { sequence, before });
        }
        let allowed = NEXT.iter().filter(|(from, _)| *from == was).flat_map(|(_, to)| to.iter());
        let lost = self.is_incomplete && sequence != before + 1;
        if state != was && !lost && !allowed.into_iter().any(|to| *to == state) {
            self.report(Violation::Transition { sequence, was, state });
        }
    }

    fn check_kind(&mut self, event: &Event) {
        let ended = match event.kind {
            EventType::ExecStarted => None,
            EventType::ExecFinished => Some(ExecState::Finished),
            EventType::ExecFailed => Some(ExecState::Failed),
            EventType::ExecCancelled => Some(ExecState::Cancelled),
            EventType::SandboxPaused | EventType::SandboxUnpaused if event.state != Ready => {
                let Event { sequence, kind, state, .. } = *event;
                return self.report(Violation::PauseState { sequence, kind, state });
            }
            _ => return,
        };
        let EventDetails::Exec { exec, state, .. } = &event.details else {
            return self.report(Violation::ExecEventWithoutExec { sequence: event.sequence });
        };
        if *state != ended.unwrap_or(ExecState::Running) {
            self.report(Violation::ExecEventState { sequence: event.sequence, kind: event.kind, state: *state });
        }
        let exec_history = self.execs.entry(exec.clone()).or_default();
        let in_turn = exec_history.ended.is_empty()
            && (exec_history.started == u32::from(ended.is_some())
                || (exec_history.started == 0 && ended.is_some() && self.trimmed.events > 0));
        match ended {
            None => exec_history.started += 1,
            Some(state) => exec_history.ended.push(state),
        }
        if !in_turn && !self.is_incomplete {
            let Event { sequence, kind, .. } = *event;
            self.report(Violation::ExecEventOrder { sequence, kind, exec: exec.clone() });
        }
    }

    /// Compares an exec with its events.
    pub(super) fn check_exec(&mut self, exec: &Exec, state: SandboxState) {
        if self.is_incomplete {
            return;
        }
        let exec_history = self.execs.entry(exec.id.clone()).or_default();
        exec_history.known = true;
        let (started, ends) = (exec_history.started, exec_history.ended.len());
        let last_state = exec_history.ended.first().copied();
        // Retention may have removed its start event, or all of its events.
        let (may_lack_start, may_lack_end) = (self.is_trimmed(), self.is_trimmed() && started == 0);
        if started != 1 && !(started == 0 && may_lack_start) {
            self.report(Violation::ExecStarts { exec: exec.id.clone(), started });
        }
        if exec.state == ExecState::Running {
            if ends != 0 {
                self.report(Violation::ExecRunning { exec: exec.id.clone() });
            }
            if state == Deleted {
                self.report(Violation::ExecOutlived { exec: exec.id.clone() });
            }
        } else if ends != 1 {
            if ends == 0 && may_lack_end {
                return;
            }
            self.report(Violation::ExecEnds { exec: exec.id.clone(), ends });
        } else if last_state != Some(exec.state) {
            self.report(Violation::ExecOutcome { exec: exec.id.clone(), state: exec.state });
        }
    }

    /// Compares the row with the newest event, and returns all violations.
    pub(super) fn end(mut self, row: &Sandbox, ceiling: Sequence) -> Vec<Violation> {
        if row.last_sequence > ceiling {
            self.report(Violation::Ceiling { ceiling });
        }
        if self.is_incomplete {
            return self.violations;
        }
        let unknown: Vec<_> =
            self.execs.iter().filter(|(_, exec_history)| !exec_history.known).map(|(id, _)| id.clone()).collect();
        // Execs that retention removed had ended.
        let had_ended =
            unknown.iter().filter(|id| self.execs.get(*id).is_some_and(|exec_history| !exec_history.ended.is_empty()));
        let are_trimmed = had_ended.count() as u64 <= self.trimmed.execs;
        for exec in unknown {
            if are_trimmed && self.execs.get(&exec).is_some_and(|exec_history| !exec_history.ended.is_empty()) {
                continue;
            }
            self.report(Violation::UnknownExec { exec });
        }
        match &self.newest {
            None => self.report(Violation::NoEvents {}),
            Some(newest) => {
                let (sequence, state) = (newest.sequence, newest.state);
                if row.last_sequence != sequence {
                    self.report(Violation::NewestSequence { sequence, row: row.last_sequence });
                }
                if row.state != state {
                    self.report(Violation::NewestState { row: row.state, state });
                }
            }
        }
        self.violations
    }
}
