//! Refreshes read-only mounts of host trees: an overlay caches names that the host has since replaced.

use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

/// Opens a path without following a final link.
const NAME: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// For how long a running command may see replaced names.
const INTERVAL: Duration = Duration::from_secs(1);

/// Periodically refreshes the read-only mounts of a sandbox, until it is dropped or the sandbox is gone.
#[derive(Debug)]
pub struct Refresher(tokio::task::AbortHandle);

// === impl Refresher ===

impl Refresher {
    /// Starts refreshing the mount namespace of a process. Must be called within a runtime.
    pub fn start(pid: u32) -> Self {
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                let refreshed = tokio::task::spawn_blocking(move || refresh(pid)).await;
                // A mount that cannot be refreshed stays as it was; a sandbox that is gone has none.
                if matches!(refreshed, Ok(Err(Errno::NOENT | Errno::SRCH)) | Err(_)) {
                    return;
                }
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for Refresher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Drops the cached names of every read-only overlay in the mount namespace of a process.
pub(crate) fn refresh(pid: u32) -> Result<(), Errno> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut points = read_only_overlays(&listed).peekable();
    if points.peek().is_none() {
        return Ok(());
    }
    let root = rustix::fs::open(format!("/proc/{pid}/root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    for point in points {
        // The guest cannot mount, and no link is followed, so the path resolves to the listed mount.
        let below = point.strip_prefix("/").unwrap_or(point);
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let place = rustix::fs::openat2(&root, below, NAME, Mode::empty(), resolve)?;
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_NO_AUTOMOUNT;
        // Reconfiguring a file system drops its unused dentries and changes nothing else.
        let overlay = fspick(&place, c"", flags)?;
        fsconfig_set_flag(&overlay, c"ro")?;
        fsconfig_reconfigure(&overlay)?;
    }
    Ok(())
}

/// `36 35 0:50 / /point ro,nosuid - overlay overlay ro,lowerdir=…`: the mount points of overlays without an upper directory.
fn read_only_overlays(mountinfo: &str) -> impl Iterator<Item = &Path> {
    mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let options = after.strip_prefix("overlay ")?;
        // The kernel escapes spaces in octal. Such a mount is not refreshed.
        let point = before.split(' ').nth(4).filter(|point| !point.contains('\\'))?;
        (!options.contains("upperdir=")).then(|| Path::new(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_overlays_without_an_upper_directory_are_found() {
        let listed = "22 1 0:40 / / rw - overlay overlay rw,lowerdir=/a,upperdir=/b,workdir=/c\n\
                      30 22 0:5 / /tmp rw - tmpfs tmpfs rw\n\
                      31 22 0:41 / /given ro,nosuid,nodev - overlay overlay ro,lowerdir=/a:/b\n\
                      32 22 0:42 / /odd\\040name ro - overlay overlay ro,lowerdir=/a:/b\n";
        assert_eq!(read_only_overlays(listed).collect::<Vec<_>>(), [Path::new("/given")]);
        assert!(refresh(u32::MAX).is_err());
    }
}
