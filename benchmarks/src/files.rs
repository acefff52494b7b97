//! How fast a file moves in and out, beside `cp` of the same file; and how the agent answers meanwhile.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::agent::Agent;
use crate::measure::Effort;
use crate::report::{Aim, Anchor, Benchmark};

const MEBIBYTE: usize = 1024 * 1024;

/// Measures files of a size for which starting `cp` does not matter.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Benchmark>> {
    let mebibytes = if effort.is_quick() { 16 } else { 256 };
    let rounds = if effort.is_quick() { 3 } else { 11 };
    let agent = Agent::start()?;
    let (original, copy) = (agent.path("original"), agent.path("copy"));
    let mut file = File::create(&original)?;
    for number in 0..mebibytes {
        file.write_all(&vec![u8::try_from(number % 251)?; MEBIBYTE])?;
    }
    drop(file);

    let files = agent.client.files();
    let inside = agent.path("inside").to_string_lossy().into_owned();
    // Each to a new file, as `cp` below: a file system may flush one that was emptied and filled again.
    let upload = || -> Result<()> {
        let _none_is_fine = std::fs::remove_file(&inside);
        let moved = agent.runtime.block_on(files.upload_file(&inside, File::open(&original)?))?;
        ensure!(moved == (mebibytes * MEBIBYTE) as u64, "only {moved} bytes went in");
        Ok(())
    };
    let outside = agent.path("outside");
    let download = || -> Result<()> {
        let _none_is_fine = std::fs::remove_file(&outside);
        let moved = agent.runtime.block_on(files.download_file(&inside, File::create(&outside)?))?;
        ensure!(moved == (mebibytes * MEBIBYTE) as u64, "only {moved} bytes came out");
        Ok(())
    };
    let mut lines = Vec::new();
    let name = |way| format!("file {way}, {mebibytes} MiB");
    lines.push(line(name("in"), mebibytes, compare(rounds, upload, || cp(&original, &copy))?));
    lines.push(line(name("out"), mebibytes, compare(rounds, download, || cp(&original, &copy))?));
    ensure!(std::fs::read(&original)? == std::fs::read(&outside)?, "the file changed on its way");
    lines.push(pings(&agent, &inside, if effort.is_quick() { 64 } else { 1024 }, mebibytes)?);
    Ok(lines)
}

fn cp(from: &Path, to: &Path) -> Result<()> {
    let _none_is_fine = std::fs::remove_file(to);
    ensure!(Command::new("cp").arg(from).arg(to).status()?.success(), "cp failed");
    Ok(())
}

/// The middle of the seconds that each of two things takes, measured in turn.
fn compare(rounds: usize, subject: impl Fn() -> Result<()>, anchor: impl Fn() -> Result<()>) -> Result<(f64, f64)> {
    let seconds = |call: &dyn Fn() -> Result<()>| -> Result<f64> {
        let started = Instant::now();
        call()?;
        Ok(started.elapsed().as_secs_f64())
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    seconds(&subject)?;
    for _ in 0..rounds {
        ours.push(seconds(&subject)?);
        theirs.push(seconds(&anchor)?);
    }
    Ok((middle(ours), middle(theirs)))
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn line(name: String, mebibytes: usize, (ours, cp): (f64, f64)) -> Benchmark {
    let speed = |seconds: f64| mebibytes as f64 / seconds;
    let ratio = cp / ours;
    Benchmark {
        name,
        face: "agent client",
        value: speed(ours),
        unit: "MiB/s",
        anchor: Anchor { name: "`cp` of the same file", value: speed(cp) },
        ratio,
        aim: Some(Aim { text: "at least 0.5 of its speed", met: ratio >= 0.5 }),
    }
}

/// Pings a busy agent: files move out on one connection while another one asks whether it is there.
fn pings(agent: &Agent, path: &str, total: usize, each: usize) -> Result<Benchmark> {
    let moving = || -> Result<Vec<f64>> {
        agent.runtime.block_on(async {
            let files = agent.client.files();
            let mut busy = std::pin::pin!(async {
                for _ in 0..total.div_ceil(each) {
                    files.download_file(path, File::create("/dev/null")?).await?;
                }
                anyhow::Ok(())
            });
            let mut times = Vec::new();
            loop {
                let asked = Instant::now();
                tokio::select! {
                    biased;
                    moved = &mut busy => return moved.map(|()| times),
                    answered = agent.client.ping() => answered?,
                }
                times.push(asked.elapsed().as_secs_f64() * 1e3);
            }
        })
    };
    let mut idle = Vec::new();
    for _ in 0..1000 {
        let asked = Instant::now();
        agent.runtime.block_on(agent.client.ping())?;
        idle.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    let mut times = moving()?;
    times.sort_by(f64::total_cmp);
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    let idle = middle(idle);
    Ok(Benchmark {
        name: format!("ping while {total} MiB are moving, p99"),
        face: "agent client",
        value: p99,
        unit: "ms",
        anchor: Anchor { name: "ping of an idle agent, median", value: idle },
        ratio: p99 / idle,
        aim: Some(Aim { text: "under 20 ms", met: p99 < 20.0 }),
    })
}
