//! Waits until it is known whether the command of a new sandbox started: the sandbox is ready before that.

use std::time::Duration;

use carrel_api::agbox::v1::SandboxState;
use carrel_shim_client::ShimError;
use carrel_shim_client::messages::{FailureCode, JobInfo, JobState};

use crate::daemon::DaemonClient;
use crate::failure::Failure;
use crate::find;
use crate::jobs::session::ending::SessionEnding;

/// The job of the first start of a sandbox's command.
const FIRST_JOB: &str = "primary.0";
/// How long to wait for the start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The first and the longest interval between two queries: a shim does not report that a job has started.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Fails if the command of a sandbox could not be started. Only root may query the shim. `has_command` if it is known that there
/// is one, which a configuration file may have.
pub(crate) async fn check(daemon: &mut DaemonClient, id: &str, has_command: bool) -> Result<(), Failure> {
    if find::require_root().is_err() {
        return Ok(());
    }
    let reason = match tokio::time::timeout(START_TIMEOUT, first(id, has_command)).await {
        Ok(Ok(job)) => failure(&job),
        // A slow start may still succeed.
        Err(_) => None,
        // The sandbox may have failed because of its command.
        Ok(Err(_)) => match daemon.find(id).await? {
            Some(handle) if handle.state() == SandboxState::Failed => {
                Some(Failure::new("sandbox_failed", format!("the sandbox {id:?} failed: {}", handle.error_message)))
            }
            _ => None,
        },
    };
    reason.map_or(Ok(()), |reason| Err(reason.hint(failed_sandbox_hint(id))))
}

/// What to do about a new sandbox that failed: it exists, and its id cannot be reused.
pub(crate) fn failed_sandbox_hint(id: &str) -> String {
    format!(
        "`carrel events {id}` shows what happened, `carrel rm {id}` removes it; retry with another --name, because \
         this one stays taken"
    )
}

/// The job of the first start, once it has started or failed.
async fn first(id: &str, has_command: bool) -> Result<JobInfo, Failure> {
    let found = find::one(id).await?;
    let mut client = find::connect(id, &found).await?;
    let mut pause = POLL_INTERVAL.0;
    loop {
        match client.job(FIRST_JOB).await {
            Ok(job) if job.state != JobState::Starting => return Ok(job),
            Ok(_) => {}
            // The daemon starts it after it has reported that the sandbox is ready.
            Err(ShimError::Failed(failed)) if has_command && failed.code == FailureCode::JobUnknown => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(POLL_INTERVAL.1);
    }
}

/// The failure, if the command could not be started.
fn failure(job: &JobInfo) -> Option<Failure> {
    let program = job.command.first().map_or("", String::as_str);
    SessionEnding::of(program, job.outcome.as_ref()?).err()
}
