//! `carrel stop`: the end of sandboxes, as somebody else than their owner asks for it.

mod all;

use std::os::fd::OwnedFd;
use std::time::Duration;

use carrel_api::agbox::v1::{SandboxHandle, SandboxState, StopSandboxRequest};
use carrel_shim_client::messages::Ended;
use carrel_shim_client::{AdoptError, Found, Life, ShimError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};

use crate::arguments::StopArguments;
use crate::daemon::{self, render, status_failure, wait};
use crate::failure::{Failure, Failures};
use crate::find;
use crate::home::CarrelHome;
use crate::jobs::session::notes::Notes;

/// What this exits with when it fails.
const FAILED: u8 = 1;
/// How long a supervisor may take beyond the grace that its sandbox has, until it is ended itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a process may take to be gone that is ended.
const LEAVING: Duration = Duration::from_secs(10);

/// How a sandbox was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StopReport {
    /// What its supervisor said of it, if it did.
    ended: Option<Ended>,
    /// Why its supervisor had to be ended, if it had to.
    insisted: Option<String>,
}

/// What became of one that was to be stopped.
enum StopResult {
    /// Nothing of it is left.
    Ephemeral(StopReport),
    /// Its daemon keeps what it wrote.
    Persistent(SandboxHandle),
}

/// What became of asking a supervisor.
enum ShimResponse {
    /// Nothing is left of the sandbox.
    Ended(Ended),
    /// The supervisor is gone, and the sandbox with it.
    Gone,
    /// It does not do what a supervisor does.
    Unresponsive(String),
}

/// Ends sandboxes; returns what to exit with.
pub(crate) fn stop(arguments: &StopArguments, json: bool) -> Result<u8, Failure> {
    if arguments.all {
        return all::stop(arguments, json);
    }
    let ends = find::runtime()?.block_on(async {
        let mut ending = JoinSet::new();
        for (place, name) in arguments.names.iter().cloned().enumerate() {
            let (grace, no_wait) = (arguments.time, arguments.no_wait);
            ending.spawn(async move { (place, one(&name, grace, no_wait).await) });
        }
        let mut ends = ending.join_all().await;
        ends.sort_by_key(|(place, _)| *place);
        ends
    });
    let mut failures = Failures::new(json);
    for (name, (_, end)) in arguments.names.iter().zip(ends) {
        let told = match end {
            Ok(StopResult::Ephemeral(end)) => {
                end.note(name, json);
                end.told(name)
            }
            Ok(StopResult::Persistent(handle)) => render::handle(&handle),
            Err(failure) => {
                failures.add(failure);
                continue;
            }
        };
        let line = format!("{}\n", carrel_changes::EscapedLine(name));
        crate::say(if json { crate::json::line(&told) } else { line }.as_bytes())?;
    }
    failures.finish(FAILED)
}

