//! `carrel exec`, `attach` and `logs`: jobs of a sandbox.

mod attach;
pub(crate) mod command;
mod daemon_exec;
mod exec;
mod exec_user;
mod logs;
mod report;
mod select;
pub(crate) mod session;
pub(crate) mod stored_logs;
pub(crate) mod stored_streams;
mod tail;

use std::sync::Arc;

use carrel_api::agbox::v1::SandboxState;
use carrel_shim_client::messages::{FailureCode, JobInfo, JobState};
use carrel_shim_client::{DiscoveredSandbox, Liveness, ShimClient, ShimError};

pub(crate) use self::exec_user::exec_ids;
use self::logs::LogsError;
pub(crate) use self::select::RUN;
use self::session::detach::DetachKeys;
use self::session::notes::SessionNotes;
use self::session::signals::HandledSignals;
use crate::arguments::{AttachArguments, ExecArguments, LogsArguments};
use crate::daemon::{self, DaemonClient};
use crate::failure::Failure;
use crate::find;

/// The exit code of `carrel logs` when output cannot be shown.
const LOGS_FAILED: u8 = 1;

/// Runs a command in an existing sandbox; returns the exit code.
pub(crate) fn exec(arguments: &ExecArguments, json: bool) -> Result<u8, Failure> {
    let runtime = find::runtime()?;
    let (found, daemon) = runtime.block_on(running_sandbox(&arguments.name))?;
    let plan = exec::ExecPlan::new(arguments, &found, daemon, json)?;
    let mut signals = {
        let _inside = runtime.enter();
        HandledSignals::listen(plan.terminal())?
    };
    runtime.block_on(plan.drive(&found, &mut signals))
}

/// A running sandbox, with its daemon if it is persistent.
async fn running_sandbox(name: &str) -> Result<(Arc<DiscoveredSandbox>, Option<DaemonClient>), Failure> {
    let found = find::existing(name)?;
    let is_running = found.as_ref().is_some_and(|found| found.life == Liveness::Running);
    let daemon = match daemon::find_persistent(name, found.as_ref()).await {
        // The store is lost, but the sandbox runs: a command in it may rescue its files.
        Err(failure) if failure.code == daemon::STORE_LOST && is_running => None,
        daemon => daemon?,
    };
    match (daemon, found) {
        (Some((_, handle)), None) => Err(find::not_running_failure(&handle)),
        (Some((_, handle)), Some(_)) if handle.state() != SandboxState::Ready => {
            Err(find::not_running_failure(&handle))
        }
        (daemon, Some(found)) => Ok((Arc::new(found), daemon.map(|(daemon, _)| daemon))),
        (None, None) => Err(find::no_such_sandbox(name)),
    }
}

/// Attaches to a running job; returns the exit code.
pub(crate) fn attach(arguments: &AttachArguments, json: bool) -> Result<u8, Failure> {
    find::runtime()?.block_on(async {
        let found = Arc::new(find::one(&arguments.name).await?);
        attach::drive(arguments, found, SessionNotes { quiet: arguments.quiet, json }).await
    })
}

/// Shows the output of a job.
pub(crate) fn logs(arguments: &LogsArguments, json: bool) -> Result<u8, Failure> {
    match show_logs(arguments, json) {
        // A closed pipe is not a failure.
        Ok(()) | Err(LogsError::OutputClosed) => Ok(0),
        Err(LogsError::Failed(failure)) => Err(failure.exit(LOGS_FAILED)),
    }
}

fn show_logs(arguments: &LogsArguments, json: bool) -> Result<(), LogsError> {
    let runtime = find::runtime()?;
    let (name, notes) = (&arguments.name, SessionNotes { quiet: false, json });
    let found = find::existing(name)?;
    // The directory of a stopped sandbox may be swept at this moment.
    if found.as_ref().is_none_or(|found| found.life == Liveness::Starting)
        && let Some(logs) = stored_logs::directory_of_persistent(name, &runtime)?
    {
        return stored_logs::show_all(arguments, &logs, notes);
    }
    let found = found.ok_or_else(|| find::no_such_sandbox(name))?;
    match (&found.life, &found.record) {
        (Liveness::Dead { facts, .. }, Some(record)) => {
            stored_logs::show(arguments, &record.logs.0, notes, &stored_logs::jobs(facts))
        }
        (Liveness::Running, Some(record)) if record.lasting && runtime.block_on(is_past(arguments, &found))? => {
            stored_logs::show(arguments, &record.logs.0, notes, &[])
        }
        _ => runtime.block_on(logs::drive(arguments, &found, notes)),
    }
}

/// Whether the named job is unknown to the shim: it may have run before the sandbox was resumed.
async fn is_past(arguments: &LogsArguments, found: &DiscoveredSandbox) -> Result<bool, Failure> {
    let Some(job) = &arguments.job else { return Ok(false) };
    let mut client = find::connect(&arguments.name, found).await?;
    match find::with_timeout(async { Ok(client.job(job).await) }).await? {
        Err(ShimError::Failed(failed)) => Ok(failed.code == FailureCode::JobUnknown),
        _ => Ok(false),
    }
}

/// The named or selected job.
async fn selected(client: &mut ShimClient, sandbox: &str, job: Option<&str>) -> Result<JobInfo, Failure> {
    if let Some(job) = job {
        return Ok(client.job(job).await?);
    }
    let jobs = client.jobs().await?;
    let listed: Vec<_> = jobs.iter().map(|job| (job.job.as_str(), job.state != JobState::Ended)).collect();
    let chosen = select::choose(sandbox, &listed)?;
    let info = jobs.iter().find(|job| job.job == chosen).cloned();
    info.ok_or_else(|| Failure::new("no_such_job", format!("{sandbox} has no job {chosen}")))
}

pub(crate) fn keys(text: &str) -> Result<DetachKeys, Failure> {
    text.parse()
        .map_err(|error| Failure::new("invalid_keys", error).hint("give keys such as --detach-keys ctrl-p,ctrl-q"))
}
