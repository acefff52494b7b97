//! Open file description locks on one byte of a file.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// Locks a byte of a file until the file is closed or the lock is changed. An exclusive lock fails (`false`) while another
/// file description has a lock; a shared lock waits for an exclusive one. Locks of the process itself (`F_SETLK`) count as
/// those of another.
pub fn lock_byte(file: &File, byte: u64, exclusive: bool) -> io::Result<bool> {
    let byte = i64::try_from(byte).map_err(|_| io::ErrorKind::InvalidInput)?;
    match crate::sys::lock_byte(file.as_fd(), byte, exclusive) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_shared_or_held_by_one_file_description() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let open = || File::options().create(true).truncate(false).read(true).write(true).open(&path).unwrap();
        let (first, second) = (open(), open());
        assert!(lock_byte(&first, 128, true).unwrap());
        assert!(!lock_byte(&second, 128, true).unwrap());
        assert!(lock_byte(&second, 127, true).unwrap(), "another byte is free");
        assert!(lock_byte(&first, 128, false).unwrap(), "it becomes a shared one");
        assert!(lock_byte(&second, 128, false).unwrap());
        assert!(!lock_byte(&second, 128, true).unwrap());
        drop(first);
        // It goes with the file, which a process that another test starts inherits until the `exec`.
        while !lock_byte(&second, 128, true).unwrap() {
            std::thread::yield_now();
        }
    }
}
