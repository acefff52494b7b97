//! `carrel stop`: stops sandboxes.

mod all;

use std::os::fd::OwnedFd;
use std::time::Duration;

use carrel_api::agbox::v1::{SandboxHandle, SandboxState, StopSandboxRequest};
use carrel_shim_client::messages::SandboxEnd;
use carrel_shim_client::{AdoptError, DiscoveredSandbox, Liveness, ShimError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};

use crate::arguments::StopArguments;
use crate::daemon::{self, render, status_failure, wait};
use crate::failure::{Failure, Failures};
use crate::find;
use crate::home::CarrelHome;
use crate::jobs::session::notes::SessionNotes;

/// The exit code of a failure.
const FAILED: u8 = 1;
/// The grace period of ephemeral sandboxes.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// How long a shim may take beyond the grace period, until it is killed.
const SHIM_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a killed process may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How an ephemeral sandbox was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StopReport {
    /// What its shim reported.
    ended: Option<SandboxEnd>,
    /// Why its shim had to be killed, if it was.
    kill_reason: Option<String>,
}

/// The result of stopping a sandbox.
enum StopResult {
    /// It was removed.
    Ephemeral(StopReport),
    /// It keeps its files.
    Persistent(SandboxHandle),
}

/// The response of a shim to a stop request.
enum ShimResponse {
    /// The sandbox has stopped.
    SandboxEnd(SandboxEnd),
    /// The shim has exited, and the sandbox with it.
    Gone,
    /// The shim does not respond as it should.
    Unresponsive(String),
}

/// Stops sandboxes; returns the exit code.
pub(crate) fn stop(arguments: &StopArguments, json: bool) -> Result<u8, Failure> {
    if arguments.all {
        return all::stop(arguments, json);
    }
    let ends = find::runtime()?.block_on(async {
        let mut ending = JoinSet::new();
        for (position, name) in arguments.names.iter().cloned().enumerate() {
            let (grace, no_wait) = (arguments.time.unwrap_or(DEFAULT_GRACE), arguments.no_wait);
            ending.spawn(async move { (position, one(&name, grace, no_wait).await) });
        }
        let mut ends = ending.join_all().await;
        ends.sort_by_key(|(position, _)| *position);
        ends
    });
    let mut failures = Failures::new(json);
    for (name, (_, end)) in arguments.names.iter().zip(ends) {
        let object = match end {
            Ok(StopResult::Ephemeral(end)) => {
                end.note(name, json);
                end.object(name)
            }
            Ok(StopResult::Persistent(handle)) => {
                if arguments.time.is_some() {
                    let message =
                        format!("--time is ignored: {name:?} is persistent, so `runtime.grace` of the daemon applies");
                    SessionNotes { quiet: false, json }.print(&message);
                }
                render::handle(&handle)
            }
            Err(failure) => {
                failures.add(failure);
                continue;
            }
        };
        let line = format!("{}\n", carrel_changes::EscapedLine(name));
        crate::write_stdout(if json { crate::json::line(&object) } else { line }.as_bytes())?;
    }
    failures.finish(FAILED)
}

/// Stops a sandbox through its daemon, or through its shim.
async fn one(name: &str, grace: Duration, no_wait: bool) -> Result<StopResult, Failure> {
    let found = find::existing(name)?;
    let Some((mut daemon, handle)) = daemon::find_persistent(name, found.as_ref()).await? else {
        return end(name, grace, SHIM_TIMEOUT).await.map(StopResult::Ephemeral);
    };
    // It has stopped already.
    if handle.state() == SandboxState::Stopped {
        return Ok(StopResult::Persistent(handle));
    }
    let request = StopSandboxRequest { sandbox_id: name.to_owned() };
    daemon.sandboxes.stop_sandbox(request).await.map_err(|status| status_failure(&status))?;
    let handle = daemon.get(name).await.map_err(|status| status_failure(&status))?;
    if no_wait {
        return Ok(StopResult::Persistent(handle));
    }
    let stopped = wait::until(&mut daemon, handle, SandboxState::Stopped).await?;
    stopped.map(StopResult::Persistent).ok_or_else(|| find::no_such_sandbox(name))
}

