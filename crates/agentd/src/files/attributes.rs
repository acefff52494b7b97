//! Sets file attributes.

use std::os::fd::AsFd;

use carrel_protocol::payload::FsAttributes;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;

/// Sets attributes of an open file.
pub(crate) fn set_open(fd: impl AsFd, attributes: &FsAttributes) -> Result<(), Errno> {
    if let Some(size) = attributes.size {
        rustix::fs::ftruncate(&fd, size)?;
    }
    // Owner before mode: changing the owner clears mode bits.
    if attributes.uid.is_some() || attributes.gid.is_some() {
        rustix::fs::fchown(&fd, attributes.uid.map(Uid::from_raw), attributes.gid.map(Gid::from_raw))?;
    }
    if let Some(mode) = attributes.mode {
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode & 0o7777))?;
    }
    match timestamps(attributes) {
        Some(times) => rustix::fs::futimens(&fd, &times),
        None => Ok(()),
    }
}

pub(crate) fn set_path(path: &str, follow: bool, attributes: &FsAttributes) -> Result<(), Errno> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    if let Some(size) = attributes.size {
        let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let open = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | nofollow;
        rustix::fs::ftruncate(rustix::fs::open(path, open, Mode::empty())?, size)?;
    }
    if attributes.uid.is_some() || attributes.gid.is_some() {
        rustix::fs::chownat(CWD, path, attributes.uid.map(Uid::from_raw), attributes.gid.map(Gid::from_raw), flags)?;
    }
    if let Some(mode) = attributes.mode {
        let stat = rustix::fs::statat(CWD, path, flags)?;
        // The mode of a symlink has no meaning and cannot be set.
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
    }
    match timestamps(attributes) {
        Some(times) => rustix::fs::utimensat(CWD, path, &times, flags),
        None => Ok(()),
    }
}

pub(super) fn timestamps(attributes: &FsAttributes) -> Option<Timestamps> {
    if attributes.atime.is_none() && attributes.mtime.is_none() {
        return None;
    }
    let time = |seconds: Option<i64>| match seconds {
        Some(tv_sec) => Timespec { tv_sec, tv_nsec: 0 },
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    };
    Some(Timestamps { last_access: time(attributes.atime), last_modification: time(attributes.mtime) })
}
