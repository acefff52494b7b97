//! Jobs: the latency of their first output, the throughput of following, their rate, and their memory when idle.

mod bytes;
mod first;
mod idle;
mod rate;

use anyhow::{Context, Result, ensure};
use carrel_shim_client::messages::{InputWish, JobCommand, JobFollow, JobInfo, OutcomeKind};
use carrel_shim_client::{Follow, FollowEvent, ShimClient};

use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::sandbox::MeasuredSandbox;

const FACE: &str = "shim client";

/// Measures jobs, each part in its own sandbox.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let parts = [first::run, bytes::run, idle::run, rate::run];
    Ok(parts.into_iter().map(|part| part(effort)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// A command and its arguments.
fn command(command: &[&str]) -> JobCommand {
    let mut words = command.iter().map(|word| (*word).to_owned());
    JobCommand { program: words.next().unwrap_or_default(), args: words.collect(), ..JobCommand::default() }
}

async fn connect(sandbox: &MeasuredSandbox) -> Result<ShimClient> {
    Ok(ShimClient::connect(&sandbox.owned.shim_socket()).await?)
}

/// Starts a job that must be new, and returns its connection.
async fn start(mut client: ShimClient, job: &str, command: &JobCommand) -> Result<ShimClient> {
    ensure!(client.start(job, command).await?.created, "there was a job {job}");
    Ok(client)
}

/// Follows the standard output of a job.
async fn follow(client: ShimClient, job: &str, hold: bool) -> Result<Follow> {
    let request = JobFollow { job: job.to_owned(), stdout: Some(0), stderr: None, input: InputWish::None, hold };
    Ok(client.follow(&request).await?)
}

/// Receives everything up to the exit of a job that must succeed; returns the number of bytes, none of which is missed.
async fn receive_all(follow: &mut Follow) -> Result<u64> {
    let mut received = 0;
    while let Some(event) = follow.next().await? {
        match event {
            FollowEvent::Output { offset, data, .. } => {
                ensure!(offset == received, "byte {received} is missed");
                received += data.len() as u64;
            }
            FollowEvent::Cut(cut) => anyhow::bail!("bytes {} to {} are missed", cut.from, cut.to),
            FollowEvent::Input(_) => {}
            FollowEvent::Ended(info) => check_success(&info)?,
        }
    }
    Ok(received)
}

fn check_success(info: &JobInfo) -> Result<()> {
    let outcome = info.outcome.as_ref().with_context(|| format!("job {} has not ended", info.job))?;
    ensure!(outcome.kind == OutcomeKind::Exited && outcome.code == Some(0), "job {}: {outcome:?}", info.job);
    Ok(())
}
