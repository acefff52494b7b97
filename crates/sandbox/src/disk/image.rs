//! A file system of its own in a sparse file. Its loop device is cleared by the kernel when the last mount of it
//! ends, so that whoever is killed leaves nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::fsck::{self, DiskRepair, ImageState};
use super::kept::{DiskError, Suspicion, system};
use crate::{mount, sys};

/// How long those who had a disk and were killed may take to let go of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often another process may be faster to take a loop device.
const ATTEMPTS: u32 = 64;

/// How often the size of the file is corrected.
const SIZES: usize = 6;
/// The size of a block.
const BLOCK: u64 = 4096;
/// What the first directories of a sandbox and the trees of its extents take.
const DIRECTORIES: u64 = 256 << 10;

/// Makes a file with a file system in it that as many bytes can be written to as were asked for: what the file system
/// needs for itself comes on top.
pub(super) fn create(path: &Path, bytes: u64) -> Result<(), DiskError> {
    let failed = |what| move |error| DiskError::System(what, error);
    let options = File::options().read(true).write(true).create_new(true).mode(0o600).clone();
    let file = options.open(path).map_err(failed("make the image"))?;
    let wanted = bytes.saturating_add(DIRECTORIES).next_multiple_of(BLOCK);
    let mut size = wanted.saturating_add(overhead(wanted)).next_multiple_of(BLOCK);
    for _ in 0..SIZES {
        // What the attempt before wrote is not there any more.
        file.set_len(0).and_then(|()| file.set_len(size)).map_err(failed("make the image"))?;
        make_file_system(path)?;
        let missing = wanted.saturating_sub(writable(&file).map_err(failed("read the image"))?);
        if missing == 0 {
            break;
        }
        size = size.saturating_add(missing + missing / 8).next_multiple_of(BLOCK);
    }
    file.sync_all().map_err(failed("make the image"))
}

/// About what a file system for some bytes needs for itself: inodes, a journal, and what the kernel holds back.
fn overhead(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let journal = match bytes {
        0..0x0080_0000 => 0,
        0x0080_0000..0x0800_0000 => 4 * MIB,
        0x0800_0000..0x4000_0000 => 16 * MIB,
        0x4000_0000..0x8000_0000 => 32 * MIB,
        0x8000_0000..0x4_0000_0000 => 64 * MIB,
        _ => 1024 * MIB,
    };
    let inodes = if bytes < 512 * MIB { bytes / 14 } else { bytes / 60 };
    journal + inodes + held_back(bytes) + MIB / 4
}

/// What the kernel holds back for its own blocks when it puts off where to write: a fiftieth, and 4,096 blocks at most.
fn held_back(bytes: u64) -> u64 {
    (bytes / 50).min(4096 * BLOCK)
}

/// How many bytes can be written to the file system in a file, by what is in its superblock.
fn writable(file: &File) -> std::io::Result<u64> {
    /// Where the superblock is, and in it the lower and the upper halves of two numbers.
    const SUPERBLOCK: u64 = 1024;
    const ALL: [u64; 2] = [0x04, 0x150];
    const FREE: [u64; 2] = [0x0c, 0x158];
    let half = |at: u64| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, SUPERBLOCK + at).map(|()| u64::from(u32::from_le_bytes(bytes)))
    };
    let number = |[low, high]: [u64; 2]| Ok::<_, std::io::Error>(half(low)? | half(high)? << 32);
    Ok((number(FREE)? * BLOCK).saturating_sub(held_back(number(ALL)? * BLOCK)))
}

fn make_file_system(path: &Path) -> Result<(), DiskError> {
    let failed = |what| move |error| DiskError::System(what, error);
    // What can be put off until it is needed is put off; nothing is reserved for a root that does not use it.
    let options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0";
    let mut mkfs = Command::new(find("mkfs.ext4").ok_or(DiskError::NoMkfs)?);
    mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-E", options]).arg(path).stdin(Stdio::null());
    let output = mkfs.output().map_err(failed("run mkfs.ext4"))?;
    if !output.status.success() {
        return Err(DiskError::Mkfs(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(())
}

/// Mounts it, attached nowhere.
pub(super) fn mount(path: &Path) -> Result<OwnedFd, DiskError> {
    // By its path, which is what an administrator then reads of the loop device.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let image = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(system("open the image"))?;
    take(path, &image)?;
    let (device, _loop) = attach(&image)?;
    // What cannot be written is an error for whoever writes, and nothing is written over it.
    let options = [("source", device.as_str()), ("errors", "remount-ro")];
    mount::new("ext4", &options, mount::nodev()).map_err(system("mount the image"))
}

/// Checks the file system in an image that nobody uses, if its superblock or the caller says so; what is repaired is
/// returned. One that is only suspected is left alone where there is no program for it.
pub(super) fn check(path: &Path, suspicion: Suspicion) -> Result<Option<DiskRepair>, DiskError> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let image = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(system("open the image"))?;
    take(path, &image)?;
    let image = File::from(image);
    let state = ImageState::of(&image).map_err(|error| DiskError::System("read the image", error))?;
    if state == ImageState::Clean && suspicion == Suspicion::None {
        return Ok(None);
    }
    let image = OwnedFd::from(image);
    let checked = match fsck::check(path, &image) {
        Err(DiskError::NoFsck(_)) if state == ImageState::Clean && suspicion == Suspicion::NotClosed => Ok(None),
        checked => checked,
    };
    // The program has ended, and nobody else who has the descriptor has the lock.
    let _unlocked = rustix::fs::flock(&image, FlockOperation::Unlock);
    checked
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
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(OsStr::new(program))).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_can_be_written_and_not_much_more() {
        if find("mkfs.ext4").is_none() {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        for mebibytes in [1, 5, 10, 32, 100, 1000, 5000, 100_000] {
            let (path, bytes) = (home.path().join(mebibytes.to_string()), mebibytes << 20);
            create(&path, bytes).unwrap();
            let writable = writable(&File::open(&path).unwrap()).unwrap();
            let most = bytes + bytes / 8 + (1 << 20);
            assert!(writable >= bytes && writable <= most, "{mebibytes} MiB: {writable}");
        }
    }
}
