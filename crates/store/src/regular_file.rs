//! Files that SQLite may open: to open a pipe would wait for a writer.

use std::io;
use std::path::Path;

use crate::sqlite::log_of;

/// Refuses a database that is no regular file, or whose log is none; what is missing is reported by whoever needs it. Nothing
/// is opened, because closing it would release the locks that this process has on the file.
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
