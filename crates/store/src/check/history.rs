//! Checks the events of one sandbox, in order.

use std::collections::HashMap;

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
    violations: Vec<String>,
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

    pub(super) fn report(&mut self, violation: String) {
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
                self.report(format!("its first event is {sequence}"));
            }
            if sequence != 1 && (self.is_incomplete || self.is_trimmed()) {
                return;
            }
            if event.kind != EventType::SandboxAccepted || state != Pending {
                self.report(format!("its first event is {:?} with {state:?}", event.kind));
            }
            return;
        };
        let (before, was) = (last.sequence, last.state);
        let out_of_order = position <= last.position;
        if sequence != self.following(before) {
            self.report(format!("event {sequence} follows {before}"));
        }
        if out_of_order {
            self.report(format!("event {sequence} was committed before {before}"));
        }
        let allowed = NEXT.iter().filter(|(from, _)| *from == was).flat_map(|(_, to)| to.iter());
        let lost = self.is_incomplete && sequence != before + 1;
        if state != was && !lost && !allowed.into_iter().any(|to| *to == state) {
            self.report(format!("at event {sequence} it went from {was:?} to {state:?}"));
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
                return self.report(format!("event {sequence} is {kind:?} of a sandbox in state {state:?}"));
            }
            _ => return,
        };
        let EventDetails::Exec { exec, state, .. } = &event.details else {
            return self.report(format!("event {} is about an exec but has no exec id", event.sequence));
        };
        if *state != ended.unwrap_or(ExecState::Running) {
            self.report(format!("event {} is {:?} but has exec state {state:?}", event.sequence, event.kind));
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
            let (exec, kind) = (exec.clone(), event.kind);
            self.report(format!("event {} is {kind:?} of exec {exec}, out of order", event.sequence));
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
            self.report(format!("exec {} was started {started} times", exec.id));
        }
        if exec.state == ExecState::Running {
            if ends != 0 {
                self.report(format!("exec {} is Running, but its events say that it ended", exec.id));
            }
            if state == Deleted {
                self.report(format!("exec {} is Running in a deleted sandbox", exec.id));
            }
        } else if ends != 1 {
            if ends == 0 && may_lack_end {
                return;
            }
            self.report(format!("exec {} ended {ends} times", exec.id));
        } else if last_state != Some(exec.state) {
            self.report(format!("exec {} is {:?}, but its last event says otherwise", exec.id, exec.state));
        }
    }

    /// Compares the row with the newest event, and returns all violations.
    pub(super) fn end(mut self, row: &Sandbox, ceiling: Sequence) -> Vec<String> {
        if row.last_sequence > ceiling {
            self.report(format!("its newest event is above its ceiling, {ceiling}"));
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
            self.report(format!("its events name exec {exec}, which does not exist"));
        }
        match &self.newest {
            None => self.report("it has no events".into()),
            Some(newest) => {
                let (sequence, state) = (newest.sequence, newest.state);
                if row.last_sequence != sequence {
                    self.report(format!("its newest event is {sequence}, but its row says {}", row.last_sequence));
                }
                if row.state != state {
                    self.report(format!("it is {:?}, but its newest event says {state:?}", row.state));
                }
            }
        }
        self.violations
    }
}
