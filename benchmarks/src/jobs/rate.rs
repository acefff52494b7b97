//! How many jobs per second start and exit, beside bare spawns.

use std::process::Command;
use std::rc::Rc;

use anyhow::{Result, ensure};
use tokio::task::{JoinSet, LocalSet};

use super::{FACE, check_success, command, connect};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, in_turn};
use crate::sandbox::MeasuredSandbox;

const PROGRAM: &str = "/bin/true";
/// How many run concurrently.
const AT_ONCE: usize = 16;

/// Measures jobs that do nothing, one after the other and many at a time.
pub(super) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (sandbox, count) = (Rc::new(MeasuredSandbox::start()?), effort.of(320, 16));
    let mut lines = Vec::new();
    for (at_once, how) in [(1, "one after the other"), (AT_ONCE, "16 at a time")] {
        let mut round = 0;
        let [ours, bare] = in_turn(
            effort.of(11, 3),
            [
                &mut || {
                    round += 1;
                    jobs(&sandbox, &format!("{at_once}-{round}"), count, at_once)
                },
                &mut || spawns(count, at_once),
            ],
        )?;
        let rate = |times: &Samples| count as f64 / times.median() * 1e3;
        lines.push(
            Benchmark::new(format!("jobs per second, {how}"), FACE, rate(&ours), "/s")
                .beside("bare spawns, as many at a time", rate(&bare)),
        );
    }
    Ok(lines)
}

/// Runs that many jobs, each connection one after the other.
fn jobs(sandbox: &Rc<MeasuredSandbox>, name: &str, count: usize, at_once: usize) -> Result<()> {
    sandbox.runtime.block_on(LocalSet::new().run_until(async {
        let mut callers = JoinSet::new();
        for caller in 0..at_once {
            let (sandbox, name) = (sandbox.clone(), format!("{name}-{caller}"));
            callers.spawn_local(async move {
                let mut client = connect(&sandbox).await?;
                for number in 0..count / at_once {
                    let job = format!("{name}-{number}");
                    ensure!(client.start(&job, &command(&[PROGRAM])).await?.created, "there was a job {job}");
                    check_success(&client.wait(&job).await?)?;
                }
                Ok(())
            });
        }
        while let Some(done) = callers.join_next().await {
            done??;
        }
        Ok(())
    }))
}

/// The same number of child processes.
fn spawns(count: usize, at_once: usize) -> Result<()> {
    std::thread::scope(|scope| {
        let spawn = || {
            for _ in 0..count / at_once {
                ensure!(Command::new(PROGRAM).status()?.success(), "{PROGRAM} failed");
            }
            Ok(())
        };
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(spawn)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread failed")))
    })
}
