//! Walks a directory tree; can pause after every entry and never follows a link.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The maximum depth: each level has an open descriptor.
const DEPTH: usize = 256;

pub(super) struct TreeWalk {
    levels: Vec<(Dir, String)>,
    /// Whether hidden entries are visited.
    hidden: bool,
}

pub(super) struct WalkEntry {
    /// The path below the root; empty for the root itself.
    pub(super) path: String,
    pub(super) stat: Stat,
    pub(super) kind: FileType,
    directory: OwnedFd,
    name: CString,
}

// === impl TreeWalk ===

impl TreeWalk {
    /// Walks the content of a directory.
    pub(super) fn new(root: &str, hidden: bool) -> Result<Self, Errno> {
        Ok(Self { levels: vec![(open_directory(CWD, root)?, String::new())], hidden })
    }

    /// The next entry, directories before their content. Vanished and inaccessible entries are skipped.
    pub(super) fn next(&mut self) -> Result<Option<WalkEntry>, Errno> {
        while let Some((directory, prefix)) = self.levels.last_mut() {
            let Some(entry) = directory.read().transpose()? else {
                self.levels.pop();
                continue;
            };
            let name = entry.file_name().to_owned();
            let bytes = name.as_bytes();
            if bytes == b"." || bytes == b".." || (!self.hidden && bytes.starts_with(b".")) {
                continue;
            }
            let fd = directory.fd()?.try_clone_to_owned().map_err(|error| crate::errno::of(&error))?;
            let Ok(stat) = rustix::fs::statat(&fd, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let text = name.to_string_lossy();
            let path = if prefix.is_empty() { text.into_owned() } else { format!("{prefix}/{text}") };
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Directory
                && self.levels.len() < DEPTH
                && let Ok(inner) = open_directory(&fd, name.as_c_str())
            {
                self.levels.push((inner, path.clone()));
            }
            return Ok(Some(WalkEntry { path, stat, kind, directory: fd, name }));
        }
        Ok(None)
    }
}

fn open_directory(parent: impl AsFd, path: impl rustix::path::Arg) -> Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Dir::new(rustix::fs::openat(parent, path, flags, Mode::empty())?)
}

// === impl WalkEntry ===

impl WalkEntry {
    /// Opens the visited entry for reading: a link in its place is not followed.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())
    }

    /// The target of a symlink.
    pub(super) fn link(&self) -> Result<CString, Errno> {
        rustix::fs::readlinkat(&self.directory, &self.name, Vec::new())
    }
}