/// Stops a sandbox through its shim, and waits until both have exited. A shim that takes longer than `timeout` beyond the
/// grace period is killed, and the sandbox with it.
pub(crate) async fn end(name: &str, grace: Duration, timeout: Duration) -> Result<StopReport, Failure> {
    let found = find::one(name).await?;
    if let Liveness::Dead { .. } = found.life {
        return Ok(StopReport { ended: None, kill_reason: None });
    }
    find::check_started(name, &found)?;
    // The record identifies the process, not the process that answers.
    let supervisor = found.record.as_ref().and_then(carrel_shim_client::SandboxRecord::shim_handle);
    let response = match tokio::time::timeout(grace.saturating_add(timeout), request_stop(name, &found, grace)).await {
        Ok(response) => response?,
        Err(_) => ShimResponse::Unresponsive(format!(
            "it does not stop its sandbox within {:?}",
            grace.saturating_add(timeout)
        )),
    };
    let (ended, mut kill_reason) = match response {
        ShimResponse::SandboxEnd(ended) => (Some(ended), None),
        ShimResponse::Gone => (None, None),
        ShimResponse::Unresponsive(why) => (None, Some(why)),
    };
    match &supervisor {
        Some(supervisor) => {
            if kill_reason.is_none() && !wait_for_exit(supervisor, timeout).await? {
                kill_reason = Some("it does not exit, though its sandbox has stopped".to_owned());
            }
            if kill_reason.is_some() {
                kill(name, supervisor).await?;
            }
        }
        None => {
            if let Some(why) = kill_reason {
                let message =
                    format!("the shim of {name:?}: {why}; it cannot be killed, because its process is unknown");
                return Err(Failure::new("supervisor_stuck", message));
            }
        }
    }
    if ended.is_none() || kill_reason.is_some() {
        // The next run removes what cannot be removed now.
        let _swept = carrel_shim::sweep(&CarrelHome::find()?.sandboxes());
    }
    Ok(StopReport { ended, kill_reason })
}

async fn request_stop(name: &str, found: &DiscoveredSandbox, grace: Duration) -> Result<ShimResponse, Failure> {
    let mut client = match found.connect().await {
        Ok(client) => client,
        Err(AdoptError::Shim(error)) if is_unresponsive(&error) => {
            return Ok(ShimResponse::Unresponsive(error.to_string()));
        }
        // The listener is not the recorded shim.
        Err(error @ (AdoptError::PeerProcess { .. } | AdoptError::PeerUser { .. } | AdoptError::Claims { .. })) => {
            return Ok(ShimResponse::Unresponsive(error.to_string()));
        }
        Err(error) => return Err(find::connect_failure(name, error)),
    };
    match client.stop(grace).await {
        Ok(ended) => Ok(ShimResponse::SandboxEnd(ended)),
        // The shim has exited, and the sandbox with it. Its directory is swept.
        Err(ShimError::Gone) => Ok(ShimResponse::Gone),
        Err(error) if is_unresponsive(&error) => Ok(ShimResponse::Unresponsive(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Whether a shim does not follow the protocol.
fn is_unresponsive(error: &ShimError) -> bool {
    matches!(error, ShimError::Silent(_) | ShimError::Unreadable(_) | ShimError::Broken(_) | ShimError::TooLarge { .. })
}

/// Kills a shim by its pidfd, and waits until it has exited.
async fn kill(name: &str, supervisor: &OwnedFd) -> Result<(), Failure> {
    // It may have exited already.
    let _sent = pidfd_send_signal(supervisor, Signal::KILL);
    match wait_for_exit(supervisor, KILL_TIMEOUT).await? {
        true => Ok(()),
        false => Err(Failure::new("supervisor_stuck", format!("the shim of {name:?} cannot be killed"))),
    }
}

/// Waits until a process has exited; returns false after the timeout.
async fn wait_for_exit(process: &OwnedFd, within: Duration) -> Result<bool, Failure> {
    let failed =
        |error: std::io::Error| Failure::new("supervisor_stuck", format!("wait for the shim to exit: {error}"));
    let process = process.try_clone().map_err(failed)?;
    let within = Timespec::try_from(within).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let waiting = spawn_blocking(move || poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&within)));
    let gone = waiting.await.map_err(|error| failed(std::io::Error::other(error)))?;
    Ok(gone.map_err(|errno| failed(errno.into()))? > 0)
}

// === impl StopReport ===

impl StopReport {
    /// Prints a note if the shim was killed.
    pub(crate) fn note(&self, name: &str, json: bool) {
        if let Some(why) = &self.kill_reason {
            let words = format!("the shim of {name:?} was killed, and its sandbox with it: {why}");
            SessionNotes { quiet: false, json }.print(&words);
        }
    }

    fn object(&self, name: &str) -> Value {
        json!({
            "name": name,
            "ended": self.ended.as_ref().map(|ended| json!({
                "reason": ended.reason.as_str(),
                "message": &ended.message,
                "code": ended.code,
                "signal": ended.signal,
                "out_of_memory_kills": ended.out_of_memory_kills,
            })),
            "killed": self.kill_reason.is_some(),
        })
    }
}
