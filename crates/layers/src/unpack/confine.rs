//! How the process that unpacks comes to be nobody: in namespaces of its own, with the directory as its root, and with
//! the few rights that owners and attributes of files take.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Gid, Pid, Resource, Rlimit, Signal, Uid, WaitId, WaitIdOptions};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::report::Reporter;
use super::sys::{self, Cloned};
use super::{filter, report, ruleset};
use crate::archive::Limits;

/// The ids of all unpackers: above those of every sandbox and of what supervises them.
const IDS: u32 = 0x6001_0000;
/// How many ids an image has.
const COUNT: u32 = 65_536;
/// Where the directory is attached for a moment. Any directory that every host has.
const ASSEMBLY: &str = "/tmp";

/// What it takes to give files their owners, permissions and attributes.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// The memory that it may have: the window of a decompressor, and what is on its way.
const MEMORY: u64 = 512 << 20;
/// The files that it may have open: the directories above an entry, and a few.
const FILES: u64 = 256;

/// Which of the two this is.
pub(super) enum Side {
    /// The one that waits.
    Outside(Waiting),
    /// The one that is confined.
    Inside(Confined),
}

/// The process that is confined, seen from outside.
pub(super) struct Waiting(OwnedFd);

/// The process that is confined, seen from inside.
pub(super) struct Confined {
    /// The directory to unpack into, and all there is.
    pub(super) root: OwnedFd,
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot confine the unpacker: {what}: {source}")]
pub(super) struct ConfineError {
    what: &'static str,
    source: io::Error,
}

/// Makes a second process, and confines it to a directory.
pub(super) fn separate(directory: OwnedFd, limits: Limits) -> Result<Side, ConfineError> {
    // Whoever started us is who the work is for.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at("parent"))?;
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = rustix::mount::open_tree(&directory, c"", copy).map_err(at("open_tree"))?;
    drop(directory);
    let (go, signal) = pipe_with(PipeFlags::CLOEXEC).map_err(at("pipe"))?;
    match sys::clone().map_err(at("clone"))? {
        Cloned::Parent(pid, process) => {
            drop(go);
            map_ids(pid)?;
            show_ids(pid, &mount)?;
            rustix::io::write(&signal, &[1]).map_err(at("write"))?;
            Ok(Side::Outside(Waiting(process)))
        }
        Cloned::Child => {
            drop(signal);
            // Until the ids are mapped this process is nobody. Where they are not, the other says why.
            match rustix::io::retry_on_intr(|| rustix::io::read(&go, &mut [0; 1])) {
                Ok(1) => inside(mount, limits).map(Side::Inside),
                _ => std::process::exit(1),
            }
        }
    }
}

fn map_ids(pid: Pid) -> Result<(), ConfineError> {
    for file in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{file}", pid.as_raw_nonzero());
        std::fs::write(path, format!("0 {IDS} {COUNT}\n"))
            .map_err(|source| ConfineError { what: "map ids", source })?;
    }
    Ok(())
}

/// Lets files have the owners that an image says, although nobody there has such an id.
fn show_ids(pid: Pid, mount: &OwnedFd) -> Result<(), ConfineError> {
    let path = format!("/proc/{}/ns/user", pid.as_raw_nonzero());
    let ids =
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(at("user namespace"))?;
    sys::show_ids(mount.as_fd(), ids.as_fd()).map_err(at("show the directory with other ids"))
}

fn inside(mount: OwnedFd, limits: Limits) -> Result<Confined, ConfineError> {
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).map_err(at("groups"))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(at("group"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(at("user"))?;
    // Asked for after becoming another, which would take it back.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at("parent"))?;
    rustix::process::umask(Mode::empty());
    enter(&mount).map_err(at("root"))?;
    drop(mount);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, c"/", flags, Mode::empty()).map_err(at("root"))?;
    limit(limits).map_err(at("limits"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at("become opaque"))?;
    rustix::thread::set_no_new_privs(true).map_err(at("no_new_privs"))?;
    keep(KEPT).map_err(at("capabilities"))?;
    ruleset::enforce(&root)
        .map_err(|refused| ConfineError { what: "Landlock ruleset", source: io::Error::other(refused) })?;
    filter::install().map_err(at("system-call filter"))?;
    Ok(Confined { root })
}

/// Makes the directory the root of all that can be named.
fn enter(mount: &OwnedFd) -> Result<(), Errno> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    rustix::mount::move_mount(mount, c"", CWD, ASSEMBLY, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(mount)?;
    sys::pivot_to_working_directory()?;
    // The old root now lies over the new one; without it nothing of the host can be reached.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

fn limit(limits: Limits) -> Result<(), Errno> {
    for (resource, most) in [
        (Resource::Data, MEMORY),
        (Resource::Nofile, FILES),
        (Resource::Fsize, limits.bytes),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        // Of one byte no core is written, and unlike with none at all no handler of the host's is started for one.
        (Resource::Core, 1),
    ] {
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |inherited| inherited.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// Gives up all capabilities but some, for good.
fn keep(kept: CapabilitySet) -> Result<(), Errno> {
    rustix::thread::clear_ambient_capability_set()?;
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Not known to this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

fn at(what: &'static str) -> impl Fn(Errno) -> ConfineError {
    move |errno| ConfineError { what, source: errno.into() }
}

// === impl Waiting ===

impl Waiting {
    /// Waits for the end of the other, and ends in the same way. It needs nothing for that, and has nothing.
    pub(super) fn wait(self, reporter: Reporter) -> ExitCode {
        let shed = rustix::thread::set_no_new_privs(true).and_then(|()| keep(CapabilitySet::empty()));
        if let Err(errno) = shed {
            let failed = at("give up rights")(errno);
            return super::program::failure(reporter, &report::Report::Failed(failed.to_string()));
        }
        drop(reporter);
        let ended =
            rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(self.0.as_fd()), WaitIdOptions::EXITED));
        let status = ended.ok().flatten();
        let code = status.as_ref().and_then(|status| status.exit_status());
        let signal = status.as_ref().and_then(|status| status.terminating_signal());
        let code = code.or(signal.map(|signal| 128 + signal)).and_then(|code| u8::try_from(code).ok());
        code.map_or(ExitCode::FAILURE, ExitCode::from)
    }
}
