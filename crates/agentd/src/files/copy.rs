//! Copies a file in bounded steps.

use std::os::fd::OwnedFd;

use carrel_protocol::{Envelope, MessageType};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{FsError, reject_input, respond};
use crate::poll::retry;
use crate::session::{MessageRejection, SessionHandler, SessionKey, TurnResult};
use crate::shared_state::SessionIo;

/// Bytes per step: a few milliseconds.
const PIECE: usize = 4 * 1024 * 1024;

/// A copy in progress.
#[derive(Debug)]
pub(crate) struct CopyFile {
    from: OwnedFd,
    to: OwnedFd,
    by_hand: bool,
}

// === impl CopyFile ===

impl CopyFile {
    /// Opens both files; the copy gets the permissions of the original. Only regular files are copied.
    pub(crate) fn start(from: &str, to: &str) -> Result<Self, FsError> {
        let failed = |errno| FsError::new("copy", errno);
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let source = rustix::fs::open(from, flags | OFlags::RDONLY, Mode::empty()).map_err(failed)?;
        Self::from_open(source, to)
    }

    pub(crate) fn from_open(source: OwnedFd, to: &str) -> Result<Self, FsError> {
        let failed = |errno| FsError::new("copy", errno);
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let stat = rustix::fs::fstat(&source).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(failed(Errno::ISDIR)),
            _ => return Err(failed(Errno::INVAL)),
        }
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
        let target =
            rustix::fs::open(to, flags | OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW, mode).map_err(failed)?;
        let there = rustix::fs::fstat(&target).map_err(failed)?;
        // Truncated only after this check: copying a file onto itself would lose it.
        if (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino) {
            return Err(FsError::other("copy", "the source and the destination are the same file"));
        }
        rustix::fs::ftruncate(&target, 0).map_err(failed)?;
        rustix::fs::fchmod(&target, mode).map_err(failed)?;
        Ok(Self { from: source, to: target, by_hand: false })
    }

    /// Copies one chunk. `Ok(true)` at the end.
    pub(crate) fn step(&mut self) -> Result<bool, Errno> {
        if !self.by_hand {
            match retry(|| rustix::fs::copy_file_range(&self.from, None, &self.to, None, PIECE)) {
                // Zero bytes, of a file that may only look empty: files in `/proc` have no size.
                Ok(0) => self.by_hand = true,
                Ok(_) => return Ok(false),
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.by_hand = true,
                Err(errno) => return Err(errno),
            }
        }
        let mut buffer = vec![0; 256 * 1024];
        let count = retry(|| rustix::io::read(&self.from, &mut buffer))?;
        let mut done = 0;
        while let Some(rest) = buffer.get(done..count).filter(|rest| !rest.is_empty()) {
            done += retry(|| rustix::io::write(&self.to, rest))?;
        }
        Ok(count == 0)
    }
}

impl SessionHandler for CopyFile {
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
            Err(errno) => respond(io, key, Err(FsError::new("copy", errno))),
        }
        TurnResult::Done
    }
}
