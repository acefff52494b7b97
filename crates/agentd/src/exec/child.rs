//! Starting a process, seen from the process: a series of calls, each of which may fail by name.

use std::os::fd::OwnedFd;
use std::ptr;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;

use super::failure::{Failure, Stage};
use super::spawn::{Plan, Standard};
use crate::sys;

/// What the root of a sandbox needs to set up its own files and services, and nothing that reaches pid 1 or the host.
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

/// Becomes the command, or reports the step that failed and ends.
pub(super) fn run(plan: &Plan, standard: &Standard, reporter: &OwnedFd) -> ! {
    let failure = start(plan, standard);
    // Nobody is left to tell if this fails too.
    let _told = rustix::io::write(reporter, &failure.to_bytes());
    sys::exit_now(127)
}

fn start(plan: &Plan, standard: &Standard) -> Failure {
    match prepare(plan, standard) {
        Ok(()) => execute(plan),
        Err(failure) => failure,
    }
}

fn prepare(plan: &Plan, standard: &Standard) -> Result<(), Failure> {
    sys::reset_signals();
    // A session of its own, so that a signal to its process group reaches all it starts, and nobody else.
    step(Stage::Session, sys::begin_session())?;
    match standard {
        Standard::Pipes { stdin, stdout, stderr } => {
            step(Stage::Descriptors, rustix::stdio::dup2_stdin(stdin))?;
            step(Stage::Descriptors, rustix::stdio::dup2_stdout(stdout))?;
            step(Stage::Descriptors, rustix::stdio::dup2_stderr(stderr))?;
        }
        Standard::Terminal(slave) => {
            step(Stage::Terminal, rustix::process::ioctl_tiocsctty(slave))?;
            step(Stage::Terminal, rustix::stdio::dup2_stdin(slave))?;
            step(Stage::Terminal, rustix::stdio::dup2_stdout(slave))?;
            step(Stage::Terminal, rustix::stdio::dup2_stderr(slave))?;
        }
    }
    sys::close_on_exec_above_standard();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if plan.init {
        step(Stage::Limits, give_up_precedence())?;
    }
    for (resource, limit) in &plan.rlimits {
        step(Stage::Limits, rustix::process::setrlimit(*resource, *limit))?;
    }
    if plan.init {
        drop_capabilities(plan.restricted)?;
    }
    if let Some(user) = &plan.user {
        let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        // Groups first: who has given up being root cannot change them.
        step(Stage::Groups, rustix::thread::set_thread_groups(&groups))?;
        step(Stage::Gid, rustix::thread::set_thread_res_gid(gid, gid, gid))?;
        step(Stage::Uid, rustix::thread::set_thread_res_uid(uid, uid, uid))?;
    }
    if plan.init {
        step(Stage::Privileges, rustix::thread::set_no_new_privs(true))?;
    } else {
        // With pid 1 ends everything in its namespace; elsewhere the command asks to go with its agent. Becoming
        // another user takes that back, so it is asked for now.
        let _asked = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    }
    // As the user it runs as: a directory that user may not enter is refused, as it would be for them.
    if let Some(cwd) = &plan.cwd {
        step(Stage::Directory, rustix::process::chdir(cwd.as_c_str()))?;
    }
    Ok(())
}

/// A smaller bounding set: not even the root of the sandbox regains what could reach pid 1.
fn drop_capabilities(restricted: bool) -> Result<(), Failure> {
    let kept = if restricted { CapabilitySet::empty() } else { KEPT };
    for capability in (CapabilitySet::all() - kept).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Not known to this kernel: nothing to drop.
            Ok(()) | Err(Errno::INVAL) => {}
            // Who is not root gains nothing by executing a file, since new privileges are refused below.
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            Err(errno) => return Err(Failure { stage: Stage::Privileges, errno }),
        }
    }
    Ok(())
}

/// Tries each place where the program may be; a place that may not be looked at does not hide a later one.
fn execute(plan: &Plan) -> Failure {
    let argv: Vec<_> = plan.argv.iter().map(|arg| arg.as_ptr()).chain([ptr::null()]).collect();
    let env: Vec<_> = plan.env.iter().map(|entry| entry.as_ptr()).chain([ptr::null()]).collect();
    let mut failure = Failure { stage: Stage::Execute, errno: Errno::NOENT };
    for candidate in &plan.candidates {
        match sys::execve(candidate, &argv, &env) {
            Errno::NOENT | Errno::NOTDIR => {
                // It is there, so what is not there is the interpreter that its first line or header names.
                if rustix::fs::access(candidate.as_c_str(), rustix::fs::Access::EXISTS).is_ok() {
                    return Failure { stage: Stage::Interpreter, errno: Errno::NOENT };
                }
            }
            Errno::ACCESS => failure.errno = Errno::ACCESS,
            errno => return Failure { stage: Stage::Execute, errno },
        }
    }
    failure
}

/// The agent comes before what it starts wherever there is not enough of the processors; what it starts does not.
fn give_up_precedence() -> Result<(), Errno> {
    if rustix::process::getpriority_process(None)? < 0 { rustix::process::setpriority_process(None, 0) } else { Ok(()) }
}

fn step(stage: Stage, outcome: Result<(), Errno>) -> Result<(), Failure> {
    outcome.map_err(|errno| Failure { stage, errno })
}
