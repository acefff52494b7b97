//! Refuses special files before SQLite opens them: opening a FIFO would block.

use std::io;
use std::path::Path;

use crate::sqlite::log_of;

/// Fails if the database or its log exists and is not a regular file. It opens nothing, because closing the file would
/// release the locks of this process.
pub(crate) fn require_regular(path: &Path) -> io::Result<()> {
    for (file, what) in [(path, "it"), (&log_of(path), "its write-ahead log")] {
        match std::fs::metadata(file) {
            Ok(found) if !found.is_file() => return Err(io::Error::other(format!("{what} is not a regular file"))),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
