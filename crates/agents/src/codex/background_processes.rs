//! Processes that the commands of a thread left running. The app-server outlives the thread, but Codex puts the
//! thread's id into the environment of each command.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{task::spawn_blocking, time::sleep};

/// Killed processes may have started others in the meantime.
const MAX_ROUNDS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// Variables that hold the id; the session is the thread that started subthreads.
const VARIABLES: [&str; 2] = ["CODEX_THREAD_ID", "CODEX_SESSION_ID"];

/// Kills all processes of a thread.
pub(super) async fn kill_all(thread: &str) {
    let markers = VARIABLES.map(|variable| format!("{variable}={thread}").into_bytes());
    for round in 0..MAX_ROUNDS {
        let markers = markers.clone();
        match spawn_blocking(move || kill(&markers)).await {
            Ok(0) => return,
            Ok(killed) => tracing::debug!(thread, killed, round, "killed background processes of a thread"),
            Err(error) => return tracing::warn!(thread, %error, "failed to kill background processes of a thread"),
        }
        sleep(PAUSE).await;
    }
    tracing::warn!(thread, "background processes of a thread are still running");
}

/// Descendants of this process's guard, including detached ones. Zombies do not count.
pub(super) fn descendants(process: u32) -> HashSet<u32> {
    let parents: HashMap<u32, u32> = processes().filter_map(|(pid, _)| Some((number(pid), parent(pid)?))).collect();
    let Some(guard) = parents.get(&process) else { return HashSet::new() };
    let mut descendants = HashSet::from([process]);
    loop {
        let known = descendants.len();
        descendants.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == guard || descendants.contains(of))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if descendants.len() == known {
            break;
        }
    }
    descendants.remove(&process);
    descendants
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// The parent of a process that is not a zombie.
fn parent(pid: Pid) -> Option<u32> {
    // The name may contain a parenthesis; after the last one come state and parent.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

fn processes() -> impl Iterator<Item = (Pid, PathBuf)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(pid)?, entry.path()))
    })
}

/// Returns how many were killed.
fn kill(markers: &[Vec<u8>]) -> usize {
    processes().filter_map(|(pid, directory)| kill_marked(pid, &directory.join("environ"), markers)).count()
}

fn kill_marked(pid: Pid, environ: &PathBuf, markers: &[Vec<u8>]) -> Option<()> {
    if !has_marker(environ, markers) {
        return None;
    }
    // Signal through a pidfd and check again, in case the process id was reused. A zombie has no environment.
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    has_marker(environ, markers).then_some(())?;
    pidfd_send_signal(&process, Signal::KILL).ok()
}

fn has_marker(environ: &PathBuf, markers: &[Vec<u8>]) -> bool {
    let Ok(environ) = fs::read(environ) else { return false };
    environ.split(|byte| *byte == 0).any(|variable| markers.iter().any(|marker| marker == variable))
}
