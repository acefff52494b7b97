//! Whether what was answered and told is what the model says.
//!
//! A log says in which order things happened. An answer is right if it was at some moment between the question and itself.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::daemon::{Asked, Outcome};
use crate::model::{Answer, EXEC_TAKEN, Event, Request, Sandbox};
use crate::steps::{Ask, RESTARTED, SANDBOXES};

/// The log of a sandbox, and the sandbox after each of its events; the first is before all of them.
pub(crate) struct Told {
    pub(crate) log: Vec<Event>,
    pub(crate) moments: Vec<Sandbox>,
}

/// What was done that nobody asked for.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// How often a sandbox may have failed, by the word for it.
    pub(crate) failures: BTreeMap<&'static str, u32>,
    /// Commands that ended by themselves, and how.
    pub(crate) ended: HashMap<String, i32>,
    /// How often a sandbox may have stopped although nobody asked for it, by the word for it.
    pub(crate) exits: BTreeMap<&'static str, u32>,
    /// Whether commands may never have run.
    pub(crate) execs_failed: bool,
}

// === impl Told ===

impl Told {
    pub(crate) fn new(log: Vec<Event>) -> Result<Self, String> {
        let mut moments = vec![Sandbox::default()];
        for event in &log {
            let mut sandbox = moments[moments.len() - 1].clone();
            sandbox.happen(event)?;
            moments.push(sandbox);
        }
        Ok(Self { log, moments })
    }

    pub(crate) fn now(&self) -> &Sandbox {
        &self.moments[self.moments.len() - 1]
    }

    fn knows(&self, exec: &str) -> bool {
        self.now().execs.contains_key(exec)
    }
}

/// Judges a whole case.
pub(crate) fn judge(told: &[Told; SANDBOXES], asked: &[Asked], done: &Done) -> Result<(), String> {
    let mut causes: [HashSet<usize>; SANDBOXES] = Default::default();
    // Those whose answer has no other explanation than an event choose first, and of them those who waited least.
    let mut order: Vec<_> = asked.iter().collect();
    order.sort_by_key(|asked| {
        let sandbox = asked.what.sandbox().unwrap_or_default();
        (asked.outcome == Outcome::Unknown, silent(told, asked), asked.after[sandbox])
    });
    for asked in order {
        explain(told, asked, &mut causes).map_err(|error| format!("{error}: {asked:?}"))?;
    }
    for (number, (told, causes)) in told.iter().zip(&causes).enumerate() {
        for (index, event) in told.log.iter().enumerate() {
            let by_itself = match event.kind {
                // The host stopped it, and its restart policy resumes it.
                1 => number == RESTARTED && told.moments[index].reason == "host_restarted",
                5 => event.reason != "stop_requested",
                _ => false,
            };
            if matches!(event.kind, 1 | 5 | 7 | 9) && !by_itself && !causes.contains(&index) {
                return Err(format!("nobody asked for event {}: {event:?}", index + 1));
            }
            exec_ended(event, index, told, asked, done)?;
        }
    }
    failures(told, done)?;
    exits(told, done)?;
    for exec in told.iter().flat_map(|told| told.now().execs.keys()) {
        if told.iter().filter(|told| told.knows(exec)).count() > 1 {
            return Err(format!("{exec} is in two sandboxes"));
        }
    }
    Ok(())
}

/// The moments at which a request may have been answered.
fn window<'a>(
    told: &'a [Told; SANDBOXES],
    asked: &Asked,
) -> Option<(usize, &'a Told, std::ops::RangeInclusive<usize>)> {
    let sandbox = match asked.what {
        Ask::Cancel(exec) => told.iter().position(|told| told.knows(&crate::daemon::exec_id(exec)))?,
        other => other.sandbox()?,
    };
    let end = asked.after[sandbox].min(told[sandbox].log.len());
    Some((sandbox, &told[sandbox], asked.before[sandbox]..=end))
}

/// Whether it may have been accepted without an event.
fn silent(told: &[Told; SANDBOXES], asked: &Asked) -> bool {
    let request = asked.what.request();
    window(told, asked).is_some_and(|(_, told, mut moments)| {
        moments.any(|moment| told.moments[moment].answer(&request) == Answer::Silent)
    })
}

