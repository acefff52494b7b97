//! Which image an archive is: one small file per archive, so that an archive is read once.
//!
//! Its name is what the system says about the archive, so that it is another file once the archive has changed. It is
//! also the lock under which the archive is unpacked; the kernel takes that back when its holder ends, however it ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::digest::Digest;

/// Within so long two changes of a file may have the same time.
const TICK: Duration = Duration::from_millis(20);

/// What tells one state of one archive from every other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key(String);

/// The entry of an archive, locked.
pub(crate) struct Locked {
    file: File,
}

// === impl Key ===

impl Key {
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

/// The image that an archive is, if it is known.
pub(crate) fn get(index: impl AsFd, key: &Key) -> io::Result<Option<Digest>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(index, &key.0, flags, Mode::empty()) {
        Ok(file) => read(&file.into()),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Locks the entry of an archive. Whoever else wants to unpack it waits here.
pub(crate) fn lock(index: impl AsFd, key: &Key) -> io::Result<Locked> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(index, &key.0, flags, Mode::from_raw_mode(0o600))?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            outcome => {
                outcome?;
                return Ok(Locked { file: file.into() });
            }
        }
    }
}

/// Forgets an archive that could not be unpacked.
pub(crate) fn forget(index: impl AsFd, key: &Key) {
    // What stays is an empty file, which says nothing.
    let _gone = rustix::fs::unlinkat(index, &key.0, AtFlags::empty());
}

/// What is written there, unless it is not a digest: a write that was interrupted says nothing.
fn read(file: &File) -> io::Result<Option<Digest>> {
    let mut text = [0; 65];
    let length = file.read_at(&mut text, 0)?;
    let text = text.get(..length).and_then(|text| std::str::from_utf8(text).ok());
    Ok(text.and_then(|text| text.strip_suffix('\n')).and_then(|text| Digest::from_hex(text).ok()))
}

/// Forgets all archives of which the image is not there any more. Nobody may be looking at one meanwhile.
pub(crate) fn sweep(index: impl AsFd, there: impl Fn(Digest) -> io::Result<bool>) -> io::Result<()> {
    for entry in rustix::fs::Dir::read_from(&index)? {
        let key = Key(String::from_utf8_lossy(entry?.file_name().to_bytes()).into_owned());
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

/// Waits until whatever changes from now on has another time than the file has. Then its times tell its content.
pub(crate) fn settle(status: &Stat) {
    let seconds = u64::try_from(status.st_ctime).unwrap_or(0);
    let nanoseconds = u32::try_from(status.st_ctime_nsec).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    // A time to come says that the clock was set, so nothing can be told from it.
    let since = SystemTime::now().duration_since(changed).unwrap_or_default();
    if let Some(left) = TICK.checked_sub(since) {
        std::thread::sleep(left);
    }
}

// === impl Locked ===

impl Locked {
    /// Writes the digest down.
    pub(crate) fn put(&self, digest: Digest) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(format!("{}\n", digest.hex()).as_bytes(), 0)
    }
}
