//! Layers, and a directory of the disk that takes what is written over them.

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

/// The kernel takes no longer value of one option.
const MAX_OPTION_BYTES: usize = 255;
/// What an overlay is told besides its directories.
const OPTIONS: [(&str, &str); 3] = [("redirect_dir", "nofollow"), ("metacopy", "off"), ("index", "off")];

/// What is written, and where the kernel prepares it: directories of the disk.
#[derive(Clone, Copy)]
pub(super) struct UpperDirectories {
    pub(super) upper: &'static str,
    pub(super) work: &'static str,
}

/// Makes one of layers, the uppermost first, by their paths.
///
/// In a user namespace the kernel keeps its notes in attributes that the owner of a file could write, and for that
/// reason believes none that points elsewhere: nothing in the upper directory refers to what is below it. The options
/// say so too, whatever this kernel was built to do by default.
pub(super) fn overlay(lower: &[String], written: UpperDirectories) -> Result<OwnedFd, Errno> {
    match joined_lower(lower) {
        Some(lower) => mount_overlay(&[("lowerdir", &lower)], written),
        None => {
            let lower: Vec<(&str, &str)> = lower.iter().map(|path| ("lowerdir+", path.as_str())).collect();
            match mount_overlay(&lower, written) {
                // A kernel before Linux 6.7 takes them only together, and has room for short names alone.
                Err(Errno::INVAL) => mount_overlay_by_links(lower.into_iter().map(|(_, path)| path), written),
                made => made,
            }
        }
    }
}

/// Makes one of a directory that is only read, by its path, below an empty one.
///
/// Two layers and no directory that is written: then every socket, FIFO, lock and watch is of the overlay's own inodes,
/// and none of the host's. What a file says about overlays is not believed: in a user namespace the attributes that the
/// kernel would look at cannot be read.
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

/// All layers in one value, if that is short enough and nothing in it has a meaning of its own.
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

/// The same for kernels that take all options as one text of a page: layers have numbers there, which are links to them.
fn mount_overlay_by_links<'a>(
    lower: impl Iterator<Item = &'a str>,
    written: UpperDirectories,
) -> Result<OwnedFd, Errno> {
    let place = format!("{ASSEMBLY}/{}", disk::NAMES);
    match rustix::fs::mkdirat(CWD, &place, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    // Of its own, so that nothing of it stays on a disk that does.
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
    // Attached nowhere, as the other way makes it.
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
    fn a_few_plain_names_go_into_one_value_and_no_others() {
        let lower = |count: usize| (0..count).map(|number| format!("/tmp/lower{number}")).collect::<Vec<_>>();
        assert_eq!(joined_lower(&lower(2)).as_deref(), Some("/tmp/lower0:/tmp/lower1"));
        assert_eq!(joined_lower(&lower(40)), None);
        for odd in ["/a:b", "/a,b", "/a\\b"] {
            assert_eq!(joined_lower(&[odd.to_owned()]), None);
        }
    }
}
