//! `carrel rm`: what is left of sandboxes, and kept changes.

use std::time::Duration;

use carrel_changes::{ChangeName, KeepError, Kept};
use carrel_shim_client::{Found, Life};
use serde_json::json;

use crate::arguments::RemoveArguments;
use crate::failure::Failure;
use crate::home::Home;
use crate::{find, stop};

/// What this exits with when it fails.
const FAILED: u8 = 1;

/// What a name stands for.
#[derive(Debug)]
enum Meant {
    Sandbox(Box<Found>),
    Changes(ChangeName),
}

/// Removes; returns what to exit with.
pub(crate) fn remove(arguments: &RemoveArguments, json: bool) -> Result<u8, Failure> {
    for name in &arguments.names {
        let what = one(arguments, name).map_err(|failure| failure.exit(FAILED))?;
        if json {
            crate::say(format!("{}\n", json!({"name": name, "removed": what})).as_bytes())?;
        }
    }
    Ok(0)
}

/// Removes what has a name; tells what that was.
fn one(arguments: &RemoveArguments, name: &str) -> Result<&'static str, Failure> {
    let sandbox = if looks_for_sandboxes(arguments) { find::maybe(name)? } else { None };
    let changes = if arguments.sandbox { None } else { kept(name)? };
    match meant(arguments, name, sandbox, changes)? {
        Meant::Sandbox(found) => sandbox_of(arguments, name, &found).map(|()| "sandbox"),
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

fn sandbox_of(arguments: &RemoveArguments, name: &str, found: &Found) -> Result<(), Failure> {
    let running = || {
        let hint = format!("`carrel stop {name}` ends it; `carrel rm --force {name}` does both");
        Failure::new("sandbox_running", format!("the sandbox {name:?} is running")).hint(hint)
    };
    if !matches!(found.life, Life::Dead { .. }) {
        if !arguments.force {
            return Err(running());
        }
        find::runtime()?.block_on(stop::end(name, Duration::ZERO))?;
    }
    match carrel_shim::collect(&found.directory) {
        Ok(true) => Ok(()),
        // One that goes with its owner has taken its directory along.
        Ok(false) if find::maybe(name)?.is_none() => Ok(()),
        Ok(false) => Err(running()),
        Err(error) => Err(Failure::new("remove_failed", error)),
    }
}
