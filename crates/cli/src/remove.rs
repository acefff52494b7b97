//! `carrel rm`: what is left of sandboxes, and kept changes.

use std::path::Path;
use std::time::{Duration, Instant};

use carrel_api::agbox::v1::{
    DeleteSandboxRequest, DeleteSandboxesRequest, ListSandboxesRequest, SandboxHandle, SandboxState,
};
use carrel_changes::{ChangeName, SavedChanges, SavedChangesError};
use carrel_shim_client::{Found, Life};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::arguments::RemoveArguments;
use crate::daemon::{self, DaemonClient, status_failure, wait};
use crate::failure::{Failure, Failures};
use crate::home::{CarrelHome, ID_RANGES};
use crate::label::Label;
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
enum RemoveTarget {
    Sandbox(Box<Found>),
    /// One that a daemon keeps.
    Kept(Box<(DaemonClient, SandboxHandle)>),
    Changes(ChangeName),
}

/// Removes; returns what to exit with.
pub(crate) fn remove(arguments: &RemoveArguments, json: bool) -> Result<u8, Failure> {
    let (runtime, mut failures) = (find::runtime()?, Failures::new(json));
    if !arguments.labels.is_empty() {
        return runtime.block_on(labelled(arguments, json)).map_err(|failure| failure.exit(FAILED));
    }
    for name in &arguments.names {
        match one(arguments, name, json, &runtime) {
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
fn one(arguments: &RemoveArguments, name: &str, json: bool, runtime: &Runtime) -> Result<&'static str, Failure> {
    let changes = if arguments.sandbox { None } else { kept(name)? };
    let sandbox = if looks_for_sandboxes(arguments) { sandbox(name, changes.is_some(), runtime)? } else { None };
    match meant(arguments, name, sandbox, changes)? {
        RemoveTarget::Sandbox(found) => sandbox_of(arguments, name, &found, json, runtime).map(|()| "sandbox"),
        RemoveTarget::Kept(kept) => runtime.block_on(delete(arguments, *kept)).map(|()| "sandbox"),
        RemoveTarget::Changes(name) => {
            Ok(SavedChanges::remove(&CarrelHome::find()?.changes(), &name).map(|()| "changes")?)
        }
    }
}

/// The sandbox of a name: of a daemon, or of its owner. For a name of kept changes no daemon is started.
fn sandbox(name: &str, is_taken: bool, runtime: &Runtime) -> Result<Option<RemoveTarget>, Failure> {
    let found = find::existing(name)?;
    let keeper = runtime.block_on(async {
        if found.is_none() && is_taken && DaemonClient::connect_to_running().await?.is_none() {
            return Ok(None);
        }
        daemon::find_persistent(name, found.as_ref()).await
    })?;
    let kept = keeper.map(|keeper| RemoveTarget::Kept(Box::new(keeper)));
    Ok(kept.or_else(|| found.map(|found| RemoveTarget::Sandbox(Box::new(found)))))
}

/// Removes one that a daemon keeps, and returns when it is gone.
async fn delete(
    arguments: &RemoveArguments,
    (mut daemon, handle): (DaemonClient, SandboxHandle),
) -> Result<(), Failure> {
    let id = handle.sandbox_id.clone();
    if runs(&handle) && !arguments.force {
        return Err(running(&id));
    }
    let request = DeleteSandboxRequest { sandbox_id: id.clone() };
    daemon.sandboxes.delete_sandbox(request).await.map_err(|status| status_failure(&status))?;
    gone(&mut daemon, &id).await
}

/// Waits until one is gone whose removal was accepted.
async fn gone(daemon: &mut DaemonClient, id: &str) -> Result<(), Failure> {
    match daemon.find(id).await? {
        Some(handle) => wait::until(daemon, handle, SandboxState::Deleted).await.map(drop),
        None => Ok(()),
    }
}

/// Removes all that have some labels, and returns when they are gone.
async fn labelled(arguments: &RemoveArguments, json: bool) -> Result<u8, Failure> {
    let Some(mut daemon) = DaemonClient::connect_if_sandboxes_exist().await? else { return Ok(0) };
    let label_selector = Label::pairs(&arguments.labels);
    let request = ListSandboxesRequest { include_deleted: false, label_selector: label_selector.clone() };
    let handles = daemon.list(request).await?;
    if let Some(handle) = handles.iter().find(|handle| runs(handle) && !arguments.force) {
        return Err(running(&handle.sandbox_id));
    }
    let deleted = daemon.sandboxes.delete_sandboxes(DeleteSandboxesRequest { label_selector }).await;
    let mut failures = Failures::new(json);
    for id in deleted.map_err(|status| status_failure(&status))?.into_inner().deleted_sandbox_ids {
        match gone(&mut daemon, &id).await {
            Ok(()) => {
                let line = format!("{}\n", carrel_changes::EscapedLine(&id));
                let told = crate::json::line(&json!({"name": id, "removed": "sandbox"}));
                crate::say(if json { told } else { line }.as_bytes())?;
            }
            Err(failure) => failures.add(failure),
        }
    }
    failures.finish(FAILED)
}

fn runs(handle: &SandboxHandle) -> bool {
    matches!(handle.state(), SandboxState::Pending | SandboxState::Ready)
}

fn running(name: &str) -> Failure {
    let hint = format!("`carrel stop {name}` ends it; `carrel rm --force {name}` does both");
    Failure::new("sandbox_running", format!("the sandbox {name:?} is running")).hint(hint)
}

/// Anybody may have kept changes; sandboxes are root's.
fn looks_for_sandboxes(arguments: &RemoveArguments) -> bool {
    arguments.sandbox || (!arguments.changes && rustix::process::geteuid().is_root())
}

/// The changes that are kept under a name.
fn kept(name: &str) -> Result<Option<ChangeName>, Failure> {
    let all = SavedChanges::list(&CarrelHome::find()?.changes())?;
    Ok(all.into_iter().find(|kept| kept.as_str() == name))
}

/// Decides what is meant, or says why that is not clear.
fn meant(
    arguments: &RemoveArguments,
    name: &str,
    sandbox: Option<RemoveTarget>,
    changes: Option<ChangeName>,
) -> Result<RemoveTarget, Failure> {
    match (sandbox, changes) {
        (Some(sandbox), None) => Ok(sandbox),
        (None, Some(changes)) => Ok(RemoveTarget::Changes(changes)),
        (Some(_), Some(_)) => {
            let words = format!("there are a sandbox and kept changes named {name:?}");
            Err(Failure::new("ambiguous_name", words).hint("say which with --sandbox or --changes"))
        }
        (None, None) if arguments.sandbox => Err(find::no_such_sandbox(name)),
        (None, None) if arguments.changes => {
            let name = name.parse().map_err(|bad| Failure::new("invalid_name", bad))?;
            Err(SavedChangesError::Unknown(name).into())
        }
        (None, None) => {
            let words = format!("there is no sandbox named {name:?}, and there are no kept changes of that name");
            let hint = "`carrel ps` lists sandboxes, `carrel changes` what is kept";
            Err(Failure::new("unknown_name", words).hint(hint))
        }
    }
}

fn sandbox_of(
    arguments: &RemoveArguments,
    name: &str,
    found: &Found,
    json: bool,
    runtime: &Runtime,
) -> Result<(), Failure> {
    if !matches!(found.life, Life::Dead { .. }) {
        if !arguments.force {
            return Err(running(name));
        }
        let end = runtime.block_on(stop::end(name, Duration::ZERO, PATIENCE))?;
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
            let _groups = carrel_shim::sweep_groups(Path::new(ID_RANGES));
            return Ok(());
        }
        match find::existing(name)? {
            // One that goes with its owner has taken its directory along.
            None => return Ok(()),
            // So it has, and another has its name.
            Some(now) if now.life == Life::Running && self::incarnation(&now) != incarnation => return Ok(()),
            // Somebody else is at what it left, as a run is that sweeps.
            Some(now) if now.life == Life::Starting && began.elapsed() < SWEEPING => std::thread::sleep(AGAIN),
            Some(_) => return Err(running(name)),
        }
    }
}

fn incarnation(found: &Found) -> Option<&str> {
    found.record.as_ref().map(|record| record.incarnation.as_str())
}
