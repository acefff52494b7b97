//! Processes that end: waited for without a thread for each.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process that is to end, by a handle that means no other.
#[derive(Debug)]
pub(crate) struct AsyncPidFd(AsyncFd<OwnedFd>);

// === impl AsyncPidFd ===

impl AsyncPidFd {
    #[allow(
        deprecated,
        reason = "what replaces it is unsafe, for types that name another descriptor each time: this one does not"
    )]
    pub(crate) fn new(handle: OwnedFd) -> std::io::Result<Self> {
        AsyncFd::with_interest(handle, Interest::READABLE).map(Self)
    }

    /// Waits until it has ended.
    pub(crate) async fn exited(&self) {
        // It cannot fail while the runtime is there, and stays ready once it is.
        let _ended = self.0.readable().await;
    }

    /// Whether it has ended within some time.
    pub(crate) async fn exits_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.exited()).await.is_ok()
    }

    pub(crate) fn kill(&self) -> Result<(), Errno> {
        match rustix::process::pidfd_send_signal(self.0.get_ref().as_fd(), Signal::KILL) {
            // It has ended.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Sees to it that nothing is left of a child of this process when it has ended.
pub(crate) fn reap_in_background(mut child: Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    match handle.and_then(|handle| AsyncPidFd::new(handle).ok()) {
        Some(process) => drop(tokio::spawn(async move {
            process.exited().await;
            let _status = child.wait();
        })),
        // Without descriptors there are threads.
        None => drop(tokio::task::spawn_blocking(move || child.wait())),
    }
}

/// Waits for a child of this process, and kills it after some time. Says whether it ended by itself.
pub(crate) async fn wait_or_kill(mut child: Child, limit: Duration) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    let in_time = match handle.and_then(|handle| AsyncPidFd::new(handle).ok()) {
        Some(process) => process.exits_within(limit).await,
        None => false,
    };
    let reaped = tokio::task::spawn_blocking(move || {
        if !in_time {
            // One that has ended meanwhile is not killed.
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
    async fn a_child_that_ended_is_nobody() {
        let child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let other = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        reap_in_background(child);
        assert!(AsyncPidFd::new(other).unwrap().exits_within(Duration::from_secs(60)).await);
        // It ended; whether it was waited for is seen when its number is free.
        while rustix::process::test_kill_process(pid).is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_child_is_waited_for_and_killed_when_its_time_is_up() {
        assert!(wait_or_kill(Command::new("true").spawn().unwrap(), Duration::from_secs(60)).await);
        assert!(!wait_or_kill(Command::new("sleep").arg("1000").spawn().unwrap(), Duration::ZERO).await);
    }

    #[tokio::test]
    async fn one_that_does_not_end_is_killed_by_its_handle() {
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
