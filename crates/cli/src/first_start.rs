//! Whether the command of a new sandbox could be started: a sandbox is ready before that is known.

use std::time::Duration;

use carrel_api::agbox::v1::SandboxState;
use carrel_shim_client::messages::{JobInfo, JobState};

use crate::daemon::DaemonClient;
use crate::failure::Failure;
use crate::find;
use crate::jobs::session::ending::SessionEnding;

/// The first start of the command of a sandbox.
const FIRST: &str = "primary.0";
/// How long a start is waited for.
const STARTING: Duration = Duration::from_secs(30);
/// How long to wait until a supervisor is asked again, at first and at last: it does not report that a job runs.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Fails if the command of a sandbox could not be started. Without the right to ask its supervisor, nothing is known.
pub(crate) async fn check(daemon: &mut DaemonClient, id: &str) -> Result<(), Failure> {
    if find::require_root().is_err() {
        return Ok(());
    }
    let reason = match tokio::time::timeout(STARTING, first(id)).await {
        Ok(Ok(job)) => failure(&job),
        // One that starts slowly may still start.
        Err(_) => None,
        // Without an answer, the sandbox may have failed because of it.
        Ok(Err(_)) => match daemon.find(id).await? {
            Some(handle) if handle.state() == SandboxState::Failed => {
                Some(Failure::new("sandbox_failed", format!("the sandbox {id:?} failed: {}", handle.error_message)))
            }
            _ => None,
        },
    };
    reason.map_or(Ok(()), |reason| Err(reason.hint(format!("carrel rm {id}"))))
}

/// The first start, once it is known whether it succeeded.
async fn first(id: &str) -> Result<JobInfo, Failure> {
    let found = find::one(id).await?;
    let mut client = find::connect(id, &found).await?;
    let mut pause = PAUSES.0;
    loop {
        let job = client.job(FIRST).await?;
        if job.state != JobState::Starting {
            return Ok(job);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Why the command could not be started, if it could not.
fn failure(job: &JobInfo) -> Option<Failure> {
    let program = job.command.first().map_or("", String::as_str);
    SessionEnding::of(program, job.outcome.as_ref()?).err()
}
