//! From the start of a job to its first byte, beside a bare spawn.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use carrel_shim_client::{FollowEvent, ShimClient};

use super::{FACE, command, connected, followed, started};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, since, timed_in_turn};
use crate::sandbox::Sandbox;

const WORDS: [&str; 2] = ["/bin/echo", "x"];

/// Measures a job that writes one word.
pub(super) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let sandbox = Sandbox::start()?;
    let (mut met, mut fresh) = (0, 0);
    let [ours, alone, bare] = timed_in_turn(
        effort.of(2001, 5),
        [
            &mut || {
                met += 1;
                sandbox.runtime.block_on(async {
                    let client = connected(&sandbox).await?;
                    let asked = Instant::now();
                    first_byte(client, &format!("met-{met}"), asked).await
                })
            },
            &mut || {
                fresh += 1;
                sandbox.runtime.block_on(async {
                    let asked = Instant::now();
                    first_byte(connected(&sandbox).await?, &format!("fresh-{fresh}"), asked).await
                })
            },
            &mut spawned,
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

/// Milliseconds until the first byte of a job is received. What follows does not count.
async fn first_byte(client: ShimClient, job: &str, asked: Instant) -> Result<f64> {
    let mut follow = followed(started(client, job, &command(&WORDS)).await?, job, false).await?;
    let event = follow.next().await?;
    let taken = since(asked);
    let is_whole = matches!(&event, Some(FollowEvent::Output { data, .. }) if data == b"x\n");
    ensure!(is_whole, "first came {event:?}");
    while let Some(event) = follow.next().await? {
        if let FollowEvent::Ended(info) = &event {
            super::succeeded(info)?;
        }
    }
    Ok(taken)
}

/// The same of a child process.
fn spawned() -> Result<f64> {
    let asked = Instant::now();
    let [program, word] = WORDS;
    let mut child = Command::new(program).arg(word).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut byte = [0];
    child.stdout.as_mut().context("no pipe")?.read_exact(&mut byte)?;
    let taken = since(asked);
    ensure!(child.wait()?.success(), "{program} failed");
    Ok(taken)
}
