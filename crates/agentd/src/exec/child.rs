//! The child side of a spawn: a series of system calls, each with a name for its failure.

use std::os::fd::OwnedFd;
use std::ptr;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;

use super::failure::{FailedSpawnStage, SpawnStage};
use super::spawn::{ChildStdio, SpawnPlan};
use crate::sys;

/// The capabilities that root needs in a sandbox for its own files and services; none affects pid 1 or the host.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Executes the command, or reports the failed stage and exits.
pub(super) fn run(plan: &SpawnPlan, standard: &ChildStdio, reporter: &OwnedFd) -> ! {
    let failure = start(plan, standard);
    // If this fails too, there is no one to report to.
    let _written = rustix::io::write(reporter, &failure.to_bytes());
    sys::exit_now(127)
}

fn start(plan: &SpawnPlan, standard: &ChildStdio) -> FailedSpawnStage {
    match prepare(plan, standard) {
        Ok(()) => execute(plan),
        Err(failure) => failure,
    }
}

fn prepare(plan: &SpawnPlan, standard: &ChildStdio) -> Result<(), FailedSpawnStage> {
    sys::reset_signals();
    // A new session, so that a signal to the process group reaches all its processes, and no others.
    step(SpawnStage::Session, sys::begin_session())?;
    match standard {
        ChildStdio::Pipes { stdin, stdout, stderr } => {
            step(SpawnStage::Descriptors, rustix::stdio::dup2_stdin(stdin))?;
            step(SpawnStage::Descriptors, rustix::stdio::dup2_stdout(stdout))?;
            step(SpawnStage::Descriptors, rustix::stdio::dup2_stderr(stderr))?;
        }
        ChildStdio::Terminal(slave) => {
            step(SpawnStage::Terminal, rustix::process::ioctl_tiocsctty(slave))?;
            step(SpawnStage::Terminal, rustix::stdio::dup2_stdin(slave))?;
            step(SpawnStage::Terminal, rustix::stdio::dup2_stdout(slave))?;
            step(SpawnStage::Terminal, rustix::stdio::dup2_stderr(slave))?;
        }
    }
    sys::close_on_exec_above_standard();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if plan.init {
        step(SpawnStage::Limits, reset_priority())?;
    }
    for (resource, limit) in &plan.rlimits {
        step(SpawnStage::Limits, rustix::process::setrlimit(*resource, *limit))?;
    }
    if plan.init {
        drop_capabilities(plan.restricted)?;
    }
    if let Some(user) = &plan.user {
        let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        // Groups first: only root can change them.
        step(SpawnStage::Groups, rustix::thread::set_thread_groups(&groups))?;
        step(SpawnStage::Gid, rustix::thread::set_thread_res_gid(gid, gid, gid))?;
        step(SpawnStage::Uid, rustix::thread::set_thread_res_uid(uid, uid, uid))?;
    }
    if plan.init {
        step(SpawnStage::Privileges, rustix::thread::set_no_new_privs(true))?;
    } else {
        // All processes die with pid 1 of their namespace; elsewhere the command requests to die with its agent.
        // Changing the user resets this, so it is set now.
        let _asked = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    }
    // As the target user: a directory that the user cannot enter is an error.
    if let Some(cwd) = &plan.cwd {
        step(SpawnStage::Directory, rustix::process::chdir(cwd.as_c_str()))?;
    }
    Ok(())
}

/// Reduces the bounding set: not even root in the sandbox regains what could affect pid 1.
fn drop_capabilities(restricted: bool) -> Result<(), FailedSpawnStage> {
    let kept = if restricted { CapabilitySet::empty() } else { KEPT };
    for capability in (CapabilitySet::all() - kept).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Unknown to this kernel: nothing to drop.
            Ok(()) | Err(Errno::INVAL) => {}
            // Others than root gain nothing by exec, since no_new_privs is set below.
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            Err(errno) => return Err(FailedSpawnStage { stage: SpawnStage::Privileges, errno }),
        }
    }
    Ok(())
}

/// Tries each candidate path; an inaccessible one does not hide a later one.
fn execute(plan: &SpawnPlan) -> FailedSpawnStage {
    let argv: Vec<_> = plan.argv.iter().map(|arg| arg.as_ptr()).chain([ptr::null()]).collect();
    let env: Vec<_> = plan.env.iter().map(|entry| entry.as_ptr()).chain([ptr::null()]).collect();
    let mut failure = FailedSpawnStage { stage: SpawnStage::Execute, errno: Errno::NOENT };
    for candidate in &plan.candidates {
        match sys::execve(candidate, &argv, &env) {
            Errno::NOENT | Errno::NOTDIR => {
                // The file exists, so the missing one is the interpreter in its shebang or ELF header.
                if rustix::fs::access(candidate.as_c_str(), rustix::fs::Access::EXISTS).is_ok() {
                    return FailedSpawnStage { stage: SpawnStage::Interpreter, errno: Errno::NOENT };
                }
            }
            Errno::ACCESS => failure.errno = Errno::ACCESS,
            errno => return FailedSpawnStage { stage: SpawnStage::Execute, errno },
        }
    }
    failure
}

/// Resets the raised scheduling priority of the agent.
fn reset_priority() -> Result<(), Errno> {
    if rustix::process::getpriority_process(None)? < 0 { rustix::process::setpriority_process(None, 0) } else { Ok(()) }
}

fn step(stage: SpawnStage, outcome: Result<(), Errno>) -> Result<(), FailedSpawnStage> {
    outcome.map_err(|errno| FailedSpawnStage { stage, errno })
}
