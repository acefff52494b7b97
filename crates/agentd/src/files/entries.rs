//! File metadata in the form of the protocol.

use carrel_protocol::payload::{FsEntry, FsEntryKind};
use rustix::fs::{AtFlags, Dir, FileType, Stat};
use rustix::io::Errno;

/// The default number of directory entries per response.
pub(crate) const DEFAULT_LIMIT: u32 = 128;
/// The maximum number of directory entries per response.
pub(crate) const MOST: u32 = 8192;
/// The maximum size of a response: it has to fit into a frame, however long the names are.
const FILLED: usize = 2 * 1024 * 1024;
/// The size of an entry without its path.
const OVERHEAD: usize = 160;

/// The metadata of a file.
pub(crate) fn entry(path: String, stat: &Stat) -> FsEntry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FsEntryKind::File,
        FileType::Directory => FsEntryKind::Dir,
        FileType::Symlink => FsEntryKind::Symlink,
        _ => FsEntryKind::Other,
    };
    FsEntry {
        path,
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode,
        modified: Some(stat.st_mtime),
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime: Some(stat.st_atime),
        mtime: Some(stat.st_mtime),
    }
}

/// The next entries of a directory, at most `limit` and as many as fit into a frame; symlinks are not followed.
pub(crate) fn next(directory: &mut Dir, path: &str, limit: usize) -> Result<Vec<FsEntry>, Errno> {
    let mut entries = Vec::new();
    let fd = directory.fd()?.try_clone_to_owned().map_err(|error| crate::errno::of(&error))?;
    let mut filled = 0;
    while entries.len() < limit && filled < FILLED {
        let Some(found) = directory.read().transpose()? else { break };
        let name = found.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let path = join(path, &name.to_string_lossy());
                filled += path.len() + OVERHEAD;
                entries.push(entry(path, &stat));
            }
            // Removed since it was listed.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(entries)
}

/// Joins a directory path and a name.
pub(crate) fn join(path: &str, name: &str) -> String {
    match path.strip_suffix('/') {
        Some(trimmed) => format!("{trimmed}/{name}"),
        None => format!("{path}/{name}"),
    }
}
