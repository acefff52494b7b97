//! Small files of the image, read without ever waiting: whoever owns the image may have put anything in their place.

use std::fs::File;
use std::io::Read;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// How much of a file is read; no account or host file of an honest image is longer.
const MOST: u64 = 4 * 1024 * 1024;

/// Opens a regular file for reading. A pipe or a device in its place is an error, not a reason to wait.
pub(crate) fn open(path: &str) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::RegularFile => Ok(fd.into()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// The text of a small file; empty where there is none.
pub(crate) fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = open(path) {
        // What was read before an error is as good as the file gets.
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
