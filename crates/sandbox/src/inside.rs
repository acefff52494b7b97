//! Making a sandbox, seen from inside: a series of calls in the new namespaces, each of which may fail by name.

use std::os::fd::{AsFd, OwnedFd};

use carrel_image::GuestPath;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use rustix::process::{Gid, Signal, Uid};
use rustix::thread::CapabilitySet;

use crate::seccomp::{Filter, SeccompError};
use crate::spec::Spec;
use crate::stage::{Stage, StageError};
use crate::sys;

/// Where the new root is put together. Any directory that every host has; what it hides is not needed any more.
const ASSEMBLY: &str = "/tmp";
/// Where its parts are, inside the base: out of reach once the root has changed.
const LOWER: &str = "lower";

/// What the root of a sandbox keeps: enough for its own files, users and services, nothing that reaches the kernel.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Hidden files of `/proc`: they tell of the host, or speak to its kernel.
const MASKED_FILES: [&str; 6] = ["kcore", "keys", "key-users", "timer_list", "sched_debug", "latency_stats"];
/// Hidden directories of `/proc`.
const MASKED_DIRECTORIES: [&str; 2] = ["acpi", "scsi"];
/// Parts of `/proc` that can only be read.
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// All that the new process needs, prepared outside.
pub(crate) struct Plan<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) trees: Vec<(GuestPath, Shown)>,
    pub(crate) devices: Vec<(&'static str, OwnedFd)>,
    pub(crate) layers: Vec<OwnedFd>,
    pub(crate) filter: Filter,
    pub(crate) args: Vec<*const libc::c_char>,
    pub(crate) env: Vec<*const libc::c_char>,
}

/// A tree that waits to be attached.
pub(crate) struct Shown {
    pub(crate) mount: OwnedFd,
    pub(crate) directory: bool,
}

/// Becomes the first program of the sandbox, or reports the step that failed and ends.
pub(crate) fn run(plan: &Plan<'_>, go: &OwnedFd, reporter: &OwnedFd) -> ! {
    let failure = match prepare(plan, go) {
        Ok(()) => StageError { stage: Stage::Execute, errno: sys::execute(&plan.spec.program, &plan.args, &plan.env) },
        Err(failure) => failure,
    };
    // Nobody is left to tell if this fails too.
    let _told = rustix::io::write(reporter, &failure.to_bytes());
    sys::exit_now(127)
}

fn prepare(plan: &Plan<'_>, go: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at;
    // Until the ids are mapped this process is nobody.
    match rustix::io::read(go, &mut [0; 1]).map_err(at(Stage::Start))? {
        1 => {}
        _ => return Err(at(Stage::Start)(Errno::PIPE)),
    }
    sys::unshare_cgroups().map_err(at(Stage::Cgroups))?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).map_err(at(Stage::Identity))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(at(Stage::Identity))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(at(Stage::Identity))?;
    // Whatever the first program is, it does not outlive its supervisor. Asked for after becoming root, which would take
    // it back.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(Stage::Identity))?;
    rustix::process::umask(Mode::empty());

    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(at(Stage::Private))?;
    let root = base(plan)?;
    fill(plan, &root)?;
    devices(plan, &root)?;
    proc(plan, &root)?;

    rustix::process::fchdir(&root).map_err(at(Stage::Pivot))?;
    sys::pivot_to_working_directory().map_err(at(Stage::Pivot))?;
    // The old root now lies over the new one; without it nothing of the host can be reached.
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(at(Stage::Pivot))?;
    rustix::process::chdir("/").map_err(at(Stage::Pivot))?;

    rustix::system::sethostname(plan.spec.hostname.as_bytes()).map_err(at(Stage::Hostname))?;
    sys::raise_loopback().map_err(at(Stage::Loopback))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    descriptors(plan)?;
    capabilities()?;
    plan.filter.install().map_err(|refused| match refused {
        SeccompError::Install(errno) => at(Stage::Filter)(errno),
        _ => at(Stage::Filter)(Errno::INVAL),
    })
}

