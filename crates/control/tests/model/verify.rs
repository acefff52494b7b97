//! Verifies answers and events against the model.
//!
//! The log defines the order of events. An answer is valid if the model gives it at some point between the request and
//! the answer.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::daemon::{CompletedRequest, RequestOutcome};
use crate::model::{EXEC_TAKEN, ExpectedAnswer, ModelEvent, ModelRequest, ModelSandbox};
use crate::steps::{ClientRequest, RESTARTED, SANDBOXES};

/// The log of a sandbox, and the states between its events; the first state precedes all of them.
pub(crate) struct SandboxHistory {
    pub(crate) log: Vec<ModelEvent>,
    pub(crate) states: Vec<ModelSandbox>,
}

/// What happened without a request.
#[derive(Debug, Default)]
pub(crate) struct InjectedFaults {
    /// How many times a sandbox may have failed, by error code.
    pub(crate) failures: BTreeMap<&'static str, u32>,
    /// The exit codes of execs that ended by themselves.
    pub(crate) ended: HashMap<String, i32>,
    /// How many times a sandbox may have stopped without a request, by reason.
    pub(crate) exits: BTreeMap<&'static str, u32>,
    /// Whether execs may have failed to start.
    pub(crate) execs_failed: bool,
}

// === impl SandboxHistory ===

impl SandboxHistory {
    pub(crate) fn new(log: Vec<ModelEvent>) -> Result<Self, String> {
        let mut states = vec![ModelSandbox::default()];
        for event in &log {
            let mut sandbox = states[states.len() - 1].clone();
            sandbox.happen(event)?;
            states.push(sandbox);
        }
        Ok(Self { log, states })
    }

    pub(crate) fn now(&self) -> &ModelSandbox {
        &self.states[self.states.len() - 1]
    }

    fn knows(&self, exec: &str) -> bool {
        self.now().execs.contains_key(exec)
    }
}

/// Verifies a whole case.
pub(crate) fn verify(
    histories: &[SandboxHistory; SANDBOXES],
    completed: &[CompletedRequest],
    faults: &InjectedFaults,
) -> Result<(), String> {
    let mut causes: [HashSet<usize>; SANDBOXES] = Default::default();
    // Requests that only an event can explain choose first, and of them those with the shortest wait.
    let mut order: Vec<_> = completed.iter().collect();
    order.sort_by_key(|completed| {
        let sandbox = completed.what.sandbox().unwrap_or_default();
        (completed.outcome == RequestOutcome::Unknown, silent(histories, completed), completed.after[sandbox])
    });
    for completed in order {
        explain(histories, completed, &mut causes).map_err(|error| format!("{error}: {completed:?}"))?;
    }
    for (number, (history, causes)) in histories.iter().zip(&causes).enumerate() {
        for (index, event) in history.log.iter().enumerate() {
            let by_itself = match event.kind {
                // The host stopped it, and its restart policy resumes it.
                1 => number == RESTARTED && history.states[index].reason == "host_restarted",
                5 => event.reason != "stop_requested",
                _ => false,
            };
            if matches!(event.kind, 1 | 5 | 7 | 9) && !by_itself && !causes.contains(&index) {
                return Err(format!("no request caused event {}: {event:?}", index + 1));
            }
            exec_ended(event, index, history, completed, faults)?;
        }
    }
    failures(histories, faults)?;
    exits(histories, faults)?;
    for exec in histories.iter().flat_map(|history| history.now().execs.keys()) {
        if histories.iter().filter(|history| history.knows(exec)).count() > 1 {
            return Err(format!("{exec} is in two sandboxes"));
        }
    }
    Ok(())
}

/// The states in which a request may have been answered.
fn window<'a>(
    histories: &'a [SandboxHistory; SANDBOXES],
    completed: &CompletedRequest,
) -> Option<(usize, &'a SandboxHistory, std::ops::RangeInclusive<usize>)> {
    let sandbox = match completed.what {
        ClientRequest::Cancel(exec) => {
            histories.iter().position(|history| history.knows(&crate::daemon::exec_id(exec)))?
        }
        other => other.sandbox()?,
    };
    let end = completed.after[sandbox].min(histories[sandbox].log.len());
    Some((sandbox, &histories[sandbox], completed.before[sandbox]..=end))
}

/// Whether it may have been accepted without an event.
fn silent(histories: &[SandboxHistory; SANDBOXES], completed: &CompletedRequest) -> bool {
    let request = completed.what.request();
    window(histories, completed).is_some_and(|(_, history, mut states)| {
        states.any(|index| history.states[index].answer(&request) == ExpectedAnswer::Silent)
    })
}

