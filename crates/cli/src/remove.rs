//! `carrel rm`: removes sandboxes and saved changes.

use std::path::Path;
use std::time::{Duration, Instant};

use carrel_api::agbox::v1::{
    DeleteSandboxRequest, DeleteSandboxesRequest, ListSandboxesRequest, SandboxHandle, SandboxState,
};
use carrel_changes::{ChangeName, SavedChanges, SavedChangesError};
use carrel_layout::ID_RANGES;
use carrel_shim_client::{DiscoveredSandbox, Liveness};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::arguments::RemoveArguments;
use crate::daemon::{self, DaemonClient, status_failure, wait};
use crate::failure::{Failure, Failures};
use crate::home::CarrelHome;
use crate::label::Label;
use crate::{find, stop};

/// The exit code of a failure.
const FAILED: u8 = 1;

/// How long a shim may take to kill its sandbox, until it is killed itself.
const SHIM_TIMEOUT: Duration = Duration::from_secs(2);

/// How long another process may take to sweep the directory of a sandbox.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait between two checks for that.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// What a name refers to.
#[derive(Debug)]
enum RemoveTarget {
    Ephemeral(Box<DiscoveredSandbox>),
    Persistent(Box<(DaemonClient, SandboxHandle)>),
    Changes(ChangeName),
}

/// Removes targets; returns the exit code.
pub(crate) fn remove(arguments: &RemoveArguments, json: bool) -> Result<u8, Failure> {
    let (runtime, mut failures) = (find::runtime()?, Failures::new(json));
    if !arguments.labels.is_empty() {
        return runtime.block_on(remove_labelled(arguments, json)).map_err(|failure| failure.exit(FAILED));
    }
    for name in &arguments.names {
        match one(arguments, name, json, &runtime) {
            Ok(what) => {
                let line =
                    if json { crate::json::line(&json!({"name": name, "removed": what})) } else { String::new() };
                crate::write_stdout(line.as_bytes())?;
            }
            Err(failure) => failures.add(failure),
        }
    }
    failures.finish(FAILED)
}

/// Removes the target of a name; returns its kind.
fn one(arguments: &RemoveArguments, name: &str, json: bool, runtime: &Runtime) -> Result<&'static str, Failure> {
    let changes = if arguments.sandbox { None } else { saved_changes(name)? };
    let sandbox = if looks_for_sandboxes(arguments) { find_sandbox(name, changes.is_some(), runtime)? } else { None };
    match resolve(arguments, name, sandbox, changes)? {
        RemoveTarget::Ephemeral(found) => remove_ephemeral(arguments, name, &found, json, runtime).map(|()| "sandbox"),
        RemoveTarget::Persistent(kept) => runtime.block_on(delete(arguments, *kept)).map(|()| "sandbox"),
        RemoveTarget::Changes(name) => {
            Ok(SavedChanges::remove(&CarrelHome::find()?.changes(), &name).map(|()| "changes")?)
        }
    }
}

/// The sandbox of a name. For a name of saved changes, no daemon is started.
fn find_sandbox(name: &str, is_taken: bool, runtime: &Runtime) -> Result<Option<RemoveTarget>, Failure> {
    let found = find::existing(name)?;
    let persistent = runtime.block_on(async {
        if found.is_none() && is_taken && DaemonClient::connect_to_running().await?.is_none() {
            return Ok(None);
        }
        daemon::find_persistent(name, found.as_ref()).await
    })?;
    let persistent = persistent.map(|found| RemoveTarget::Persistent(Box::new(found)));
    Ok(persistent.or_else(|| found.map(|found| RemoveTarget::Ephemeral(Box::new(found)))))
}

/// Deletes a persistent sandbox, and waits until it is deleted.
async fn delete(
    arguments: &RemoveArguments,
    (mut daemon, handle): (DaemonClient, SandboxHandle),
) -> Result<(), Failure> {
    let id = handle.sandbox_id.clone();
    if runs(&handle) && !arguments.force {
        return Err(running_failure(&id));
    }
    let request = DeleteSandboxRequest { sandbox_id: id.clone() };
    daemon.sandboxes.delete_sandbox(request).await.map_err(|status| status_failure(&status))?;
    wait_until_deleted(&mut daemon, &id).await
}

