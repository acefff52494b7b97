//! A file system of its own in a sparse file. Its loop device is cleared by the kernel when the last mount of it
//! ends, so that whoever is killed leaves nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::kept::{DiskError, system};
use crate::{mount, sys};

/// How long those who had a disk and were killed may take to let go of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often another process may be faster to take a loop device.
const ATTEMPTS: u32 = 64;

/// Makes a file of some size with a file system in it.
pub(super) fn create(path: &Path, bytes: u64) -> Result<(), DiskError> {
    let failed = |what| move |error| DiskError::System(what, error);
    let file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(failed("make the image"))?;
    file.set_len(bytes).map_err(failed("make the image"))?;
    // What can be put off until it is needed is put off; nothing is reserved for a root that does not use it.
    let options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0";
    let mut mkfs = Command::new(find("mkfs.ext4").ok_or(DiskError::NoMkfs)?);
    mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-E", options]).arg(path).stdin(Stdio::null());
    let output = mkfs.output().map_err(failed("run mkfs.ext4"))?;
    if !output.status.success() {
        return Err(DiskError::Mkfs(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    file.sync_all().map_err(failed("make the image"))
}

/// Mounts it, attached nowhere.
pub(super) fn mount(path: &Path) -> Result<OwnedFd, DiskError> {
    // By its path, which is what an administrator then reads of the loop device.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let image = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(system("open the image"))?;
    take(path, &image)?;
    let (device, _loop) = attach(&image)?;
    mount::new("ext4", &[("source", &device)], mount::nodev()).map_err(system("mount the image"))
}

/// Locks the open image. The loop device holds what is open, and so the lock, for as long as the file system is mounted
/// anywhere: two mounts of one image would destroy it.
fn take(path: &Path, image: &OwnedFd) -> Result<(), DiskError> {
    let end = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    loop {
        match rustix::fs::flock(image, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(pause),
            Err(Errno::WOULDBLOCK) => return Err(DiskError::InUse(path.to_owned())),
            Err(errno) => return Err(system("lock the image")(errno)),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Puts an image on a free loop device, which is free again when the descriptor and all mounts of it are gone.
fn attach(image: &OwnedFd) -> Result<(String, OwnedFd), DiskError> {
    let open = |path: &str| rustix::fs::openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let none = |errno: Errno| DiskError::NoLoop(errno.into());
    let control = open("/dev/loop-control").map_err(none)?;
    for _ in 0..ATTEMPTS {
        let path = format!("/dev/loop{}", sys::free_loop(control.as_fd()).map_err(none)?);
        let device = open(&path).map_err(none)?;
        match sys::configure_loop(device.as_fd(), image.as_fd()) {
            Ok(()) => return Ok((path, device)),
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(system("attach the image")(errno)),
        }
    }
    Err(none(Errno::BUSY))
}

/// Finds a program of the administrator's, whose directories are not in everybody's path.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(OsStr::new(program))).find(|path| path.is_file())
}
