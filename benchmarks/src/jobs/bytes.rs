//! The throughput of following a job, by one and by many viewers, beside a pipe.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use carrel_agent_client::{ExecEvent, ExecRequest};
use carrel_shim_client::Follow;
use carrel_shim_client::messages::{JobCommand, JobRetention};
use tokio::task::{JoinSet, LocalSet};

use super::{FACE, command, connect, follow, receive_all, start};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, since, timed_in_turn};
use crate::sandbox::MeasuredSandbox;

const MEBIBYTE: usize = 1024 * 1024;
/// The retained output of a held job: so little that the job waits for its viewers.
const LITTLE: u64 = MEBIBYTE as u64;
/// The number of viewers.
const MANY: usize = 100;

/// The line that starts every writer when all viewers are connected.
const GO: &[u8] = b"go\n";

/// Jobs that each write that much; little of it is retained if they are held.
struct JobWriter {
    mebibytes: usize,
    hold: bool,
    jobs: usize,
}

/// Measures a job that writes as fast as it can.
pub(super) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    // Older jobs are pruned, so that the host's disk does not matter.
    let sandbox = MeasuredSandbox::with_retention(JobRetention { ended_jobs: 1, ..JobRetention::default() })?;
    let mut lines = one(&sandbox, effort.of(64, 4), effort.of(21, 3))?;
    lines.extend(many(&sandbox, effort.of(32, 1), effort.of(7, 1))?);
    Ok(lines)
}

/// One viewer, beside a pipe and beside the same command through the relay.
fn one(sandbox: &MeasuredSandbox, mebibytes: usize, rounds: usize) -> Result<Vec<Benchmark>> {
    let (mut kept, mut held) = (JobWriter::new(mebibytes, false), JobWriter::new(mebibytes, true));
    let [kept, held, relayed, bare] = timed_in_turn(
        rounds,
        [
            &mut || kept.time_viewers(sandbox, 1),
            &mut || held.time_viewers(sandbox, 1),
            &mut || relayed(sandbox, mebibytes),
            &mut || piped(mebibytes),
        ],
    )?;
    let speed = |times: &Samples| mebibytes as f64 / times.median() * 1e3;
    let line = |how: &str, times| {
        Benchmark::new(format!("{mebibytes} MiB of a job to 1 viewer, {how}"), FACE, speed(times), "MiB/s")
    };
    Ok(vec![
        line("all kept", &kept).beside("the same through a pipe", speed(&bare)),
        line("all kept", &kept).beside("the same by exec through the relay", speed(&relayed)),
        line("little kept, held", &held).beside("the same through a pipe", speed(&bare)),
        line("little kept, held", &held).beside("the same by exec through the relay", speed(&relayed)),
    ])
}

/// Many viewers: their total throughput, beside that of a pipe to one reader.
fn many(sandbox: &MeasuredSandbox, mebibytes: usize, rounds: usize) -> Result<Vec<Benchmark>> {
    let (mut kept, mut held) = (JobWriter::new(mebibytes, false), JobWriter::new(mebibytes, true));
    let [kept, held, bare] = timed_in_turn(
        rounds,
        [&mut || kept.time_viewers(sandbox, MANY), &mut || held.time_viewers(sandbox, MANY), &mut || piped(mebibytes)],
    )?;
    let speed = |times: &Samples| mebibytes as f64 / times.median() * 1e3;
    let lines = |how: &str, times: &Samples| {
        let name = |whose: &str| format!("{mebibytes} MiB of a job to {MANY} viewers, {how}: {whose}");
        let all = speed(times) * MANY as f64;
        [
            Benchmark::new(name("each"), FACE, speed(times), "MiB/s"),
            Benchmark::new(name("together"), FACE, all, "MiB/s").beside("the same through a pipe to one", speed(&bare)),
        ]
    };
    Ok(lines("all kept", &kept).into_iter().chain(lines("little kept, held", &held)).collect())
}

/// A command that writes that much when it is started by a line.
fn script(mebibytes: usize) -> String {
    format!("read -r go && exec dd if=/dev/zero bs=64k count={} status=none", mebibytes * 16)
}

fn check_complete(received: u64, mebibytes: usize) -> Result<()> {
    ensure!(received == (mebibytes * MEBIBYTE) as u64, "only {received} bytes were received");
    Ok(())
}

/// The same as a child process with a pipe.
fn piped(mebibytes: usize) -> Result<f64> {
    let mut child = Command::new("sh");
    child.args(["-c", &script(mebibytes)]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn()?;
    let mut output = child.stdout.take().context("no pipe")?;
    let start_time = Instant::now();
    child.stdin.take().context("no pipe")?.write_all(GO)?;
    let (mut received, mut buffer) = (0, vec![0; 64 * 1024]);
    loop {
        match output.read(&mut buffer)? {
            0 => break,
            read => received += read as u64,
        }
    }
    let elapsed = since(start_time);
    ensure!(child.wait()?.success(), "dd failed");
    check_complete(received, mebibytes)?;
    Ok(elapsed)
}

/// The same by a client of the agent, through the relay.
fn relayed(sandbox: &MeasuredSandbox, mebibytes: usize) -> Result<f64> {
    sandbox.runtime.block_on(async {
        let args = vec!["-c".to_owned(), script(mebibytes)];
        let request = ExecRequest { cmd: "sh".to_owned(), args, ..ExecRequest::default() };
        let mut exec = sandbox.client.exec(request).await?;
        let start_time = Instant::now();
        exec.write_stdin(GO).await?;
        let mut received = 0;
        while let Some(event) = exec.next().await? {
            match event {
                ExecEvent::Stdout(data) => received += data.len() as u64,
                ExecEvent::Exited { code, .. } => ensure!(code == 0, "dd exited with {code}"),
                ExecEvent::Stderr(_) | ExecEvent::StdinError(_) => {}
            }
        }
        let elapsed = since(start_time);
        check_complete(received, mebibytes)?;
        Ok(elapsed)
    })
}

// === impl JobWriter ===

impl JobWriter {
    fn new(mebibytes: usize, hold: bool) -> Self {
        Self { mebibytes, hold, jobs: 0 }
    }

    /// Milliseconds until that many viewers have received the output of the next job.
    fn time_viewers(&mut self, sandbox: &MeasuredSandbox, viewers: usize) -> Result<f64> {
        self.jobs += 1;
        let job = format!("{}-{}-{viewers}-{}", self.mebibytes, self.hold, self.jobs);
        let keep_bytes = self.hold.then_some(LITTLE);
        let command = JobCommand { stdin: true, keep_bytes, ..command(&["sh", "-c", &script(self.mebibytes)]) };
        sandbox.runtime.block_on(LocalSet::new().run_until(async {
            let mut starter = start(connect(sandbox).await?, &job, &command).await?;
            let mut follows = Vec::new();
            for _ in 0..viewers {
                follows.push(follow(connect(sandbox).await?, &job, self.hold).await?);
            }
            // All viewers are connected before the first byte.
            while (starter.job(&job).await?.viewers as usize) < viewers {}
            let start_time = Instant::now();
            starter.write(&job, GO, None).await?;
            self.all(follows).await?;
            Ok(since(start_time))
        }))
    }

    /// All viewers read concurrently.
    async fn all(&self, follows: Vec<Follow>) -> Result<()> {
        let mut reading = JoinSet::new();
        for mut follow in follows {
            reading.spawn_local(async move { receive_all(&mut follow).await });
        }
        while let Some(received) = reading.join_next().await {
            check_complete(received??, self.mebibytes)?;
        }
        Ok(())
    }
}
