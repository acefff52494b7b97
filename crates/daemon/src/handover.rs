//! Replaces a daemon that a command started: one that the user starts has precedence.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::lock::{LockError, PidFileLock};

/// How long the old daemon may take to exit, including those that commands start meanwhile.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes the lock, terminating its holder if that is a daemon that a command started.
pub(crate) fn take_over(path: &Path) -> Result<PidFileLock, LockError> {
    let until = Instant::now() + EXIT_TIMEOUT;
    loop {
        let held = match PidFileLock::take(path) {
            Err(held @ LockError::Held { pid: Some(_), .. }) => held,
            taken => return taken,
        };
        if Instant::now() >= until || !terminate_holder(path, &held, until) {
            return Err(held);
        }
    }
}

/// Terminates the holder of a lock if a command started it; returns whether to retry.
fn terminate_holder(path: &Path, held: &LockError, until: Instant) -> bool {
    let LockError::Held { pid: Some(number), .. } = held else { return false };
    let Some(pid) = i32::try_from(*number).ok().and_then(Pid::from_raw) else { return false };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return true,
        opened => opened,
    };
    let Ok(process) = process else { return false };
    if !is_detached(*number) {
        // A process that has exited meanwhile has no arguments any more.
        return has_ended(&process, Instant::now());
    }
    // The pidfd is open, so the pid is not reused: check once more whether that process holds the lock.
    match PidFileLock::take(path) {
        Err(LockError::Held { pid: Some(again), .. }) if again == *number => {}
        // It has exited, or another process holds the lock. A lock taken just now is released, and taken again by the
        // caller.
        _ => return true,
    }
    tracing::info!(pid = number, "terminating the daemon that a command started");
    match pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => has_ended(&process, until),
        Err(_) => false,
    }
}

/// Whether a process is a daemon that a command started, according to its arguments.
fn is_detached(pid: u32) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let has = |word: &[u8]| arguments.split(|byte| *byte == 0).any(|argument| argument == word);
    has(b"serve") && has(b"--detached")
}

fn has_ended(process: impl AsFd, until: Instant) -> bool {
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            ended => return ended.is_ok_and(|ended| ended > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that holds a lock as a daemon does, with these arguments.
    fn holder(path: &Path, arguments: &[&str]) -> Child {
        let script = "exec 9<>\"$0\"; flock 9; echo $$ >&9; echo held; read line";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(path).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        child
    }

    #[test]
    fn a_daemon_that_a_command_started_is_terminated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.lock");
        let mut child = holder(&path, &["serve", "--detached", "--home", "/h"]);
        // It ends by the signal, not because its standard input is closed; this process has to reap it.
        let _input = child.stdin.take();
        let taken = std::thread::scope(|scope| {
            let taking = scope.spawn(|| take_over(&path));
            assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
            taking.join().unwrap()
        });
        let _lock = taken.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_daemon_that_the_user_started_keeps_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.lock");
        let mut child = holder(&path, &["serve", "--home", "/h"]);
        assert!(matches!(take_over(&path), Err(LockError::Held { pid, .. }) if pid == Some(child.id())));
        assert!(child.try_wait().unwrap().is_none(), "it still runs");
        drop(child.stdin.take());
        child.wait().unwrap();
        take_over(&path).unwrap();
    }
}