/// Waits until a sandbox is deleted.
async fn wait_until_deleted(daemon: &mut DaemonClient, id: &str) -> Result<(), Failure> {
    match daemon.find(id).await? {
        Some(handle) => wait::until(daemon, handle, SandboxState::Deleted).await.map(drop),
        None => Ok(()),
    }
}

/// Deletes all sandboxes with some labels, and waits until they are deleted.
async fn remove_labelled(arguments: &RemoveArguments, json: bool) -> Result<u8, Failure> {
    let Some(mut daemon) = DaemonClient::connect_if_sandboxes_exist().await? else { return Ok(0) };
    let label_selector = Label::pairs(&arguments.labels);
    let request = ListSandboxesRequest { include_deleted: false, label_selector: label_selector.clone() };
    let handles = daemon.list(request).await?;
    if let Some(handle) = handles.iter().find(|handle| runs(handle) && !arguments.force) {
        return Err(running_failure(&handle.sandbox_id));
    }
    let deleted = daemon.sandboxes.delete_sandboxes(DeleteSandboxesRequest { label_selector }).await;
    let mut failures = Failures::new(json);
    for id in deleted.map_err(|status| status_failure(&status))?.into_inner().deleted_sandbox_ids {
        match wait_until_deleted(&mut daemon, &id).await {
            Ok(()) => {
                let line = format!("{}\n", carrel_changes::EscapedLine(&id));
                let object = crate::json::line(&json!({"name": id, "removed": "sandbox"}));
                crate::write_stdout(if json { object } else { line }.as_bytes())?;
            }
            Err(failure) => failures.add(failure),
        }
    }
    failures.finish(FAILED)
}

fn runs(handle: &SandboxHandle) -> bool {
    matches!(handle.state(), SandboxState::Pending | SandboxState::Ready)
}

fn running_failure(name: &str) -> Failure {
    let hint = format!("`carrel stop {name}` stops it; `carrel rm --force {name}` kills and removes it");
    Failure::new("sandbox_running", format!("the sandbox {name:?} is running")).hint(hint)
}

/// Whether to look for sandboxes, which only root has; any user may have saved changes.
fn looks_for_sandboxes(arguments: &RemoveArguments) -> bool {
    arguments.sandbox || (!arguments.changes && rustix::process::geteuid().is_root())
}

/// The saved changes of a name.
fn saved_changes(name: &str) -> Result<Option<ChangeName>, Failure> {
    let all = SavedChanges::list(&CarrelHome::find()?.changes())?;
    Ok(all.into_iter().find(|kept| kept.as_str() == name))
}

/// Resolves a name to its target, or fails if that is ambiguous.
fn resolve(
    arguments: &RemoveArguments,
    name: &str,
    sandbox: Option<RemoveTarget>,
    changes: Option<ChangeName>,
) -> Result<RemoveTarget, Failure> {
    match (sandbox, changes) {
        (Some(sandbox), None) => Ok(sandbox),
        (None, Some(changes)) => Ok(RemoveTarget::Changes(changes)),
        (Some(_), Some(_)) => {
            let message = format!("{name:?} is a sandbox, and also saved changes");
            Err(Failure::new("ambiguous_name", message).hint("choose with --sandbox or --changes"))
        }
        (None, None) if arguments.sandbox => Err(find::no_such_sandbox(name)),
        (None, None) if arguments.changes => {
            let name = name.parse().map_err(|bad| Failure::new("invalid_name", bad))?;
            Err(SavedChangesError::Unknown(name).into())
        }
        (None, None) => {
            let message = format!("no such sandbox or saved changes: {name:?}");
            let hint = "`carrel ps` lists sandboxes, `carrel changes` saved changes";
            Err(Failure::new("unknown_name", message).hint(hint))
        }
    }
}

