//! Waits for states of a group: by notification where the kernel has one, and always with a deadline.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::directory::CgroupDirectory;
use super::error::CgroupError;

/// How long the kernel may take: it needs microseconds, unless a process hangs in a device or a network file system.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time within which the kernel notifies of any change of a v2 group.
const ANNOUNCED: Duration = Duration::from_millis(20);
/// How many pidfds are held at one time.
pub(super) const BATCH: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    end: Instant,
    pause: Duration,
}

// === impl Deadline ===

impl Deadline {
    pub(super) fn start() -> Self {
        Self::after(TIMEOUT)
    }

    fn after(time: Duration) -> Self {
        Self { end: Instant::now() + time, pause: Duration::from_micros(20) }
    }

    /// An earlier deadline within this one.
    pub(super) fn at_most(&self, time: Duration) -> Self {
        let sooner = Self::after(time);
        Self { end: sooner.end.min(self.end), ..sooner }
    }

    pub(super) fn passed(&self) -> bool {
        self.left().is_zero()
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Waits briefly before polling again: v1 has no notifications.
    pub(super) fn pause(&mut self) {
        std::thread::sleep(self.pause.min(self.left()));
        self.pause = (self.pause * 2).min(Duration::from_millis(5));
    }

    /// The error of a missed deadline.
    pub(super) fn missed(directory: &CgroupDirectory, file: &str, expected: &str) -> CgroupError {
        CgroupError::Late { file: directory.join(file), expected: expected.to_owned(), seconds: TIMEOUT.as_secs() }
    }

    /// Waits until the descriptor is ready; returns false at the deadline.
    fn poll(self, fd: impl AsFd, flags: PollFlags) -> Result<bool, Errno> {
        loop {
            let left = self.left();
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match rustix::event::poll(&mut [PollFd::new(&fd, flags)], Some(&timeout)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Waits until `cgroup.events` of a v2 group has `key value`. The kernel notifies of a change at most once in ten
    /// milliseconds: until then, the file is also polled, at growing intervals.
    pub(super) fn until_event(&self, directory: &CgroupDirectory, key: &str, value: u64) -> Result<(), CgroupError> {
        const EVENTS: &str = "cgroup.events";
        let failed = |errno| CgroupError::Wait { file: directory.join(EVENTS), errno };
        let events = File::from(directory.open_file(EVENTS, OFlags::RDONLY).map_err(failed)?);
        let mut buffer = [0; 256];
        let mut interval = Duration::from_micros(20);
        loop {
            // Reading also arms the next notification.
            let read = events.read_at(&mut buffer, 0);
            let read = read.map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            let text = String::from_utf8_lossy(buffer.get(..read).unwrap_or_default());
            if keyed(&text, key) == Some(value) {
                return Ok(());
            }
            let turn = if interval > ANNOUNCED { *self } else { self.at_most(interval) };
            interval = (interval * 2).min(ANNOUNCED * 2);
            if !turn.poll(&events, PollFlags::PRI).map_err(failed)? && self.passed() {
                return Err(Self::missed(directory, EVENTS, &format!("{key} {value}")));
            }
        }
    }

    /// Waits until the currently listed processes have exited; returns false at the deadline.
    pub(super) fn until_ended(&self, directory: &CgroupDirectory) -> Result<bool, CgroupError> {
        let failed = |errno| CgroupError::Wait { file: directory.join(PROCS), errno };
        let mut turn = *self;
        loop {
            let pids = processes(directory)?;
            if pids.is_empty() {
                return Ok(true);
            }
            let some = pids.get(..BATCH).unwrap_or(&pids);
            match open_listed_pidfds(directory, some) {
                Ok(held) => {
                    for (_, pidfd) in held {
                        if !self.poll(&pidfd, PollFlags::IN).map_err(failed)? {
                            return Ok(false);
                        }
                    }
                }
                // A shim that dropped its privileges cannot open pidfds: it has to poll.
                Err(CgroupError::Wait { errno: Errno::PERM, .. }) => turn.pause(),
                Err(error) => return Err(error),
            }
            if self.passed() {
                return Ok(false);
            }
        }
    }
}

/// The file that lists the processes of a group, and takes new ones.
pub(super) const PROCS: &str = "cgroup.procs";

/// The listed processes of a group.
pub(super) fn processes(directory: &CgroupDirectory) -> Result<Vec<Pid>, CgroupError> {
    let text = directory.read(PROCS).map_err(|errno| CgroupError::Read { file: directory.join(PROCS), errno })?;
    // A process of another pid namespace is listed as 0.
    Ok(text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect())
}

/// Opens pidfds and drops those of processes that are no longer listed, so that a reused pid is never taken for a process of
/// the group.
pub(super) fn open_listed_pidfds(
    directory: &CgroupDirectory,
    pids: &[Pid],
) -> Result<Vec<(Pid, OwnedFd)>, CgroupError> {
    let mut held = Vec::with_capacity(pids.len());
    for pid in pids {
        match rustix::process::pidfd_open(*pid, PidfdFlags::empty()) {
            Ok(pidfd) => held.push((*pid, pidfd)),
            Err(Errno::SRCH) => {}
            Err(errno) => return Err(CgroupError::Wait { file: directory.join(PROCS), errno }),
        }
    }
    let still = processes(directory)?;
    held.retain(|(pid, _)| still.contains(pid));
    Ok(held)
}

/// The value of `key` in a file of lines `key value`.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == key).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_full_name() {
        let text = "oom 4\noom_kill 3\noom_group_kill x\n";
        assert_eq!(keyed(text, "oom_kill"), Some(3));
        assert_eq!(keyed(text, "oom"), Some(4));
        assert_eq!(keyed(text, "oom_group_kill"), None);
        assert_eq!(keyed(text, "kill"), None);
        assert_eq!(keyed("", "oom"), None);
    }
}