/// Finds the moment at which a request was answered, and the event that it caused.
fn explain(told: &[Told; SANDBOXES], asked: &Asked, causes: &mut [HashSet<usize>; SANDBOXES]) -> Result<(), String> {
    let request = asked.what.request();
    let Some((sandbox, own, moments)) = window(told, asked) else {
        let is_right = matches!(&asked.outcome, Outcome::Refused(_, "EXEC_NOT_FOUND") | Outcome::Unknown);
        return if is_right { Ok(()) } else { Err("there never was such an exec".to_owned()) };
    };
    if asked.outcome != Outcome::Done || !silent(told, asked) {
        for moment in moments.clone() {
            match (own.moments[moment].answer(&request), &asked.outcome) {
                (Answer::Refused(code, reason), Outcome::Refused(given, word)) if given == code && *word == reason => {
                    return Ok(());
                }
                (Answer::Told(kind), Outcome::Done | Outcome::Unknown)
                    if moment < *moments.end()
                        && caused(own, moment, kind, &request)
                        && causes[sandbox].insert(moment) =>
                {
                    return Ok(());
                }
                _ => {}
            }
        }
    }
    match (&asked.outcome, &request) {
        (Outcome::Unknown, _) => Ok(()),
        (Outcome::Done, _) if silent(told, asked) => {
            // It may have been the one that is told of all the same.
            for moment in moments.clone().take_while(|moment| moment < moments.end()) {
                let Answer::Told(kind) = own.moments[moment].answer(&request) else { continue };
                if caused(own, moment, kind, &request) && causes[sandbox].insert(moment) {
                    break;
                }
            }
            Ok(())
        }
        (Outcome::Refused(code, reason), Request::Exec(exec))
            if Answer::Refused("AlreadyExists", reason) == EXEC_TAKEN =>
        {
            let known = (0..SANDBOXES).any(|other| told[other].moments[asked.after[other]].execs.contains_key(exec));
            let ready = moments.clone().any(|moment| own.moments[moment].answer(&request) == Answer::Told(9));
            let is_right = known && ready && code == "AlreadyExists";
            if is_right { Ok(()) } else { Err("no other exec has that id".to_owned()) }
        }
        _ => Err("that answer was right at no moment".to_owned()),
    }
}

/// Whether the event after a moment is the one that says that a request was accepted.
fn caused(told: &Told, moment: usize, kind: u8, request: &Request) -> bool {
    let event = &told.log[moment];
    event.kind == kind
        && !(kind == 5 && event.reason != "stop_requested")
        && match (request, &event.exec) {
            (Request::Exec(asked), Some((exec, ..))) => asked == exec,
            (Request::Exec(_), None) => false,
            _ => true,
        }
}

/// Whether an exec ended as it did, or as somebody wanted.
fn exec_ended(event: &Event, index: usize, told: &Told, asked: &[Asked], done: &Done) -> Result<(), String> {
    let Some((exec, _, code)) = event.exec.as_ref().filter(|_| event.kind > 9) else { return Ok(()) };
    let cancelled = |asked: &Asked| {
        let is_it = asked.what.request() == Request::Cancel(exec.clone());
        is_it && !matches!(asked.outcome, Outcome::Refused(..))
    };
    let end = told.log[index..].iter().find(|event| matches!(event.kind, 4 | 6 | 8));
    let lost = ["SANDBOX_STOP_FAILED", "SANDBOX_DELETE_FAILED"];
    let is_right = match (event.kind, code, done.ended.get(exec)) {
        (12, _, None) => asked.iter().any(cancelled),
        // What happened just before everything was removed, or could not be ended, may not have been told any more.
        (11, 137, Some(_)) => end.is_some_and(|end| end.kind == 8 || lost.contains(&end.error_code.as_str())),
        (10 | 11, code, Some(expected)) => code == expected,
        (11, 137, None) => end.is_some(),
        (11, 126, None) => done.execs_failed,
        _ => false,
    };
    if is_right { Ok(()) } else { Err(format!("{event:?} is not how {exec} ended: {:?}", done.ended.get(exec))) }
}

/// Whether no sandbox failed of its own accord.
fn failures(told: &[Told; SANDBOXES], done: &Done) -> Result<(), String> {
    let mut left = done.failures.clone();
    for event in told.iter().flat_map(|told| &told.log).filter(|event| event.kind == 4) {
        let word = match event.error_code.as_str() {
            "SANDBOX_RESUME_FAILED" => "SANDBOX_CREATE_FAILED",
            other => other,
        };
        match left.get_mut(word).filter(|left| **left > 0) {
            Some(left) => *left -= 1,
            None => return Err(format!("nothing made it fail: {event:?}")),
        }
    }
    Ok(())
}

/// Whether no sandbox stopped of its own accord.
fn exits(told: &[Told; SANDBOXES], done: &Done) -> Result<(), String> {
    let mut left = done.exits.clone();
    for event in told.iter().flat_map(|told| &told.log).filter(|event| event.kind == 5) {
        match left.get_mut(event.reason.as_str()) {
            Some(left) if *left > 0 => *left -= 1,
            _ if event.reason == "stop_requested" => {}
            _ => return Err(format!("nothing made it stop: {event:?}")),
        }
    }
    Ok(())
}
