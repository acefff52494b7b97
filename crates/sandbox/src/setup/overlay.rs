//! Overlay mounts: layers with an upper directory on the disk, and read-only ones.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use super::ASSEMBLY;
use crate::mount::{attach, copy, nodev};
use crate::{disk, mount};

/// The kernel's limit for the value of one mount option.
const MAX_OPTION_BYTES: usize = 255;
/// Mount options besides the directories.
const OPTIONS: [(&str, &str); 3] = [("redirect_dir", "nofollow"), ("metacopy", "off"), ("index", "off")];

/// The upper and work directories, relative to the disk.
#[derive(Clone, Copy)]
pub(super) struct UpperDirectories {
    pub(super) upper: &'static str,
    pub(super) work: &'static str,
}

/// Mounts an overlay of layers, uppermost first, by their paths.
///
/// In a user namespace, overlayfs stores its metadata in attributes that the owner of a file could write, and therefore
/// follows none that points elsewhere: nothing in the upper directory refers to the layers below. The options enforce that,
/// whatever the defaults of this kernel are.
pub(super) fn overlay(lower: &[String], written: UpperDirectories) -> Result<OwnedFd, Errno> {
    match joined_lower(lower) {
        Some(lower) => mount_overlay(&[("lowerdir", &lower)], written),
        None => {
            let lower: Vec<(&str, &str)> = lower.iter().map(|path| ("lowerdir+", path.as_str())).collect();
            match mount_overlay(&lower, written) {
                // Before Linux 6.7 all layers are one option, which only has space for short names.
                Err(Errno::INVAL) => mount_overlay_by_links(lower.into_iter().map(|(_, path)| path), written),
                made => made,
            }
        }
    }
}

/// Mounts a read-only overlay of a directory, by its path, below an empty one.
///
/// With two layers and no upper directory, every socket, FIFO, lock and watch is on the overlay's own inodes, not on the
/// host's. Overlay attributes of the host's files have no effect: in a user namespace they cannot be read.
pub(super) fn read_only(empty: &str, lower: &str) -> Result<OwnedFd, Errno> {
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(overlay.as_fd(), "lowerdir", format!("{empty}:{lower}"))?;
    for (option, value) in OPTIONS {
        fsconfig_set_string(overlay.as_fd(), option, value)?;
    }
    fsconfig_set_flag(overlay.as_fd(), "ro")?;
    fsconfig_create(overlay.as_fd())?;
    fsmount(overlay.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, nodev() | MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// All layers as one option, if that is short enough and contains no special characters.
fn joined_lower(lower: &[String]) -> Option<String> {
    let is_plain = lower.iter().all(|path| !path.contains([':', ',', '\\']));
    let length: usize = lower.iter().map(|path| path.len() + 1).sum();
    (is_plain && length <= MAX_OPTION_BYTES).then(|| lower.join(":"))
}

fn mount_overlay(lower: &[(&str, &str)], written: UpperDirectories) -> Result<OwnedFd, Errno> {
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (option, path) in lower {
        fsconfig_set_string(overlay.as_fd(), *option, *path)?;
    }
    fsconfig_set_string(overlay.as_fd(), "upperdir", format!("{ASSEMBLY}/{}", written.upper))?;
    fsconfig_set_string(overlay.as_fd(), "workdir", format!("{ASSEMBLY}/{}", written.work))?;
    fsconfig_set_flag(overlay.as_fd(), "userxattr")?;
    for (option, value) in OPTIONS {
        fsconfig_set_string(overlay.as_fd(), option, value)?;
    }
    fsconfig_create(overlay.as_fd())?;
    fsmount(overlay.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, nodev())
}

/// The same for kernels with one page for all options: layers are named by numbered symbolic links.
fn mount_overlay_by_links<'a>(
    lower: impl Iterator<Item = &'a str>,
    written: UpperDirectories,
) -> Result<OwnedFd, Errno> {
    let place = format!("{ASSEMBLY}/{}", disk::NAMES);
    match rustix::fs::mkdirat(CWD, &place, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    // On a tmpfs, so that nothing of it is left on a persistent disk.
    let names = mount::new("tmpfs", &[("size", "1m"), ("mode", "700")], nodev())?;
    attach(&names, CWD, &place)?;
    let mut numbers = Vec::new();
    for (number, path) in lower.enumerate() {
        rustix::fs::symlinkat(path, &names, number.to_string())?;
        numbers.push(number.to_string());
    }
    let directory = |name: &str| format!("{ASSEMBLY}/{name}");
    let mut options = format!("lowerdir={},userxattr", numbers.join(":"));
    options += &format!(",upperdir={},workdir={}", directory(written.upper), directory(written.work));
    for (option, value) in OPTIONS {
        options += &format!(",{option}={value}");
    }
    let before = rustix::fs::open(c".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::process::fchdir(&names)?;
    let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let root = directory(disk::ROOT);
    rustix::mount::mount("overlay", &root, "overlay", flags, options.as_c_str())?;
    rustix::process::fchdir(&before)?;
    // Detached, like the result of the other function.
    let place = rustix::fs::open(&root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let overlay = copy(&place)?;
    drop(place);
    rustix::mount::unmount(&root, UnmountFlags::DETACH)?;
    rustix::mount::unmount(format!("{ASSEMBLY}/{}", disk::NAMES), UnmountFlags::DETACH)?;
    Ok(overlay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_few_and_plain_paths_are_joined_to_one_option() {
        let lower = |count: usize| (0..count).map(|number| format!("/tmp/lower{number}")).collect::<Vec<_>>();
        assert_eq!(joined_lower(&lower(2)).as_deref(), Some("/tmp/lower0:/tmp/lower1"));
        assert_eq!(joined_lower(&lower(40)), None);
        for odd in ["/a:b", "/a,b", "/a\\b"] {
            assert_eq!(joined_lower(&[odd.to_owned()]), None);
        }
    }
}
