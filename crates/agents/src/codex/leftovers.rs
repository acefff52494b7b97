//! What the commands of a thread left running. The app-server lives on for other threads, so it goes with none of them;
//! but Codex writes the thread into the environment of each command.

use std::{fs, path::PathBuf, time::Duration};

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

/// How many were found, and killed.
fn kill(marks: &[Vec<u8>]) -> usize {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(pid)?, entry.path()))
    });
    processes.filter_map(|(pid, directory)| kill_marked(pid, &directory.join("environ"), marks)).count()
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
