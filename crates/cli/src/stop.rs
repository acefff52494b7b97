//! `carrel stop`: the end of sandboxes, as somebody else than their owner asks for it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use carrel_shim_client::messages::Ended;
use carrel_shim_client::{Found, Life, ShimError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};

use crate::arguments::StopArguments;
use crate::failure::Failure;
use crate::find;
use crate::home::Home;

/// What this exits with when it fails.
const FAILED: u8 = 1;
/// How long a supervisor may take to leave once its sandbox is gone.
const LEAVING: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Ends sandboxes; returns what to exit with.
pub(crate) fn stop(arguments: &StopArguments, json: bool) -> Result<u8, Failure> {
    let ends = find::runtime()?.block_on(async {
        let mut ending = JoinSet::new();
        for (place, name) in arguments.names.iter().cloned().enumerate() {
            let grace = arguments.time;
            ending.spawn(async move { (place, end(&name, grace).await) });
        }
        let mut ends = ending.join_all().await;
        ends.sort_by_key(|(place, _)| *place);
        ends
    });
    let mut failed = None;
    for (name, (_, end)) in arguments.names.iter().zip(ends) {
        match end {
            Ok(ended) if json => crate::say(format!("{}\n", told(name, ended.as_ref())).as_bytes())?,
            Ok(_) => crate::say(format!("{}\n", carrel_changes::Line(name)).as_bytes())?,
            Err(failure) => {
                // The last one is told by whoever called.
                failed.replace(failure).inspect(|earlier: &Failure| earlier.report(json));
                0
            }
        };
    }
    failed.map_or(Ok(0), |failure| Err(failure.exit(FAILED)))
}

/// Ends a sandbox, and returns when nothing of it runs any more. One that has ended already says nothing.
pub(crate) async fn end(name: &str, grace: Duration) -> Result<Option<Ended>, Failure> {
    let found = find::one(name)?;
    if let Life::Dead { .. } = found.life {
        return Ok(None);
    }
    let mut client = find::adopt(name, &found).await?;
    let supervisor = handle(&found);
    let ended = match client.stop(grace).await {
        Ok(ended) => Some(ended),
        // Its supervisor is dead, and with it the sandbox. What it left is swept.
        Err(ShimError::Gone) => None,
        Err(error) => return Err(error.into()),
    };
    drop(client);
    if let Some(supervisor) = supervisor {
        gone(name, supervisor).await?;
    }
    if ended.is_none() {
        // What cannot be removed now is found by the next run.
        let _swept = carrel_shim::sweep(&Home::find()?.sandboxes());
    }
    Ok(ended)
}

/// A handle of the supervisor, while it is the one that was written down.
fn handle(found: &Found) -> Option<OwnedFd> {
    let record = found.record.as_ref()?;
    let pid = Pid::from_raw(i32::try_from(record.shim_pid).ok()?)?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    record.shim().map(|_| handle)
}

/// Waits until a process is no more.
async fn gone(name: &str, process: OwnedFd) -> Result<(), Failure> {
    let waiting = spawn_blocking(move || poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&LEAVING)));
    match waiting.await {
        Ok(Ok(1..)) => Ok(()),
        other => {
            let words = format!("the supervisor of {name:?} does not leave, though its sandbox is gone");
            let why = match other {
                Ok(Err(errno)) => format!(": {errno}"),
                Ok(Ok(_)) => String::new(),
                Err(error) => format!(": {error}"),
            };
            Err(Failure::new("supervisor_stuck", words + &why))
        }
    }
}

fn told(name: &str, ended: Option<&Ended>) -> Value {
    json!({
        "name": name,
        "ended": ended.map(|ended| json!({
            "reason": ended.reason.as_str(),
            "message": &ended.message,
            "code": ended.code,
            "signal": ended.signal,
            "out_of_memory_kills": ended.out_of_memory_kills,
        })),
    })
}
