//! Reads small files of the image without blocking: the image may contain anything in their place.

use std::fs::File;
use std::io::Read;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// The maximum length to read; account and hosts files are shorter.
const MOST: u64 = 4 * 1024 * 1024;

/// Opens a regular file for reading. A FIFO or device in its place is an error.
pub(crate) fn open(path: &str) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::RegularFile => Ok(fd.into()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// The text of a small file; empty if it does not exist.
pub(crate) fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = open(path) {
        // After a read error, what was read so far is used.
        let _read = file.take(MOST).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_read() {
        assert!(text("/proc/self/status").contains("Name:"));
        assert_eq!(open("/dev/zero").err(), Some(Errno::INVAL));
        assert_eq!(open("/").err(), Some(Errno::ISDIR));
        assert_eq!(text("/nonexistent"), "");
    }
}
