//! Jobs: whatever runs in a sandbox, and who is at its streams.

pub(crate) mod asked;
mod attach;
mod choice;
mod conclusion;
mod exec;
mod kept;
mod logs;
pub(crate) mod session;

use std::sync::Arc;

use carrel_shim_client::messages::{JobInfo, JobState};
use carrel_shim_client::{Life, ShimClient};

pub(crate) use self::choice::RUN;
use self::logs::Stopped;
use self::session::detach::DetachKeys;
use self::session::notes::Notes;
use self::session::signals::Signals;
use crate::arguments::{AttachArguments, ExecArguments, LogsArguments};
use crate::failure::Failure;
use crate::find;

/// What is exited with when what a job wrote cannot be shown: nothing is run whose code could be meant.
const UNSHOWN: u8 = 1;

/// Runs a command in a sandbox that is there; returns what to exit with.
pub(crate) fn exec(arguments: &ExecArguments, json: bool) -> Result<u8, Failure> {
    let found = Arc::new(find::one(&arguments.name)?);
    let plan = exec::Plan::new(arguments, &found, json)?;
    let runtime = find::runtime()?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen(plan.terminal())?
    };
    runtime.block_on(plan.drive(&found, &mut signals))
}

/// Takes part in a job that runs; returns what to exit with.
pub(crate) fn attach(arguments: &AttachArguments, json: bool) -> Result<u8, Failure> {
    let found = Arc::new(find::one(&arguments.name)?);
    find::runtime()?.block_on(attach::drive(arguments, found, Notes { quiet: arguments.quiet, json }))
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
    let found = find::one(&arguments.name)?;
    match (&found.life, &found.record) {
        (Life::Dead { facts, .. }, Some(record)) => kept::show(arguments, record, facts),
        _ => find::runtime()?.block_on(logs::drive(arguments, &found, Notes { quiet: false, json })),
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

fn keys(text: &str) -> Result<DetachKeys, Failure> {
    text.parse().map_err(|error| Failure::new("invalid_keys", error).hint("--detach-keys takes such as ctrl-p,ctrl-q"))
}
