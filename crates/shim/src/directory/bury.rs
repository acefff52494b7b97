//! What a dead sandbox left on this host besides its directory: its group, and a supervisor that only seems dead.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use carrel_sandbox::cgroup::{Cgroup, CgroupError, Host};
use carrel_shim_client::{RecordError, SandboxRecord, layout};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;

use super::groups;
use super::sweep::Swept;

/// How long a supervisor that let go of its lock may take to end by itself: it has its last words to say yet.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long the kernel may take to end one.
const DEATH: Duration = Duration::from_secs(5);

/// Ends and removes what the incarnation of a directory left on this host. Returns whether there was something.
pub(super) fn bury(directory: &OwnedFd) -> Result<bool, Swept> {
    // What a copy names is alive, and belongs to the original.
    if matches!(SandboxRecord::read(directory), Err(RecordError::Copied)) {
        return Ok(false);
    }
    let supervisor = dismiss(directory)?;
    Ok(bury_group(directory)? || supervisor)
}

/// Ends a supervisor that let go of its lock and lives on: with what it has open, it could go on with what others take for
/// left. Returns whether it had to be ended.
fn dismiss(directory: &OwnedFd) -> Result<bool, Swept> {
    let Ok(record) = SandboxRecord::read(directory) else { return Ok(false) };
    let (owner, ours) = (owner(directory)?, rustix::process::geteuid().as_raw());
    // A record that does not fit its directory was not written for it.
    if (owner != ours && owner != record.supervisor_user) || record.shim_pid == std::process::id() {
        return Ok(false);
    }
    let Some(shim) = record.shim_handle() else { return Ok(false) };
    if has_ended(&shim, LAST_WORDS)? {
        return Ok(false);
    }
    match rustix::process::pidfd_send_signal(&shim, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => return Err(io::Error::from(errno).into()),
    }
    if has_ended(&shim, DEATH)? { Ok(true) } else { Err(Swept::Stuck(record.shim_pid)) }
}

/// Waits for the end of a process, for a while.
fn has_ended(process: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn owner(directory: &OwnedFd) -> io::Result<u32> {
    Ok(rustix::fs::fstat(directory)?.st_uid)
}

fn bury_group(directory: &OwnedFd) -> Result<bool, Swept> {
    let Ok((incarnation, author)) = layout::read_incarnation(directory) else {
        // It died before it had made anything.
        return Ok(false);
    };
    let ours = rustix::process::geteuid().as_raw();
    let owner = owner(directory).unwrap_or(u32::MAX);
    let named_by = if owner == ours { author } else { owner };
    let host = Host::detect()?;
    match Cgroup::adopt(&host, &incarnation) {
        // A supervisor that was taken over could name the group of another.
        Ok(cgroup) if named_by != ours && cgroup.owner() != Some(named_by) => Ok(false),
        Ok(cgroup) => match groups::end(&host, &incarnation, cgroup) {
            Ok(_) => Ok(true),
            Err(error) => match groups::unkillable(&host, &incarnation, &error) {
                Some(unkillable) => Err(unkillable.into()),
                None => Err(error.into()),
            },
        },
        // What is no name of a group was never the name of one.
        Err(CgroupError::NotFound { .. } | CgroupError::Name(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
