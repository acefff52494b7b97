//! Removes a directory tree in bounded steps without following links out of it.

use std::ffi::CString;

use carrel_protocol::{Envelope, MessageType};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{FsError, reject_input, respond};
use crate::session::{MessageRejection, SessionHandler, SessionKey, TurnResult};
use crate::shared_state::SessionIo;

/// Entries per step.
const BATCH: usize = 256;
/// The maximum depth of a tree: each level has an open descriptor.
const DEPTH: usize = 512;

/// A removal in progress: the stack of open directories.
pub(crate) struct RemoveTree {
    path: CString,
    levels: Vec<RemoveLevel>,
}

struct RemoveLevel {
    entries: Dir,
    name: CString,
}

// === impl RemoveTree ===

impl RemoveTree {
    pub(crate) fn start(path: &str) -> Result<Self, FsError> {
        let failed = |errno| FsError::new("rmdir", errno);
        let path = CString::new(path).map_err(|_| failed(Errno::INVAL))?;
        let top = RemoveLevel::open(CWD, path.clone()).map_err(failed)?;
        Ok(Self { path, levels: vec![top] })
    }

    /// Removes a batch. `Ok(true)` when nothing is left.
    pub(crate) fn step(&mut self) -> Result<bool, Errno> {
        for _ in 0..BATCH {
            let Some(level) = self.levels.last_mut() else { return Ok(true) };
            match level.entries.read().transpose()? {
                Some(entry) => {
                    let name = entry.file_name().to_owned();
                    if name.as_c_str() != c"." && name.as_c_str() != c".." {
                        self.remove(name, entry.file_type())?;
                    }
                }
                None => self.remove_directory()?,
            }
        }
        Ok(self.levels.is_empty())
    }

    fn remove(&mut self, name: CString, kind: FileType) -> Result<(), Errno> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(level.entries.fd()?, &name, AtFlags::empty()) {
                // The file system does not report the type of an entry.
                Err(Errno::ISDIR) => {}
                Err(Errno::NOENT) => return Ok(()),
                outcome => return outcome,
            }
        }
        if self.levels.len() >= DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let level = RemoveLevel::open(level.entries.fd()?, name)?;
        self.levels.push(level);
        Ok(())
    }

    fn remove_directory(&mut self) -> Result<(), Errno> {
        let Some(done) = self.levels.pop() else { return Ok(()) };
        match self.levels.last() {
            Some(parent) => rustix::fs::unlinkat(parent.entries.fd()?, &done.name, AtFlags::REMOVEDIR),
            None => rustix::fs::unlinkat(CWD, &self.path, AtFlags::REMOVEDIR),
        }
    }
}

impl RemoveLevel {
    fn open(parent: impl std::os::fd::AsFd, name: CString) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, &name, flags, Mode::empty())?;
        Ok(Self { entries: Dir::new(fd)?, name })
    }
}

impl SessionHandler for RemoveTree {
    fn message(
        &mut self,
        _: &mut SessionIo,
        _: SessionKey,
        message_type: MessageType,
        _: &Envelope<'_>,
    ) -> Result<(), MessageRejection> {
        reject_input(message_type)
    }

    fn turn(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult {
        match self.step() {
            Ok(false) => return TurnResult::Again,
            Ok(true) => respond(io, key, Ok(None)),
            Err(errno) => respond(io, key, Err(FsError::new("rmdir", errno))),
        }
        TurnResult::Done
    }
}
