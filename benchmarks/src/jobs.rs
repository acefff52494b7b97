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
use crate::sandbox::Sandbox;

const FACE: &str = "shim client";

/// Measures jobs, each part in a sandbox of its own.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let parts = [first::run, bytes::run, idle::run, rate::run];
    Ok(parts.into_iter().map(|part| part(effort)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// A command and its arguments.
fn command(words: &[&str]) -> JobCommand {
    let mut words = words.iter().map(|word| (*word).to_owned());
    JobCommand { program: words.next().unwrap_or_default(), args: words.collect(), ..JobCommand::default() }
}

async fn connected(sandbox: &Sandbox) -> Result<ShimClient> {
    Ok(ShimClient::connect(&sandbox.owned.shim_socket()).await?)
}

/// Starts a job that must be new, and returns its connection.
async fn started(mut client: ShimClient, job: &str, command: &JobCommand) -> Result<ShimClient> {
    ensure!(client.start(job, command).await?.created, "there was a job {job}");
    Ok(client)
}

/// Follows the standard output of a job.
async fn followed(client: ShimClient, job: &str, hold: bool) -> Result<Follow> {
    let wish = JobFollow { job: job.to_owned(), stdout: Some(0), stderr: None, input: InputWish::None, hold };
    Ok(client.follow(&wish).await?)
}

/// Receives everything up to the exit of a job that must succeed; returns the number of bytes, none of which is missed.
async fn drained(follow: &mut Follow) -> Result<u64> {
    let mut came = 0;
    while let Some(event) = follow.next().await? {
        match event {
            FollowEvent::Output { offset, data, .. } => {
                ensure!(offset == came, "byte {came} is missed");
                came += data.len() as u64;
            }
            FollowEvent::Cut(cut) => anyhow::bail!("bytes {} to {} are missed", cut.from, cut.to),
            FollowEvent::Input(_) => {}
            FollowEvent::Ended(info) => succeeded(&info)?,
        }
    }
    Ok(came)
}

fn succeeded(info: &JobInfo) -> Result<()> {
    let outcome = info.outcome.as_ref().with_context(|| format!("job {} has not ended", info.job))?;
    ensure!(outcome.kind == OutcomeKind::Exited && outcome.code == Some(0), "job {}: {outcome:?}", info.job);
    Ok(())
}
