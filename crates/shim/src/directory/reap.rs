//! Reaps what a dead sandbox left outside of its directory: its cgroup, and a shim that released its lock but still
//! runs.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use carrel_sandbox::cgroup::{Cgroup, CgroupError, HostCgroups};
use carrel_shim_client::{RecordError, SandboxRecord, layout};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;

use super::cgroups;
use super::sweep::SweepError;

/// How long a shim that released its lock may take to exit by itself.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the kernel may take to kill a process.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Terminates and removes what the incarnation of a directory left on this host. Returns whether there was something.
pub(super) fn reap(directory: &OwnedFd) -> Result<bool, SweepError> {
    // What a copied record names is alive, and belongs to the original.
    if matches!(SandboxRecord::read(directory), Err(RecordError::Copied)) {
        return Ok(false);
    }
    let supervisor = kill_shim(directory)?;
    Ok(reap_cgroup(directory)? || supervisor)
}

/// Kills a shim that released its lock but still runs: with its open descriptors it could modify what others consider
/// abandoned. Returns whether it was killed.
fn kill_shim(directory: &OwnedFd) -> Result<bool, SweepError> {
    let Ok(record) = SandboxRecord::read(directory) else { return Ok(false) };
    let (owner, ours) = (owner(directory)?, rustix::process::geteuid().as_raw());
    // A record that does not match its directory was not written for it.
    if (owner != ours && owner != record.supervisor_user) || record.shim_pid == std::process::id() {
        return Ok(false);
    }
    let Some(shim) = record.shim_handle() else { return Ok(false) };
    if has_ended(&shim, EXIT_TIMEOUT)? {
        return Ok(false);
    }
    match rustix::process::pidfd_send_signal(&shim, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => return Err(io::Error::from(errno).into()),
    }
    if has_ended(&shim, KILL_TIMEOUT)? { Ok(true) } else { Err(SweepError::Stuck(record.shim_pid)) }
}

/// Waits for the exit of a process, with a timeout.
fn has_ended(process: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let until = Instant::now() + timeout;
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

fn reap_cgroup(directory: &OwnedFd) -> Result<bool, SweepError> {
    let Ok((incarnation, author)) = layout::read_incarnation(directory) else {
        // It died before it had created anything.
        return Ok(false);
    };
    let ours = rustix::process::geteuid().as_raw();
    let owner = owner(directory).unwrap_or(u32::MAX);
    let named_by = if owner == ours { author } else { owner };
    let host = HostCgroups::detect()?;
    match Cgroup::adopt(&host, &incarnation) {
        // A compromised shim could name the cgroup of another sandbox.
        Ok(cgroup) if named_by != ours && cgroup.owner() != Some(named_by) => Ok(false),
        Ok(cgroup) => match cgroups::end(&host, &incarnation, cgroup) {
            Ok(_) => Ok(true),
            Err(error) => match cgroups::unkillable(&host, &incarnation, &error) {
                Some(unkillable) => Err(unkillable.into()),
                None => Err(error.into()),
            },
        },
        // An invalid name was never the name of a cgroup.
        Err(CgroupError::NotFound { .. } | CgroupError::Name(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
