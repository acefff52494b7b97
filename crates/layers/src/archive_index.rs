//! Maps archive files to images, so that each archive is unpacked once.
//!
//! Each entry is a small file that is named by the archive's `stat` fields, so that a modified archive gets a new
//! entry. The file is also the lock under which the archive is unpacked.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::digest::Digest;

/// Two changes of a file within this time may have the same timestamp.
const TICK: Duration = Duration::from_millis(20);

/// Identifies one state of one archive file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArchiveKey(String);

/// The locked entry of an archive.
pub(crate) struct ArchiveIndexLock {
    file: File,
}

// === impl ArchiveKey ===

impl ArchiveKey {
    pub(crate) fn new(status: &Stat) -> Self {
        Self(format!(
            "{:x}-{:x}-{:x}-{}.{:09}-{}.{:09}",
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime,
            status.st_mtime_nsec,
            status.st_ctime,
            status.st_ctime_nsec
        ))
    }
}

/// The image of an archive, if it was unpacked before.
pub(crate) fn get(index: impl AsFd, key: &ArchiveKey) -> io::Result<Option<Digest>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(index, &key.0, flags, Mode::empty()) {
        Ok(file) => read(&file.into()),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Locks the entry of an archive; waits for other processes that unpack it.
pub(crate) fn lock(index: impl AsFd, key: &ArchiveKey) -> io::Result<ArchiveIndexLock> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(index, &key.0, flags, Mode::from_raw_mode(0o600))?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            outcome => {
                outcome?;
                return Ok(ArchiveIndexLock { file: file.into() });
            }
        }
    }
}

/// Removes the entry of an archive that could not be unpacked.
pub(crate) fn forget(index: impl AsFd, key: &ArchiveKey) {
    // If removal fails, an empty file remains, which means nothing.
    let _gone = rustix::fs::unlinkat(index, &key.0, AtFlags::empty());
}

/// Parses an entry; an incomplete write counts as none.
fn read(file: &File) -> io::Result<Option<Digest>> {
    let mut text = [0; 65];
    let length = file.read_at(&mut text, 0)?;
    let text = text.get(..length).and_then(|text| std::str::from_utf8(text).ok());
    Ok(text.and_then(|text| text.strip_suffix('\n')).and_then(|text| Digest::from_hex(text).ok()))
}

/// Removes entries whose image is gone. The caller excludes concurrent lookups.
pub(crate) fn sweep(index: impl AsFd, there: impl Fn(Digest) -> io::Result<bool>) -> io::Result<()> {
    for entry in rustix::fs::Dir::read_from(&index)? {
        let key = ArchiveKey(String::from_utf8_lossy(entry?.file_name().to_bytes()).into_owned());
        if matches!(key.0.as_str(), "." | "..") {
            continue;
        }
        let kept = match get(&index, &key)? {
            Some(digest) => there(digest)?,
            None => false,
        };
        if !kept {
            forget(&index, &key);
        }
    }
    Ok(())
}

/// Waits until a later change of the file would get another timestamp.
pub(crate) fn wait_for_next_timestamp(status: &Stat) {
    let seconds = u64::try_from(status.st_ctime).unwrap_or(0);
    let nanoseconds = u32::try_from(status.st_ctime_nsec).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    // A timestamp in the future means that the clock was set back: it proves nothing.
    let since = SystemTime::now().duration_since(changed).unwrap_or_default();
    if let Some(left) = TICK.checked_sub(since) {
        std::thread::sleep(left);
    }
}

// === impl ArchiveIndexLock ===

impl ArchiveIndexLock {
    pub(crate) fn put(&self, digest: Digest) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(format!("{}\n", digest.hex()).as_bytes(), 0)
    }
}