fn remove_ephemeral(
    arguments: &RemoveArguments,
    name: &str,
    found: &DiscoveredSandbox,
    json: bool,
    runtime: &Runtime,
) -> Result<(), Failure> {
    if !matches!(found.life, Liveness::Dead { .. }) {
        if !arguments.force {
            return Err(running_failure(name));
        }
        let end = runtime.block_on(stop::end(name, Duration::ZERO, SHIM_TIMEOUT))?;
        end.note(name, json);
    }
    let collect = || {
        let collected = match incarnation(found) {
            Some(incarnation) => carrel_shim::collect_incarnation(&found.directory, incarnation),
            None => carrel_shim::collect(&found.directory),
        };
        collected.map_err(|error| Failure::new("remove_failed", error))
    };
    let find = || {
        let now = find::existing(name)?;
        Ok(now.map(|now| now.life == Liveness::Running && incarnation(&now) != incarnation(found)))
    };
    collect_when_unused(name, collect, find)?;
    // The next run removes what cannot be removed now.
    let _groups = carrel_shim::sweep_groups(Path::new(ID_RANGES));
    Ok(())
}

/// Collects the directory of a sandbox that has ended. Another process may be sweeping it, and then holds its lock, so that the
/// sandbox looks as if it were starting or running. `find` tells whether another sandbox runs under the name.
fn collect_when_unused(
    name: &str,
    mut collect: impl FnMut() -> Result<bool, Failure>,
    mut find: impl FnMut() -> Result<Option<bool>, Failure>,
) -> Result<(), Failure> {
    let began = Instant::now();
    while !collect()? {
        match find()? {
            // Its owner removed the directory, or another sandbox has the name already.
            None | Some(true) => return Ok(()),
            Some(false) if began.elapsed() < SWEEP_TIMEOUT => std::thread::sleep(RETRY_INTERVAL),
            Some(false) => {
                let message = format!("the directory of the sandbox {name:?} is in use by another process");
                return Err(Failure::new("remove_failed", message).hint("retry in a moment"));
            }
        }
    }
    Ok(())
}

fn incarnation(found: &DiscoveredSandbox) -> Option<&str> {
    found.record.as_ref().map(|record| record.incarnation.as_str())
}

#[cfg(test)]
mod tests {
    use carrel_api::agbox::v1::SandboxEvent;

    use super::*;
    use crate::daemon::wait::scripted_daemon::{Call, ScriptedDaemon};

    #[test]
    fn a_directory_that_another_process_sweeps_is_collected_afterwards() {
        let mut attempts = 0;
        let mut collected_at = |last: u32| {
            attempts = 0;
            let collect = || {
                attempts += 1;
                Ok(attempts == last)
            };
            collect_when_unused("web", collect, || Ok(Some(false))).map(|()| attempts).map_err(drop)
        };
        assert_eq!([collected_at(1), collected_at(3)], [Ok(1), Ok(3)]);
        for other in [None, Some(true)] {
            assert!(collect_when_unused("web", || Ok(false), || Ok(other)).is_ok());
        }
    }

    //= control.snapshot-stream.anchor-same-resource
    //= control.order.clients-wait-baselines-drop
    #[tokio::test]
    async fn the_wait_for_a_deletion_reads_the_sandbox_before_it_subscribes() {
        let at = |last_event_sequence, state: SandboxState| SandboxHandle {
            sandbox_id: "web1".to_owned(),
            last_event_sequence,
            state: state.into(),
            ..SandboxHandle::default()
        };
        let scripted = ScriptedDaemon::start(vec![at(7, SandboxState::Deleting), at(8, SandboxState::Deleted)]);
        let deleted = SandboxState::Deleted.into();
        scripted.emit(SandboxEvent { sequence: 8, sandbox_state: deleted, ..SandboxEvent::default() });
        wait_until_deleted(&mut scripted.client().await, "web1").await.unwrap();
        assert_eq!(scripted.calls(), [Call::Get(7), Call::Subscribe(7), Call::Get(8)]);
    }
}
