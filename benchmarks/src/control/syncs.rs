//! How often the daemon fsyncs.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use carrel_api::agbox::v1::EventType;
use tempfile::NamedTempFile;

use super::FACE;
use super::client::{DaemonClient, WatchedSandbox};
use super::daemon::MeasuredDaemon;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;

/// The system calls that fsync.
const CALLS: &str = "trace=fsync,fdatasync,sync_file_range,msync,syncfs,sync";

/// The measured requests in their order, each for the same number of sandboxes.
const STEPS: [RequestKind; 5] =
    [RequestKind::Create, RequestKind::Exec, RequestKind::Stop, RequestKind::Resume, RequestKind::Delete];

/// Traces a process and its threads.
struct Tracer {
    strace: Child,
    output: NamedTempFile,
}

/// Counts the calls of the daemon for each kind of request, by `strace`.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    if Command::new("strace").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("strace is not installed: the fsyncs of the daemon are not counted");
        return Ok(Vec::new());
    }
    let (daemon, count) = (MeasuredDaemon::start()?, effort.of(20, 2));
    let mut client = daemon.client()?;
    let mut sandboxes = Vec::new();
    // One-time work of the first request does not count.
    let first = daemon.runtime.block_on(client.ready(&daemon.name()))?;
    daemon.runtime.block_on(client.delete_all(vec![first]))?;

    let tracer = Tracer::attach(daemon.pid())?;
    let mut ended = Vec::new();
    for step in STEPS {
        for number in 0..count {
            daemon.runtime.block_on(step.run(&daemon, &mut client, &mut sandboxes, number))?;
        }
        ended.push(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64());
    }
    let calls = tracer.finish(daemon)?;
    let mut before = 0;
    let lines = STEPS.into_iter().zip(ended).map(|(step, ended)| {
        let until = calls.iter().filter(|at| **at <= ended).count();
        let each = (until - std::mem::replace(&mut before, until)) as f64 / count as f64;
        let name = format!("waits of the daemon for the disk, each {} (by strace)", step.name());
        Benchmark::new(name, FACE, each, "").aim("1", each <= 1.0)
    });
    Ok(lines.collect())
}

#[derive(Clone, Copy)]
enum RequestKind {
    Create,
    Exec,
    Stop,
    Resume,
    Delete,
}

// === impl RequestKind ===

impl RequestKind {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Exec => "exec",
            Self::Stop => "stop",
            Self::Resume => "resume",
            Self::Delete => "delete",
        }
    }

    /// Sends the request once, and waits until it is done.
    async fn run(
        self,
        daemon: &MeasuredDaemon,
        client: &mut DaemonClient,
        sandboxes: &mut Vec<WatchedSandbox>,
        number: usize,
    ) -> Result<()> {
        if let Self::Create = self {
            sandboxes.push(client.ready(&daemon.name()).await?);
            return Ok(());
        }
        let sandbox = sandboxes.get_mut(number).context("no sandbox is left")?;
        let id = sandbox.id.clone();
        let event = match self {
            Self::Create => return Ok(()),
            Self::Exec => return client.run(sandbox).await.map(drop),
            Self::Stop => client.stop(&id).await.map(|()| EventType::SandboxStopped)?,
            Self::Resume => client.resume(&id).await.map(|()| EventType::SandboxReady)?,
            Self::Delete => client.delete(&id).await.map(|()| EventType::SandboxDeleted)?,
        };
        sandbox.until(event).await.map(drop)
    }
}

// === impl Tracer ===

impl Tracer {
    /// Attaches to a process; when this returns, no call is missed.
    fn attach(pid: u32) -> Result<Self> {
        let output = NamedTempFile::new()?;
        let mut command = Command::new("strace");
        // Threads are followed, child programs are not.
        command
            .args(["-f", "-ttt", "-b", "execve", "-e", CALLS, "-o"])
            .arg(output.path())
            .args(["-p", &pid.to_string()]);
        let mut strace = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut line = String::new();
        // It prints a line when it is attached to all threads.
        let mut messages = BufReader::new(strace.stderr.take().context("no pipe")?);
        messages.read_line(&mut line)?;
        ensure!(line.contains("attached"), "strace: {line}");
        // Further lines are about threads that start and exit.
        std::thread::spawn(move || std::io::copy(&mut messages, &mut std::io::sink()));
        Ok(Self { strace, output })
    }

    /// Stops the daemon; returns the times of the calls of its own threads, not of its children. The tracer does not detach
    /// before: that can hang while the daemon starts a process.
    fn finish(mut self, daemon: MeasuredDaemon) -> Result<Vec<f64>> {
        let threads = threads(daemon.pid())?;
        drop(daemon);
        self.strace.wait()?;
        let text = std::fs::read_to_string(self.output.path())?;
        Ok(text
            .lines()
            .filter_map(call_start)
            .filter(|(thread, _)| threads.contains(*thread))
            .map(|(_, at)| at)
            .collect())
    }
}

/// The thread and the time of the start of a call; none for the end of a call and other lines.
fn call_start(line: &str) -> Option<(&str, f64)> {
    let mut fields = line.split_whitespace();
    let (thread, at, call) = (fields.next()?, fields.next()?, fields.next()?);
    call.contains("sync").then_some((thread, at.parse().ok()?))
}

/// The thread ids of a process.
fn threads(pid: u32) -> Result<HashSet<String>> {
    let path = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(Path::new(&path))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_once_when_it_starts() {
        assert_eq!(call_start("12 1700000000.250000 fdatasync(9 <unfinished ...>"), Some(("12", 1_700_000_000.25)));
        assert_eq!(call_start("12 1700000000.250100 <... fdatasync resumed>) = 0"), None);
        assert_eq!(call_start("12 1700000000.250000 fsync(9) = 0"), Some(("12", 1_700_000_000.25)));
        assert_eq!(call_start("12 1700000000.500000 +++ exited with 0 +++"), None);
    }
}
