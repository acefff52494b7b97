//! Jobs: whatever runs in a sandbox, and who is at its streams.

pub(crate) mod asked;
mod attach;
mod choice;
mod conclusion;
mod exec;
mod kept;
mod logs;
mod owner;
pub(crate) mod session;
mod tail;
mod through;

use std::sync::Arc;

use carrel_api::agbox::v1::SandboxState;
use carrel_shim_client::messages::{FailureCode, JobInfo, JobState};
use carrel_shim_client::{DiscoveredSandbox, Liveness, ShimClient, ShimError};

pub(crate) use self::choice::RUN;
use self::logs::Stopped;
pub(crate) use self::owner::exec_ids;
use self::session::detach::DetachKeys;
use self::session::notes::Notes;
use self::session::signals::Signals;
use crate::arguments::{AttachArguments, ExecArguments, LogsArguments};
use crate::daemon::{self, Daemon};
use crate::failure::Failure;
use crate::find;

/// What is exited with when what a job wrote cannot be shown: nothing is run whose code could be meant.
const UNSHOWN: u8 = 1;

/// Runs a command in a sandbox that is there; returns what to exit with.
pub(crate) fn exec(arguments: &ExecArguments, json: bool) -> Result<u8, Failure> {
    let runtime = find::runtime()?;
    let (found, keeper) = runtime.block_on(there(&arguments.name))?;
    let plan = exec::Plan::new(arguments, &found, keeper, json)?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen(plan.terminal())?
    };
    runtime.block_on(plan.drive(&found, &mut signals))
}

/// A sandbox that runs, with the daemon that keeps it, if one does.
async fn there(name: &str) -> Result<(Arc<DiscoveredSandbox>, Option<Daemon>), Failure> {
    let found = find::maybe(name)?;
    let is_running = found.as_ref().is_some_and(|found| found.life == Liveness::Running);
    let keeper = match daemon::keeper(name, found.as_ref()).await {
        // It runs without its store: a command in it may rescue what it has.
        Err(failure) if failure.code == daemon::STORE_LOST && is_running => None,
        keeper => keeper?,
    };
    match (keeper, found) {
        (Some((_, handle)), None) => Err(find::at_rest(&handle)),
        (Some((_, handle)), Some(_)) if handle.state() != SandboxState::Ready => Err(find::at_rest(&handle)),
        (keeper, Some(found)) => Ok((Arc::new(found), keeper.map(|(daemon, _)| daemon))),
        (None, None) => Err(find::no_such_sandbox(name)),
    }
}

/// Takes part in a job that runs; returns what to exit with.
pub(crate) fn attach(arguments: &AttachArguments, json: bool) -> Result<u8, Failure> {
    find::runtime()?.block_on(async {
        let found = Arc::new(find::one(&arguments.name).await?);
        attach::drive(arguments, found, Notes { quiet: arguments.quiet, json }).await
    })
}

/// Shows what a job wrote.
pub(crate) fn logs(arguments: &LogsArguments, json: bool) -> Result<u8, Failure> {
    match shown(arguments, json) {
        // That nobody reads it any more is no failure.
        Ok(()) | Err(Stopped::Unread) => Ok(0),
        Err(Stopped::Failed(failure)) => Err(failure.exit(UNSHOWN)),
    }
}

fn shown(arguments: &LogsArguments, json: bool) -> Result<(), Stopped> {
    let runtime = find::runtime()?;
    let (name, notes) = (&arguments.name, Notes { quiet: false, json });
    let found = find::maybe(name)?;
    // One that is at rest may be swept at this moment.
    if found.as_ref().is_none_or(|found| found.life == Liveness::Starting) {
        if let Some(logs) = kept::of_one_that_stays(name, &runtime)? {
            return kept::show_all(arguments, &logs, notes);
        }
    }
    let found = found.ok_or_else(|| find::no_such_sandbox(name))?;
    match (&found.life, &found.record) {
        (Liveness::Dead { facts, .. }, Some(record)) => {
            kept::show(arguments, &record.logs.0, notes, &kept::jobs(facts))
        }
        (Liveness::Running, Some(record)) if record.lasting && runtime.block_on(is_past(arguments, &found))? => {
            kept::show(arguments, &record.logs.0, notes, &[])
        }
        _ => runtime.block_on(logs::drive(arguments, &found, notes)),
    }
}

/// Whether a job is named that its supervisor does not know: it may have run before the sandbox was resumed.
async fn is_past(arguments: &LogsArguments, found: &DiscoveredSandbox) -> Result<bool, Failure> {
    let Some(job) = &arguments.job else { return Ok(false) };
    let mut client = find::adopt(&arguments.name, found).await?;
    match find::answer(async { Ok(client.job(job).await) }).await? {
        Err(ShimError::Failed(failed)) => Ok(failed.code == FailureCode::JobUnknown),
        _ => Ok(false),
    }
}

/// The job that is meant.
async fn chosen(client: &mut ShimClient, sandbox: &str, job: Option<&str>) -> Result<JobInfo, Failure> {
    if let Some(job) = job {
        return Ok(client.job(job).await?);
    }
    let jobs = client.jobs().await?;
    let listed: Vec<_> = jobs.iter().map(|job| (job.job.as_str(), job.state != JobState::Ended)).collect();
    let chosen = choice::choose(sandbox, &listed)?;
    let info = jobs.iter().find(|job| job.job == chosen).cloned();
    info.ok_or_else(|| Failure::new("no_such_job", format!("{sandbox} has no job {chosen}")))
}

pub(crate) fn keys(text: &str) -> Result<DetachKeys, Failure> {
    text.parse().map_err(|error| Failure::new("invalid_keys", error).hint("--detach-keys takes such as ctrl-p,ctrl-q"))
}
