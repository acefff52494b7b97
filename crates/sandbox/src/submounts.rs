//! The mounts below a host directory, from `/proc/self/mountinfo`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::cgroup::unescape;

/// File systems that are excluded from a tree: procfs cannot be a lower layer, and an automount is not triggered for a
/// sandbox.
const EXCLUDED_TYPES: [&str; 2] = ["proc", "autofs"];

/// A mount below a directory.
#[derive(Debug)]
pub(crate) struct Submount {
    /// Its root, opened with `O_PATH`.
    pub(crate) place: OwnedFd,
    /// Its path, relative to the directory.
    pub(crate) path: PathBuf,
}

/// An entry of the list.
#[derive(Debug, PartialEq, Eq)]
struct MountInfoEntry {
    id: u64,
    point: PathBuf,
}

/// The visible mounts below a directory, parents first, without those that another mount covers or that were unmounted
/// meanwhile.
pub(crate) fn below(directory: &OwnedFd, path: &Path) -> Result<Vec<Submount>, Errno> {
    let listed =
        std::fs::read("/proc/self/mountinfo").map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut found = Vec::new();
    for line in lines(&String::from_utf8_lossy(&listed), path) {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(directory, &line.point, flags, Mode::empty(), resolve) {
            Ok(place) if mount_id(&place)? == line.id => found.push(Submount { place, path: line.point }),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
            Err(errno) => return Err(errno),
        }
    }
    found.sort_by_key(|submount| submount.path.components().count());
    Ok(found)
}

/// `36 35 98:0 /root /point rw,noatime master:1 - type source rw`: the entries below a path, relative to it.
fn lines(mountinfo: &str, path: &Path) -> Vec<MountInfoEntry> {
    let line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let id = before.next()?.parse().ok()?;
        let point = unescape(before.nth(3)?);
        let kind = after.split(' ').next()?;
        let below = point.strip_prefix(path).ok()?;
        let is_included = !below.as_os_str().is_empty() && !EXCLUDED_TYPES.contains(&kind);
        is_included.then(|| MountInfoEntry { id, point: below.to_owned() })
    };
    mountinfo.lines().filter_map(line).collect()
}

/// The id of the mount that contains a file.
pub(crate) fn mount_id(place: impl AsFd) -> Result<u64, Errno> {
    let stat = rustix::fs::statx(place, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 { Err(Errno::NOSYS) } else { Ok(stat.stx_mnt_id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_path_are_found() {
        let listed = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 0:5 / /srv rw,relatime shared:3 master:1 - tmpfs tmpfs rw\n\
                      31 30 0:6 / /srv/a\\040b rw - tmpfs tmpfs rw\n\
                      32 31 0:7 / /srv/a\\040b/c rw - ext4 /dev/sdb rw\n\
                      33 22 0:8 / /srvother rw - tmpfs tmpfs rw\n\
                      34 30 0:9 / /srv/proc rw - proc proc rw\n\
                      a line of another kind\n";
        let found = lines(listed, Path::new("/srv"));
        let expected = [(31, "a b"), (32, "a b/c")].map(|(id, point)| MountInfoEntry { id, point: point.into() });
        assert_eq!(found, expected);
        assert_eq!(lines(listed, Path::new("/")).len(), 4);
    }
}
