//! Waits for processes through pidfds, without a thread for each.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A pidfd that is waited for asynchronously; it cannot refer to another process that reuses the pid.
#[derive(Debug)]
pub(crate) struct AsyncPidFd(AsyncFd<OwnedFd>);

// === impl AsyncPidFd ===

impl AsyncPidFd {
    #[allow(
        deprecated,
        reason = "the replacement is unsafe, for types whose descriptor may change: an `OwnedFd` does not"
    )]
    pub(crate) fn new(handle: OwnedFd) -> std::io::Result<Self> {
        AsyncFd::with_interest(handle, Interest::READABLE).map(Self)
    }

    /// Waits until the process has exited.
    pub(crate) async fn exited(&self) {
        // It cannot fail while the runtime exists, and stays readable from then on.
        let _ended = self.0.readable().await;
    }

    /// Whether the process exits within this time.
    pub(crate) async fn exits_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.exited()).await.is_ok()
    }

    pub(crate) fn kill(&self) -> Result<(), Errno> {
        match rustix::process::pidfd_send_signal(self.0.get_ref().as_fd(), Signal::KILL) {
            // It has exited.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Waits for a child process in the background, so that it does not remain a zombie.
pub(crate) fn reap_in_background(mut child: Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    match handle.and_then(|handle| AsyncPidFd::new(handle).ok()) {
        Some(process) => drop(tokio::spawn(async move {
            process.exited().await;
            let _status = child.wait();
        })),
        // Without a pidfd, a thread waits.
        None => drop(tokio::task::spawn_blocking(move || child.wait())),
    }
}

/// Waits for a child process, and kills it after a time. Returns whether it exited by itself.
pub(crate) async fn wait_or_kill(mut child: Child, limit: Duration) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    let in_time = match handle.and_then(|handle| AsyncPidFd::new(handle).ok()) {
        Some(process) => process.exits_within(limit).await,
        None => false,
    };
    let reaped = tokio::task::spawn_blocking(move || {
        if !in_time {
            // A process that exited meanwhile is not affected.
            let _killed = child.kill();
        }
        child.wait().is_ok()
    });
    reaped.await.unwrap_or(false) && in_time
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_child_that_exited_is_reaped() {
        let child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let other = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        reap_in_background(child);
        assert!(AsyncPidFd::new(other).unwrap().exits_within(Duration::from_secs(60)).await);
        // The pid is free once the child was waited for.
        while rustix::process::test_kill_process(pid).is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_child_is_waited_for_and_killed_after_the_time_limit() {
        assert!(wait_or_kill(Command::new("true").spawn().unwrap(), Duration::from_secs(60)).await);
        assert!(!wait_or_kill(Command::new("sleep").arg("1000").spawn().unwrap(), Duration::ZERO).await);
    }

    #[tokio::test]
    async fn a_process_that_does_not_exit_is_killed_by_its_pidfd() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let process = AsyncPidFd::new(rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()).unwrap();
        assert!(!process.exits_within(Duration::ZERO).await);
        process.kill().unwrap();
        assert!(process.exits_within(Duration::from_secs(60)).await);
        child.wait().unwrap();
        process.kill().unwrap();
    }
}
