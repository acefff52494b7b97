//! What the commands of a thread left running. The app-server lives on for other threads, so it goes with none of them;
//! but Codex writes the thread into the environment of each command.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{task::spawn_blocking, time::sleep};

/// What is killed may have started something in the meantime.
const ROUNDS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// By these it is known; the session is that of the thread which began others.
const VARIABLES: [&str; 2] = ["CODEX_THREAD_ID", "CODEX_SESSION_ID"];

/// Ends it all.
pub(super) async fn end(thread: &str) {
    let marks = VARIABLES.map(|variable| format!("{variable}={thread}").into_bytes());
    for round in 0..ROUNDS {
        let marks = marks.clone();
        match spawn_blocking(move || kill(&marks)).await {
            Ok(0) => return,
            Ok(killed) => tracing::debug!(thread, killed, round, "ended what a thread left running"),
            Err(error) => return tracing::warn!(thread, %error, "what a thread left running was not ended"),
        }
        sleep(PAUSE).await;
    }
    tracing::warn!(thread, "what a thread left running does not end");
}

/// Whoever is below the guard of this process, also what has detached itself. What has ended and only waits to be reaped
/// does not count.
pub(super) fn below(process: u32) -> HashSet<u32> {
    let parents: HashMap<u32, u32> = processes().filter_map(|(pid, _)| Some((number(pid), parent(pid)?))).collect();
    let Some(guard) = parents.get(&process) else { return HashSet::new() };
    let mut below = HashSet::from([process]);
    loop {
        let known = below.len();
        below.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == guard || below.contains(of))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if below.len() == known {
            break;
        }
    }
    below.remove(&process);
    below
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// The parent of a process that has not ended.
fn parent(pid: Pid) -> Option<u32> {
    // The name may have any character, a parenthesis too; after the last one come the state and the parent.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

/// All that there are.
fn processes() -> impl Iterator<Item = (Pid, PathBuf)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(pid)?, entry.path()))
    })
}

/// How many were found, and killed.
fn kill(marks: &[Vec<u8>]) -> usize {
    processes().filter_map(|(pid, directory)| kill_marked(pid, &directory.join("environ"), marks)).count()
}

fn kill_marked(pid: Pid, environ: &PathBuf, marks: &[Vec<u8>]) -> Option<()> {
    if !is_marked(environ, marks) {
        return None;
    }
    // By a handle, so that nobody else is hit who got the same number since; looked at again for the same reason. One that
    // has ended and only waits to be reaped has no environment any more.
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    is_marked(environ, marks).then_some(())?;
    pidfd_send_signal(&process, Signal::KILL).ok()
}

fn is_marked(environ: &PathBuf, marks: &[Vec<u8>]) -> bool {
    let Ok(environ) = fs::read(environ) else { return false };
    environ.split(|byte| *byte == 0).any(|variable| marks.iter().any(|mark| mark == variable))
}