/// Ends one: by the daemon that keeps it, or as everybody can.
async fn one(name: &str, grace: Duration, no_wait: bool) -> Result<StopResult, Failure> {
    let found = find::existing(name)?;
    let Some((mut daemon, handle)) = daemon::find_persistent(name, found.as_ref()).await? else {
        return end(name, grace, PATIENCE).await.map(StopResult::Ephemeral);
    };
    // One that is at rest already is what is wanted.
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

/// Ends a sandbox, and returns when nothing of it runs any more. One that has ended already says nothing. A supervisor that
/// takes longer than `patience` beyond the grace is ended itself, which ends the sandbox.
pub(crate) async fn end(name: &str, grace: Duration, patience: Duration) -> Result<StopReport, Failure> {
    let found = find::one(name).await?;
    if let Life::Dead { .. } = found.life {
        return Ok(StopReport { ended: None, insisted: None });
    }
    find::check_started(name, &found)?;
    // What was written down says which process it is, and not whoever answers.
    let supervisor = found.record.as_ref().and_then(carrel_shim_client::SandboxRecord::shim_handle);
    let asked = match tokio::time::timeout(grace.saturating_add(patience), ask(name, &found, grace)).await {
        Ok(asked) => asked?,
        Err(_) => ShimResponse::Unresponsive(format!(
            "it does not end its sandbox within {:?}",
            grace.saturating_add(patience)
        )),
    };
    let (ended, mut insisted) = match asked {
        ShimResponse::Ended(ended) => (Some(ended), None),
        ShimResponse::Gone => (None, None),
        ShimResponse::Unresponsive(why) => (None, Some(why)),
    };
    match &supervisor {
        Some(supervisor) => {
            if insisted.is_none() && !is_gone(supervisor, patience).await? {
                insisted = Some("it does not leave, though its sandbox is gone".to_owned());
            }
            if insisted.is_some() {
                insist(name, supervisor).await?;
            }
        }
        None => {
            if let Some(why) = insisted {
                let words =
                    format!("the supervisor of {name:?}: {why}; it cannot be ended either, for it is not known");
                return Err(Failure::new("supervisor_stuck", words));
            }
        }
    }
    if ended.is_none() || insisted.is_some() {
        // What cannot be removed now is found by the next run.
        let _swept = carrel_shim::sweep(&CarrelHome::find()?.sandboxes());
    }
    Ok(StopReport { ended, insisted })
}

async fn ask(name: &str, found: &Found, grace: Duration) -> Result<ShimResponse, Failure> {
    let mut client = match found.connect().await {
        Ok(client) => client,
        Err(AdoptError::Shim(error)) if is_unresponsive(&error) => {
            return Ok(ShimResponse::Unresponsive(error.to_string()));
        }
        // Whoever listens is not the one that was written down, who let that happen.
        Err(error @ (AdoptError::PeerProcess { .. } | AdoptError::PeerUser { .. } | AdoptError::Claims { .. })) => {
            return Ok(ShimResponse::Unresponsive(error.to_string()));
        }
        Err(error) => return Err(find::connect_failure(name, error)),
    };
    match client.stop(grace).await {
        Ok(ended) => Ok(ShimResponse::Ended(ended)),
        // Its supervisor is dead, and with it the sandbox. What it left is swept.
        Err(ShimError::Gone) => Ok(ShimResponse::Gone),
        Err(error) if is_unresponsive(&error) => Ok(ShimResponse::Unresponsive(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Whether a supervisor does not speak as one does.
fn is_unresponsive(error: &ShimError) -> bool {
    matches!(error, ShimError::Silent(_) | ShimError::Unreadable(_) | ShimError::Broken(_) | ShimError::TooLarge { .. })
}

/// Ends a supervisor by its handle, and waits until it is gone.
async fn insist(name: &str, supervisor: &OwnedFd) -> Result<(), Failure> {
    // One that is gone by now is what is wanted.
    let _sent = pidfd_send_signal(supervisor, Signal::KILL);
    match is_gone(supervisor, LEAVING).await? {
        true => Ok(()),
        false => Err(Failure::new("supervisor_stuck", format!("the supervisor of {name:?} cannot be ended"))),
    }
}

/// Waits until a process is no more, for so long.
async fn is_gone(process: &OwnedFd, within: Duration) -> Result<bool, Failure> {
    let failed = |error: std::io::Error| Failure::new("supervisor_stuck", format!("waiting for its end: {error}"));
    let process = process.try_clone().map_err(failed)?;
    let within = Timespec::try_from(within).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let waiting = spawn_blocking(move || poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&within)));
    let gone = waiting.await.map_err(|error| failed(std::io::Error::other(error)))?;
    Ok(gone.map_err(|errno| failed(errno.into()))? > 0)
}

// === impl StopReport ===

impl StopReport {
    /// Says that it took more than asking, if it did.
    pub(crate) fn note(&self, name: &str, json: bool) {
        if let Some(why) = &self.insisted {
            let words = format!("the supervisor of {name:?} was killed, and its sandbox with it: {why}");
            Notes { quiet: false, json }.say(&words);
        }
    }

    fn told(&self, name: &str) -> Value {
        json!({
            "name": name,
            "ended": self.ended.as_ref().map(|ended| json!({
                "reason": ended.reason.as_str(),
                "message": &ended.message,
                "code": ended.code,
                "signal": ended.signal,
                "out_of_memory_kills": ended.out_of_memory_kills,
            })),
            "killed": self.insisted.is_some(),
        })
    }
}
