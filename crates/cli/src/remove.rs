//! `carrel rm`: what is left of sandboxes, and kept changes.

use std::path::Path;
use std::time::{Duration, Instant};

use carrel_changes::{ChangeName, KeepError, Kept};
use carrel_shim_client::{Found, Life};
use serde_json::json;

use crate::arguments::RemoveArguments;
use crate::failure::{Failure, Failures};
use crate::home::{Home, IDS};
use crate::{find, stop};

/// What this exits with when it fails.
const FAILED: u8 = 1;

/// How long a sandbox that is ended without a grace may take to be gone, until its supervisor is ended too.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long others may be at what is left of a sandbox.
const SWEEPING: Duration = Duration::from_secs(2);
/// How long they are left alone, until it is tried again.
const AGAIN: Duration = Duration::from_millis(10);

/// What a name stands for.
#[derive(Debug)]
enum Meant {
    Sandbox(Box<Found>),
    Changes(ChangeName),
}

/// Removes; returns what to exit with.
pub(crate) fn remove(arguments: &RemoveArguments, json: bool) -> Result<u8, Failure> {
    let mut failures = Failures::new(json);
    for name in &arguments.names {
        match one(arguments, name, json) {
            Ok(what) => {
                let line =
                    if json { crate::json::line(&json!({"name": name, "removed": what})) } else { String::new() };
                crate::say(line.as_bytes())?;
            }
            Err(failure) => failures.add(failure),
        }
    }
    failures.finish(FAILED)
}

/// Removes what has a name; tells what that was.
fn one(arguments: &RemoveArguments, name: &str, json: bool) -> Result<&'static str, Failure> {
    let sandbox = if looks_for_sandboxes(arguments) { find::maybe(name)? } else { None };
    let changes = if arguments.sandbox { None } else { kept(name)? };
    match meant(arguments, name, sandbox, changes)? {
        Meant::Sandbox(found) => sandbox_of(arguments, name, &found, json).map(|()| "sandbox"),
        Meant::Changes(name) => Ok(Kept::remove(&Home::find()?.changes(), &name).map(|()| "changes")?),
    }
}

/// Anybody may have kept changes; sandboxes are root's.
fn looks_for_sandboxes(arguments: &RemoveArguments) -> bool {
    arguments.sandbox || (!arguments.changes && rustix::process::geteuid().is_root())
}

/// The changes that are kept under a name.
fn kept(name: &str) -> Result<Option<ChangeName>, Failure> {
    let all = Kept::list(&Home::find()?.changes())?;
    Ok(all.into_iter().find(|kept| kept.as_str() == name))
}

/// Decides what is meant, or says why that is not clear.
fn meant(
    arguments: &RemoveArguments,
    name: &str,
    sandbox: Option<Found>,
    changes: Option<ChangeName>,
) -> Result<Meant, Failure> {
    match (sandbox, changes) {
        (Some(found), None) => Ok(Meant::Sandbox(Box::new(found))),
        (None, Some(changes)) => Ok(Meant::Changes(changes)),
        (Some(_), Some(_)) => {
            let words = format!("there are a sandbox and kept changes named {name:?}");
            Err(Failure::new("ambiguous_name", words).hint("say which with --sandbox or --changes"))
        }
        (None, None) if arguments.sandbox => Err(find::no_such_sandbox(name)),
        (None, None) if arguments.changes => {
            let name = name.parse().map_err(|bad| Failure::new("invalid_name", bad))?;
            Err(KeepError::Unknown(name).into())
        }
        (None, None) => {
            let words = format!("there is no sandbox named {name:?}, and there are no kept changes of that name");
            let hint = "`carrel ps` lists sandboxes, `carrel changes` what is kept";
            Err(Failure::new("unknown_name", words).hint(hint))
        }
    }
}

fn sandbox_of(arguments: &RemoveArguments, name: &str, found: &Found, json: bool) -> Result<(), Failure> {
    let running = || {
        let hint = format!("`carrel stop {name}` ends it; `carrel rm --force {name}` does both");
        Failure::new("sandbox_running", format!("the sandbox {name:?} is running")).hint(hint)
    };
    if !matches!(found.life, Life::Dead { .. }) {
        if !arguments.force {
            return Err(running());
        }
        let end = find::runtime()?.block_on(stop::end(name, Duration::ZERO, PATIENCE))?;
        end.note(name, json);
    }
    let (began, incarnation) = (Instant::now(), incarnation(found));
    loop {
        let collected = match incarnation {
            Some(incarnation) => carrel_shim::collect_incarnation(&found.directory, incarnation),
            None => carrel_shim::collect(&found.directory),
        };
        if collected.map_err(|error| Failure::new("remove_failed", error))? {
            // What cannot be removed now is found by the next run.
            let _groups = carrel_shim::sweep_groups(Path::new(IDS));
            return Ok(());
        }
        match find::maybe(name)? {
            // One that goes with its owner has taken its directory along.
            None => return Ok(()),
            // So it has, and another has its name.
            Some(now) if now.life == Life::Running && self::incarnation(&now) != incarnation => return Ok(()),
            // Somebody else is at what it left, as a run is that sweeps.
            Some(now) if now.life == Life::Starting && began.elapsed() < SWEEPING => std::thread::sleep(AGAIN),
            Some(_) => return Err(running()),
        }
    }
}

fn incarnation(found: &Found) -> Option<&str> {
    found.record.as_ref().map(|record| record.incarnation.as_str())
}
