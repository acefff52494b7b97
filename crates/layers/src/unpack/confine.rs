//! Confines the unpack process: own namespaces, the target directory as its root, and only the capabilities that owners
//! and attributes of files need.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use carrel_seccomp::SeccompFilter;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Gid, Pid, Resource, Rlimit, Signal, Uid, WaitId, WaitIdOptions};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::report::ReportSender;
use super::sys::{self, CloneSide};
use super::{landlock, report};
use crate::archive::ArchiveLimits;

/// The first host ID of unpack processes: above those of all sandboxes and shims.
const IDS: u32 = 0x6001_0000;
/// The number of IDs in an image.
const COUNT: u32 = 65_536;
/// A temporary mount point that exists on every host.
const ASSEMBLY: &str = "/tmp";

/// Capabilities to set owners, permissions and attributes of files.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// The memory limit: the window of a decompressor, and the chunks.
const MEMORY: u64 = 512 << 20;
/// The limit of open files: the parents of an entry, and a few more.
const FILES: u64 = 256;

/// The two processes after the clone.
pub(super) enum ConfinementSide {
    /// The outer one, which waits.
    Outside(ConfinedChild),
    /// The inner one, which is confined.
    Inside(ConfinedProcess),
}

/// The confined process, as its parent sees it.
pub(super) struct ConfinedChild(OwnedFd);

/// The confined process itself.
pub(super) struct ConfinedProcess {
    /// The directory to unpack into.
    pub(super) root: OwnedFd,
}

/// A step of the confinement that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot confine the unpacker: {what}: {source}")]
pub(super) struct ConfineError {
    what: &'static str,
    source: io::Error,
}

/// Clones the process and confines the child to a directory.
pub(super) fn separate(directory: OwnedFd, limits: ArchiveLimits) -> Result<ConfinementSide, ConfineError> {
    // Exit with the process that started this one.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at("parent"))?;
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = rustix::mount::open_tree(&directory, c"", copy).map_err(at("open_tree"))?;
    drop(directory);
    let (go, signal) = pipe_with(PipeFlags::CLOEXEC).map_err(at("pipe"))?;
    match sys::clone().map_err(at("clone"))? {
        CloneSide::Parent(pid, process) => {
            drop(go);
            map_ids(pid)?;
            show_ids(pid, &mount)?;
            rustix::io::write(&signal, &[1]).map_err(at("write"))?;
            Ok(ConfinementSide::Outside(ConfinedChild(process)))
        }
        CloneSide::Child => {
            drop(signal);
            // Until the IDs are mapped this process is the overflow user. If mapping fails, the parent reports why.
            match rustix::io::retry_on_intr(|| rustix::io::read(&go, &mut [0; 1])) {
                Ok(1) => inside(mount, limits).map(ConfinementSide::Inside),
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

/// Maps the owners of files with an idmapped mount.
fn show_ids(pid: Pid, mount: &OwnedFd) -> Result<(), ConfineError> {
    let path = format!("/proc/{}/ns/user", pid.as_raw_nonzero());
    let ids =
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(at("user namespace"))?;
    sys::show_ids(mount.as_fd(), ids.as_fd()).map_err(at("idmap the mount"))
}

fn inside(mount: OwnedFd, limits: ArchiveLimits) -> Result<ConfinedProcess, ConfineError> {
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).map_err(at("groups"))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(at("group"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(at("user"))?;
    // Set after the change of user, which clears it.
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
    landlock::enforce(&root)
        .map_err(|refused| ConfineError { what: "Landlock ruleset", source: io::Error::other(refused) })?;
    let filtered = SeccompFilter::unpacker().and_then(|filter| filter.install());
    filtered.map_err(|refused| ConfineError { what: "system-call filter", source: io::Error::other(refused) })?;
    Ok(ConfinedProcess { root })
}

/// Makes the directory the root.
fn enter(mount: &OwnedFd) -> Result<(), Errno> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    rustix::mount::move_mount(mount, c"", CWD, ASSEMBLY, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(mount)?;
    sys::pivot_to_working_directory()?;
    // The old root is now mounted over the new one; detach it.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

fn limit(limits: ArchiveLimits) -> Result<(), Errno> {
    for (resource, most) in [
        (Resource::Data, MEMORY),
        (Resource::Nofile, FILES),
        (Resource::Fsize, limits.bytes),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        // One byte: no core is written. Zero would still start a core handler of the host.
        (Resource::Core, 1),
    ] {
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |inherited| inherited.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// Drops all other capabilities for good.
fn keep(kept: CapabilitySet) -> Result<(), Errno> {
    rustix::thread::clear_ambient_capability_set()?;
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // This kernel does not know the capability.
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

// === impl ConfinedChild ===

impl ConfinedChild {
    /// Waits for the child and exits with its status. It drops all its own rights first.
    pub(super) fn wait(self, reporter: ReportSender) -> ExitCode {
        let shed = rustix::thread::set_no_new_privs(true).and_then(|()| keep(CapabilitySet::empty()));
        if let Err(errno) = shed {
            let failed = at("drop privileges")(errno);
            return super::process::failure(reporter, &report::UnpackReport::Failed(failed.to_string()));
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
