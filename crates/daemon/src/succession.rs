//! Taking a home over from a daemon that a command started: one that somebody means to have goes before it.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::lock::{Lock, LockError};

/// How long one that was told to go may take, with those that commands start meanwhile.
const LEAVING: Duration = Duration::from_secs(10);

/// Takes a lock, from a daemon that a command started if that has it.
pub(crate) fn take_over(path: &Path) -> Result<Lock, LockError> {
    let until = Instant::now() + LEAVING;
    loop {
        let held = match Lock::take(path) {
            Err(held @ LockError::Held { pid: Some(_), .. }) => held,
            taken => return taken,
        };
        if Instant::now() >= until || !dismiss(path, &held, until) {
            return Err(held);
        }
    }
}

/// Ends whoever holds a lock, if a command started it; says whether it is worth another try.
fn dismiss(path: &Path, held: &LockError, until: Instant) -> bool {
    let LockError::Held { pid: Some(number), .. } = held else { return false };
    let Some(pid) = i32::try_from(*number).ok().and_then(Pid::from_raw) else { return false };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return true,
        opened => opened,
    };
    let Ok(process) = process else { return false };
    if !is_detached(*number) {
        // One that has ended meanwhile says nothing any more.
        return has_ended(&process, Instant::now());
    }
    // From here on the number is the process's: whether that process has the lock is asked again.
    match Lock::take(path) {
        Err(LockError::Held { pid: Some(again), .. }) if again == *number => {}
        // It is gone, or another's. What was taken just now is given back, to be taken like any other.
        _ => return true,
    }
    tracing::info!(pid = number, "a daemon that a command started makes way");
    match pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => has_ended(&process, until),
        Err(_) => false,
    }
}

/// Whether a process is a daemon that a command started: it is told so by its arguments.
fn is_detached(pid: u32) -> bool {
    let said = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let has = |word: &[u8]| said.split(|byte| *byte == 0).any(|argument| argument == word);
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

    /// A process that holds a lock as a daemon does, and has these arguments.
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
    fn one_that_a_command_started_makes_way() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.lock");
        let mut child = holder(&path, &["serve", "--detached", "--home", "/h"]);
        // It ends by a signal, not because nobody speaks to it; and it is ours to bury.
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
    fn one_that_somebody_started_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.lock");
        let mut child = holder(&path, &["serve", "--home", "/h"]);
        assert!(matches!(take_over(&path), Err(LockError::Held { pid, .. }) if pid == Some(child.id())));
        assert!(child.try_wait().unwrap().is_none(), "nothing was done to it");
        drop(child.stdin.take());
        child.wait().unwrap();
        take_over(&path).unwrap();
    }
}