/// The file system everything is put into: as large as the sandbox may write, or layers below as much.
fn base(plan: &Plan<'_>) -> Result<OwnedFd, StageError> {
    let at = StageError::at(Stage::Base);
    let memory = mount_new("tmpfs", &[("size", &plan.spec.disk.to_string()), ("mode", "755")], nodev()).map_err(&at)?;
    attach(&memory, CWD, ASSEMBLY).map_err(&at)?;
    if plan.layers.is_empty() {
        return Ok(memory);
    }
    let at = StageError::at(Stage::Layers);
    let mut lower = Vec::new();
    for (number, layer) in plan.layers.iter().enumerate() {
        let name = format!("{LOWER}{number}");
        let place = directory(&memory, name.as_ref(), 0o755)?;
        attach_at(layer, &place).map_err(&at)?;
        lower.push(format!("{ASSEMBLY}/{name}"));
    }
    for name in ["upper", "work", "root"] {
        directory(&memory, name.as_ref(), 0o755)?;
    }
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(&at)?;
    fsconfig_set_string(overlay.as_fd(), "lowerdir", lower.join(":")).map_err(&at)?;
    fsconfig_set_string(overlay.as_fd(), "upperdir", format!("{ASSEMBLY}/upper")).map_err(&at)?;
    fsconfig_set_string(overlay.as_fd(), "workdir", format!("{ASSEMBLY}/work")).map_err(&at)?;
    fsconfig_set_flag(overlay.as_fd(), "userxattr").map_err(&at)?;
    fsconfig_create(overlay.as_fd()).map_err(&at)?;
    let root = fsmount(overlay.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, nodev()).map_err(&at)?;
    attach(&root, CWD, &format!("{ASSEMBLY}/root")).map_err(&at)?;
    Ok(root)
}

/// What the image and the operator put into the root.
fn fill(plan: &Plan<'_>, root: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at;
    for made in &plan.spec.root.directories {
        let place = directory(root, made.path.as_path(), made.mode)?;
        let owner = (Uid::from_raw(made.owner), Gid::from_raw(made.owner));
        rustix::fs::chownat(&place, c"", Some(owner.0), Some(owner.1), rustix::fs::AtFlags::EMPTY_PATH)
            .map_err(at(Stage::Directory))?;
    }
    for (name, mode) in [("tmp", 0o1777), ("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("workspace", 0o755)] {
        directory(root, name.as_ref(), mode)?;
    }
    for link in &plan.spec.root.links {
        let (parent, name) = parent(root, link.path.as_path())?;
        match rustix::fs::symlinkat(&link.target, &parent, &name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(at(Stage::Link)(errno)),
        }
    }
    for (target, shown) in &plan.trees {
        let place = if shown.directory {
            directory(root, target.as_path(), 0o755)?
        } else {
            file(root, target.as_path(), &[], 0o644)?
        };
        attach_at(&shown.mount, &place).map_err(at(Stage::Tree))?;
    }
    for made in &plan.spec.root.files {
        file(root, made.path.as_path(), &made.content, made.mode)?;
    }
    Ok(())
}

/// A `/dev` of its own, with six devices and terminals.
fn devices(plan: &Plan<'_>, root: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at(Stage::Devices);
    let nosuid = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let dev = mount_new("tmpfs", &[("size", "65536"), ("mode", "755")], nosuid).map_err(&at)?;
    attach_at(&dev, &directory(root, "dev".as_ref(), 0o755)?).map_err(&at)?;
    for (name, device) in &plan.devices {
        attach_at(device, &file(&dev, name.as_ref(), &[], 0o666)?).map_err(&at)?;
    }
    let terminals = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")];
    let pts = mount_new("devpts", &terminals, nosuid).map_err(&at)?;
    attach_at(&pts, &directory(&dev, "pts".as_ref(), 0o755)?).map_err(&at)?;
    let shm = mount_new("tmpfs", &[("size", &plan.spec.disk.to_string()), ("mode", "1777")], nosuid | nodev())
        .map_err(&at)?;
    attach_at(&shm, &directory(&dev, "shm".as_ref(), 0o1777)?).map_err(&at)?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        rustix::fs::symlinkat(target, &dev, name).map_err(&at)?;
    }
    Ok(())
}