/// Finds the state in which a request was answered, and the event that it caused.
fn explain(
    histories: &[SandboxHistory; SANDBOXES],
    completed: &CompletedRequest,
    causes: &mut [HashSet<usize>; SANDBOXES],
) -> Result<(), String> {
    let request = completed.what.request();
    let Some((sandbox, own, states)) = window(histories, completed) else {
        let is_valid =
            matches!(&completed.outcome, RequestOutcome::Refused(_, "EXEC_NOT_FOUND") | RequestOutcome::Unknown);
        return if is_valid { Ok(()) } else { Err("there was no such exec".to_owned()) };
    };
    if completed.outcome != RequestOutcome::Accepted || !silent(histories, completed) {
        for index in states.clone() {
            match (own.states[index].answer(&request), &completed.outcome) {
                (ExpectedAnswer::Refused(code, reason), RequestOutcome::Refused(given, word))
                    if given == code && *word == reason =>
                {
                    return Ok(());
                }
                (ExpectedAnswer::Event(kind), RequestOutcome::Accepted | RequestOutcome::Unknown)
                    if index < *states.end() && caused(own, index, kind, &request) && causes[sandbox].insert(index) =>
                {
                    return Ok(());
                }
                _ => {}
            }
        }
    }
    match (&completed.outcome, &request) {
        (RequestOutcome::Unknown, _) => Ok(()),
        (RequestOutcome::Accepted, _) if silent(histories, completed) => {
            // It may nevertheless have caused the event.
            for index in states.clone().take_while(|index| index < states.end()) {
                let ExpectedAnswer::Event(kind) = own.states[index].answer(&request) else { continue };
                if caused(own, index, kind, &request) && causes[sandbox].insert(index) {
                    break;
                }
            }
            Ok(())
        }
        (RequestOutcome::Refused(code, reason), ModelRequest::Exec(exec))
            if ExpectedAnswer::Refused("AlreadyExists", reason) == EXEC_TAKEN =>
        {
            let known =
                (0..SANDBOXES).any(|other| histories[other].states[completed.after[other]].execs.contains_key(exec));
            let ready = states.clone().any(|index| own.states[index].answer(&request) == ExpectedAnswer::Event(9));
            let is_valid = known && ready && code == "AlreadyExists";
            if is_valid { Ok(()) } else { Err("no other exec has that id".to_owned()) }
        }
        _ => Err("the answer was valid in no state".to_owned()),
    }
}

/// Whether the event after a state shows that a request was accepted.
fn caused(history: &SandboxHistory, index: usize, kind: u8, request: &ModelRequest) -> bool {
    let event = &history.log[index];
    event.kind == kind
        && !(kind == 5 && event.reason != "stop_requested")
        && match (request, &event.exec) {
            (ModelRequest::Exec(completed), Some((exec, ..))) => completed == exec,
            (ModelRequest::Exec(_), None) => false,
            _ => true,
        }
}

/// Whether an exec ended by itself, or because of a request.
fn exec_ended(
    event: &ModelEvent,
    index: usize,
    history: &SandboxHistory,
    completed: &[CompletedRequest],
    faults: &InjectedFaults,
) -> Result<(), String> {
    let Some((exec, _, code)) = event.exec.as_ref().filter(|_| event.kind > 9) else { return Ok(()) };
    let cancelled = |completed: &CompletedRequest| {
        let is_it = completed.what.request() == ModelRequest::Cancel(exec.clone());
        is_it && !matches!(completed.outcome, RequestOutcome::Refused(..))
    };
    let end = history.log[index..].iter().find(|event| matches!(event.kind, 4 | 6 | 8));
    let lost = ["SANDBOX_STOP_FAILED", "SANDBOX_DELETE_FAILED"];
    let is_valid = match (event.kind, code, faults.ended.get(exec)) {
        (12, _, None) => completed.iter().any(cancelled),
        // What happened just before a removal, or before a stop that failed, may not be in the log.
        (11, 137, Some(_)) => end.is_some_and(|end| end.kind == 8 || lost.contains(&end.error_code.as_str())),
        (10 | 11, code, Some(expected)) => code == expected,
        (11, 137, None) => end.is_some(),
        (11, 126, None) => faults.execs_failed,
        _ => false,
    };
    if is_valid { Ok(()) } else { Err(format!("{event:?} is not how {exec} ended: {:?}", faults.ended.get(exec))) }
}

/// Whether every failure has a cause.
fn failures(histories: &[SandboxHistory; SANDBOXES], faults: &InjectedFaults) -> Result<(), String> {
    let mut left = faults.failures.clone();
    for event in histories.iter().flat_map(|histories| &histories.log).filter(|event| event.kind == 4) {
        let word = match event.error_code.as_str() {
            "SANDBOX_RESUME_FAILED" => "SANDBOX_CREATE_FAILED",
            other => other,
        };
        match left.get_mut(word).filter(|left| **left > 0) {
            Some(left) => *left -= 1,
            None => return Err(format!("nothing caused the failure: {event:?}")),
        }
    }
    Ok(())
}

/// Whether every stop without a request has a cause.
fn exits(histories: &[SandboxHistory; SANDBOXES], faults: &InjectedFaults) -> Result<(), String> {
    let mut left = faults.exits.clone();
    for event in histories.iter().flat_map(|histories| &histories.log).filter(|event| event.kind == 5) {
        match left.get_mut(event.reason.as_str()) {
            Some(left) if *left > 0 => *left -= 1,
            _ if event.reason == "stop_requested" => {}
            _ => return Err(format!("nothing caused the stop: {event:?}")),
        }
    }
    Ok(())
}
