//! A file system in a sparse file, on a loop device. The kernel detaches the device with the last mount of it, so that a
//! killed process leaves nothing behind.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::fsck::{self, DiskRepair, FileSystemState};
use super::persistent::{CheckReason, DiskError, system};
use crate::{mount, sys};

/// How long killed processes that had the disk open may take to exit.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long other processes may be faster to attach each free loop device.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// How many times the size of the file is corrected.
const MAX_RESIZES: usize = 6;
const BLOCK: u64 = 4096;
/// The space for the first directories of a sandbox and for extent trees.
const DIRECTORIES: u64 = 256 << 10;

/// Creates a file with a file system that has space for the requested number of bytes; the metadata of the file system comes
/// on top.
pub(super) fn create(path: &Path, bytes: u64) -> Result<(), DiskError> {
    let failed = |what| move |error| DiskError::System(what, error);
    let options = File::options().read(true).write(true).create_new(true).mode(0o600).clone();
    let file = options.open(path).map_err(failed("create the image"))?;
    let wanted = bytes.saturating_add(DIRECTORIES).next_multiple_of(BLOCK);
    let mut size = wanted.saturating_add(overhead(wanted)).next_multiple_of(BLOCK);
    for _ in 0..MAX_RESIZES {
        // Discards what the previous attempt wrote.
        file.set_len(0).and_then(|()| file.set_len(size)).map_err(failed("create the image"))?;
        make_file_system(path)?;
        let missing = wanted.saturating_sub(writable(&file).map_err(failed("read the image"))?);
        if missing == 0 {
            break;
        }
        size = size.saturating_add(missing + missing / 8).next_multiple_of(BLOCK);
    }
    file.sync_all().map_err(failed("create the image"))
}

/// An estimate of the metadata of a file system of this size: inodes, a journal, and the blocks that the kernel reserves.
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
    journal + inodes + reserved_by_kernel(bytes) + MIB / 4
}

/// The blocks that the kernel reserves for metadata of delayed allocations: a fiftieth, and 4,096 blocks at most.
fn reserved_by_kernel(bytes: u64) -> u64 {
    (bytes / 50).min(4096 * BLOCK)
}

/// How many bytes can be written to the file system, according to its superblock.
fn writable(file: &File) -> std::io::Result<u64> {
    /// The offset of the superblock, and in it those of the lower and upper halves of two block counts.
    const SUPERBLOCK: u64 = 1024;
    const ALL: [u64; 2] = [0x04, 0x150];
    const FREE: [u64; 2] = [0x0c, 0x158];
    let half = |at: u64| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, SUPERBLOCK + at).map(|()| u64::from(u32::from_le_bytes(bytes)))
    };
    let number = |[low, high]: [u64; 2]| Ok::<_, std::io::Error>(half(low)? | half(high)? << 32);
    Ok((number(FREE)? * BLOCK).saturating_sub(reserved_by_kernel(number(ALL)? * BLOCK)))
}

fn make_file_system(path: &Path) -> Result<(), DiskError> {
    let failed = |what| move |error| DiskError::System(what, error);
    // Inode tables and the journal are initialized lazily; no blocks are reserved for root, which does not use them.
    let options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0";
    let mut mkfs = Command::new(find("mkfs.ext4").ok_or(DiskError::NoMkfs)?);
    mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-E", options]).arg(path).stdin(Stdio::null());
    let output = mkfs.output().map_err(failed("run mkfs.ext4"))?;
    if !output.status.success() {
        return Err(DiskError::Mkfs(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(())
}

/// Mounts the image as a detached mount.
pub(super) fn mount(path: &Path) -> Result<OwnedFd, DiskError> {
    // Opened by its path, which `losetup` then shows to the administrator.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let image = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(system("open the image"))?;
    lock_image(path, &image)?;
    let (device, _loop) = attach(&image)?;
    // A failed write is an error for the writer, and makes the file system read-only.
    let options = [("source", device.as_str()), ("errors", "remount-ro")];
    mount::new("ext4", &options, mount::nodev()).map_err(system("mount the image"))
}

/// Checks the file system of an unused image, if its superblock or the caller requires it, and returns what was repaired. An
/// image with a clean superblock that was only not closed is not checked on a host without `e2fsck`.
pub(super) fn check(path: &Path, reason: CheckReason) -> Result<Option<DiskRepair>, DiskError> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let image = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(system("open the image"))?;
    lock_image(path, &image)?;
    let image = File::from(image);
    let state = FileSystemState::of(&image).map_err(|error| DiskError::System("read the image", error))?;
    if state == FileSystemState::Clean && reason == CheckReason::None {
        return Ok(None);
    }
    let image = OwnedFd::from(image);
    let checked = match fsck::check(path, &image) {
        Err(DiskError::NoFsck(_)) if state == FileSystemState::Clean && reason == CheckReason::NotClosed => Ok(None),
        checked => checked,
    };
    // `e2fsck` has exited, and no other process that inherited the descriptor relies on the lock.
    let _unlocked = rustix::fs::flock(&image, FlockOperation::Unlock);
    checked
}

/// Locks the open image. The loop device keeps the open file, and so the lock, for as long as the file system is mounted
/// anywhere: two mounts of one image would destroy it.
fn lock_image(path: &Path, image: &OwnedFd) -> Result<(), DiskError> {
    let end = Instant::now() + LOCK_TIMEOUT;
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

/// Attaches an image to a free loop device, which is free again when the descriptor and all mounts of it are closed.
fn attach(image: &OwnedFd) -> Result<(String, OwnedFd), DiskError> {
    let open = |path: &str| rustix::fs::openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let none = |errno: Errno| DiskError::NoLoop(errno.into());
    let control = open("/dev/loop-control").map_err(none)?;
    let end = Instant::now() + ATTACH_TIMEOUT;
    let mut pause = Duration::from_micros(100);
    loop {
        let path = format!("/dev/loop{}", sys::free_loop(control.as_fd()).map_err(none)?);
        let device = open(&path).map_err(none)?;
        match sys::configure_loop(device.as_fd(), image.as_fd()) {
            Ok(()) => return Ok((path, device)),
            Err(Errno::BUSY) if Instant::now() < end => std::thread::sleep(pause),
            Err(Errno::BUSY) => return Err(none(Errno::BUSY)),
            Err(errno) => return Err(system("attach the image")(errno)),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Finds an administration program, whose directory is not in the `PATH` of every user.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(OsStr::new(program))).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_requested_space_and_not_much_more() {
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