/// A `/proc` of its own, without what tells of the host.
fn proc(plan: &Plan<'_>, root: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at;
    let flags = nodev() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = mount_new("proc", &[], flags).map_err(at(Stage::Proc))?;
    attach_at(&proc, &directory(root, "proc".as_ref(), 0o555)?).map_err(at(Stage::Proc))?;
    let mask = StageError::at(Stage::Mask);
    let null = plan.devices.iter().find(|(name, _)| *name == "null").map(|(_, null)| null);
    for name in MASKED_FILES {
        match (open_path(&proc, name), null) {
            (Ok(place), Some(null)) => attach_at(&copy(null).map_err(&mask)?, &place).map_err(&mask)?,
            (Err(Errno::NOENT), _) => {}
            (Err(errno), _) => return Err(mask(errno)),
            (Ok(_), None) => return Err(mask(Errno::NODEV)),
        }
    }
    for name in MASKED_DIRECTORIES {
        match open_path(&proc, name) {
            Ok(place) => {
                let read_only = flags | MountAttrFlags::MOUNT_ATTR_RDONLY;
                let empty = mount_new("tmpfs", &[("size", "4096"), ("mode", "555")], read_only).map_err(&mask)?;
                attach_at(&empty, &place).map_err(&mask)?;
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(mask(errno)),
        }
    }
    for name in READ_ONLY {
        match open_path(&proc, name) {
            Ok(place) => {
                let shown = copy(&place).map_err(&mask)?;
                sys::set_mount(shown.as_fd(), sys::SHOWN | libc::MOUNT_ATTR_NOEXEC, None).map_err(&mask)?;
                attach_at(&shown, &place).map_err(&mask)?;
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(mask(errno)),
        }
    }
    Ok(())
}

/// The channel on 0 and 1, nothing on 2, and nothing else that survives the next program.
fn descriptors(plan: &Plan<'_>) -> Result<(), StageError> {
    let at = StageError::at(Stage::Descriptors);
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(&at)?;
    rustix::stdio::dup2_stdin(&plan.spec.channel).map_err(&at)?;
    rustix::stdio::dup2_stdout(&plan.spec.channel).map_err(&at)?;
    rustix::stdio::dup2_stderr(&null).map_err(&at)?;
    sys::close_on_exec_above_standard();
    Ok(())
}

fn capabilities() -> Result<(), StageError> {
    for capability in (CapabilitySet::all() - KEPT).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Not known to this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(StageError::at(Stage::Capabilities)(errno)),
        }
    }
    Ok(())
}

fn nodev() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV
}

/// A new file system, attached nowhere.
fn mount_new(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(context.as_fd(), *key)?;
        } else {
            fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// A copy of what is at an open place, attached nowhere.
fn copy(place: &OwnedFd) -> Result<OwnedFd, Errno> {
    use rustix::mount::OpenTreeFlags as F;
    rustix::mount::open_tree(place, c"", F::OPEN_TREE_CLONE | F::OPEN_TREE_CLOEXEC | F::AT_EMPTY_PATH | F::AT_RECURSIVE)
}

fn attach(mount: &OwnedFd, directory: impl AsFd, path: &str) -> Result<(), Errno> {
    rustix::mount::move_mount(mount, c"", directory, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn attach_at(mount: &OwnedFd, place: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", place, c"", flags)
}

/// Opens one name without following anything.
fn open_path(parent: &OwnedFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(parent, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// A directory of the new root, made with its parents. An image may have put a link or a file in its place: then that
/// goes, from the layer of this sandbox only.
fn directory(root: &OwnedFd, path: &std::path::Path, mode: u32) -> Result<OwnedFd, StageError> {
    let at = StageError::at(Stage::Directory);
    let mut place = root.try_clone().map_err(|_| at(Errno::MFILE))?;
    let last = path.components().count();
    for (number, part) in path.components().enumerate() {
        let name = part.as_os_str();
        let mode = Mode::from_raw_mode(if number + 1 == last { mode } else { 0o755 });
        place = match rustix::fs::mkdirat(&place, name, mode) {
            Ok(()) => open_path(&place, name).map_err(&at)?,
            Err(Errno::EXIST) => match open_directory(&place, name) {
                Ok(there) => there,
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    rustix::fs::unlinkat(&place, name, rustix::fs::AtFlags::empty()).map_err(&at)?;
                    rustix::fs::mkdirat(&place, name, mode).map_err(&at)?;
                    open_path(&place, name).map_err(&at)?
                }
                Err(errno) => return Err(at(errno)),
            },
            Err(errno) => return Err(at(errno)),
        };
    }
    Ok(place)
}

fn open_directory(parent: &OwnedFd, name: &std::ffi::OsStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
}

/// The directory that a path lies in, and its name there.
fn parent(root: &OwnedFd, path: &std::path::Path) -> Result<(OwnedFd, std::ffi::OsString), StageError> {
    let name = path.file_name().ok_or_else(|| StageError::at(Stage::Directory)(Errno::INVAL))?;
    let above = path.parent().unwrap_or_else(|| std::path::Path::new(""));
    Ok((directory(root, above, 0o755)?, name.to_owned()))
}

/// A file of the new root; whatever was in its place goes, from the layer of this sandbox only.
fn file(root: &OwnedFd, path: &std::path::Path, content: &[u8], mode: u32) -> Result<OwnedFd, StageError> {
    let at = StageError::at(Stage::File);
    let (parent, name) = parent(root, path)?;
    match rustix::fs::unlinkat(&parent, &name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(at(errno)),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&parent, &name, flags, Mode::from_raw_mode(mode)).map_err(&at)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest).map_err(&at)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    open_path(&parent, &name).map_err(&at)
}
