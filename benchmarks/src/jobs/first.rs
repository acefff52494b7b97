//! From the start of a job to its first byte, beside a bare spawn.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use carrel_shim_client::{FollowEvent, ShimClient};

use super::{FACE, command, connect, follow, start};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, since, timed_in_turn};
use crate::sandbox::MeasuredSandbox;

const COMMAND: [&str; 2] = ["/bin/echo", "x"];

/// Measures a job that writes one word.
pub(super) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let sandbox = MeasuredSandbox::start()?;
    let (mut connected, mut fresh) = (0, 0);
    let [ours, alone, bare] = timed_in_turn(
        effort.of(2001, 5),
        [
            &mut || {
                connected += 1;
                sandbox.runtime.block_on(async {
                    let client = connect(&sandbox).await?;
                    let start_time = Instant::now();
                    first_byte(client, &format!("connected-{connected}"), start_time).await
                })
            },
            &mut || {
                fresh += 1;
                sandbox.runtime.block_on(async {
                    let start_time = Instant::now();
                    first_byte(connect(&sandbox).await?, &format!("fresh-{fresh}"), start_time).await
                })
            },
            &mut bare_spawn,
        ],
    )?;
    let line = |name, ours: &Samples| {
        Benchmark::new(name, FACE, ours, "ms").beside("one bare spawn, to its first byte", &bare)
    };
    Ok(vec![
        line("start of a job to its first byte", &ours),
        line("connect, start of a job, to its first byte", &alone),
    ])
}

/// Milliseconds until the first byte of a job is received. The rest of the job does not count.
async fn first_byte(client: ShimClient, job: &str, start_time: Instant) -> Result<f64> {
    let mut follow = follow(start(client, job, &command(&COMMAND)).await?, job, false).await?;
    let event = follow.next().await?;
    let elapsed = since(start_time);
    let is_expected = matches!(&event, Some(FollowEvent::Output { data, .. }) if data == b"x\n");
    ensure!(is_expected, "the first event is {event:?}");
    while let Some(event) = follow.next().await? {
        if let FollowEvent::Ended(info) = &event {
            super::check_success(info)?;
        }
    }
    Ok(elapsed)
}

/// The same of a child process.
fn bare_spawn() -> Result<f64> {
    let start_time = Instant::now();
    let [program, word] = COMMAND;
    let mut child = Command::new(program).arg(word).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut byte = [0];
    child.stdout.as_mut().context("no pipe")?.read_exact(&mut byte)?;
    let elapsed = since(start_time);
    ensure!(child.wait()?.success(), "{program} failed");
    Ok(elapsed)
}
