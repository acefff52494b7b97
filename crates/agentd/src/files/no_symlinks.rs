//! File operations that follow no symlink: a host that writes with the agent's privileges must not be redirected by a
//! process that can create links in the path.
//!
//! A path is resolved by handle, one component at a time: whatever is swapped meanwhile, no step follows a link.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use carrel_protocol::payload::{FsAttributes, FsMkdir, FsOp, FsOpenFile, FsResult};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::handles::{HandleTarget, OpenDirectory, OpenFile};
use super::{FsError, FsIdentity, attributes, entries, ops};
use crate::session::SessionKey;
use crate::shared_state::SessionIo;

/// The last component of a path and its directory.
struct ResolvedPath<'a> {
    directory: OwnedFd,
    name: &'a str,
    what: &'static str,
    path: &'a str,
}

/// Performs an operation, as another user if it names one.
pub(super) fn perform(io: &mut SessionIo, key: SessionKey, op: FsOp) -> Result<Option<FsResult>, FsError> {
    let owner = io.owner(key);
    match op {
        FsOp::Stat(stat) => {
            let found = ResolvedPath::to("stat", &stat.path)?.stat()?;
            Ok(Some(FsResult::Stat(entries::entry(stat.path, &found))))
        }
        FsOp::SetStat(set) => done(ResolvedPath::to("setstat", &set.path)?.set(&set.attrs)),
        FsOp::ReadLink(path) => {
            let walked = ResolvedPath::to("readlink", &path.path)?;
            let target = rustix::fs::readlinkat(&walked.directory, walked.name, Vec::new());
            let target = target.map_err(|errno| walked.failed(errno))?;
            Ok(Some(FsResult::Path(target.to_string_lossy().into_owned())))
        }
        FsOp::Symlink(link) => {
            let _identity = FsIdentity::take("symlink", link.user.as_deref())?;
            let walked = ResolvedPath::to("symlink", &link.link_path)?;
            let made = rustix::fs::symlinkat(&link.target, &walked.directory, walked.name);
            done(made.map_err(|errno| walked.failed(errno)))
        }
        FsOp::Remove(path) => {
            let walked = ResolvedPath::to("remove", &path.path)?;
            let removed = rustix::fs::unlinkat(&walked.directory, walked.name, AtFlags::empty());
            done(removed.map_err(|errno| walked.failed(errno)))
        }
        FsOp::Mkdir(make) => done(mkdir(&make)),
        FsOp::OpenFile(open) => {
            let opened = HandleTarget::File(Rc::new(open_file(&open)?));
            io.handles.insert(key, owner, opened).map(FsResult::Handle).map(Some)
        }
        FsOp::OpenDir(path) => {
            let walked = ResolvedPath::to("opendir", &path.path)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = Dir::new(walked.open(flags, Mode::empty())?).map_err(|errno| walked.failed(errno))?;
            let opened = HandleTarget::Directory(Rc::new(OpenDirectory { entries: directory.into(), path: path.path }));
            io.handles.insert(key, owner, opened).map(FsResult::Handle).map(Some)
        }
        op => Err(FsError::other(op.tag(), "not supported with no_symlinks")),
    }
}

fn done(outcome: Result<(), FsError>) -> Result<Option<FsResult>, FsError> {
    outcome.map(|()| None)
}

/// Creates a directory without its parents. An existing one is no error.
fn mkdir(make: &FsMkdir) -> Result<(), FsError> {
    let _identity = FsIdentity::take("mkdir", make.user.as_deref())?;
    let walked = ResolvedPath::to("mkdir", &make.path)?;
    let mode = Mode::from_raw_mode(make.mode.unwrap_or(0o755) & 0o7777);
    match rustix::fs::mkdirat(&walked.directory, walked.name, mode) {
        Err(Errno::EXIST) => match FileType::from_raw_mode(walked.stat()?.st_mode) {
            FileType::Directory => Ok(()),
            FileType::Symlink => Err(link(walked.what, walked.path)),
            _ => Err(walked.failed(Errno::EXIST)),
        },
        made => made.map_err(|errno| walked.failed(errno)),
    }
}

/// Opens a file without blocking. Writing requires a regular file: a FIFO or device in its place would redirect the
/// bytes.
fn open_file(open: &FsOpenFile) -> Result<OpenFile, FsError> {
    let _identity = FsIdentity::take("open", open.options.user.as_deref())?;
    let walked = ResolvedPath::to("open", &open.path)?;
    let flags = ops::open_flags(&open.options).ok_or_else(|| walked.failed(Errno::INVAL))?;
    let mode = Mode::from_raw_mode(open.options.mode.unwrap_or(0o644) & 0o7777);
    let opened = ops::opened(walked.open(flags, mode)?, open.path.clone())?;
    if !opened.seekable && (open.options.write || open.options.append) {
        return Err(FsError::other("open", "is a device, a pipe or a socket"));
    }
    Ok(opened)
}

// === impl ResolvedPath ===

impl<'a> ResolvedPath<'a> {
    /// Resolves the directory of a path's last component, from the root.
    fn to(what: &'static str, path: &'a str) -> Result<Self, FsError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |errno| FsError::new(what, errno);
        let mut directory = rustix::fs::open("/", flags, Mode::empty()).map_err(failed)?;
        let mut names = path.split('/').filter(|name| !matches!(*name, "" | ".")).peekable();
        let mut walked = String::new();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                return Ok(Self { directory, name, what, path });
            }
            walked = entries::join(&walked, name);
            directory = match rustix::fs::openat(&directory, name, flags, Mode::empty()) {
                Err(Errno::NOTDIR | Errno::LOOP) if is_link(&directory, name) => return Err(link(what, &walked)),
                opened => opened.map_err(failed)?,
            };
        }
        // The root itself.
        Ok(Self { directory, name: ".", what, path })
    }

    fn stat(&self) -> Result<rustix::fs::Stat, FsError> {
        rustix::fs::statat(&self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| self.failed(errno))
    }

    fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, FsError> {
        let opened = rustix::fs::openat(&self.directory, self.name, flags | OFlags::NOFOLLOW, mode);
        opened.map_err(|errno| match errno {
            Errno::NOTDIR | Errno::LOOP if is_link(&self.directory, self.name) => link(self.what, self.path),
            errno => self.failed(errno),
        })
    }

    /// Sets owner and times, even of a link itself. Other attributes need an open file.
    fn set(&self, set: &FsAttributes) -> Result<(), FsError> {
        if set.mode.is_some() || set.size.is_some() {
            return Err(self.failed(Errno::OPNOTSUPP));
        }
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let owned = if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(&self.directory, self.name, uid, gid, nofollow)
        } else {
            Ok(())
        };
        let timed = owned.and_then(|()| match attributes::timestamps(set) {
            Some(times) => rustix::fs::utimensat(&self.directory, self.name, &times, nofollow),
            None => Ok(()),
        });
        timed.map_err(|errno| self.failed(errno))
    }

    fn failed(&self, errno: Errno) -> FsError {
        FsError::new(self.what, errno)
    }
}

/// Whether it is a symlink; only used for the error message.
fn is_link(directory: &OwnedFd, name: &str) -> bool {
    rustix::fs::readlinkat(directory, name, Vec::new()).is_ok()
}

fn link(what: &'static str, path: &str) -> FsError {
    FsError { what, reason: format!("{path} is a symbolic link, which is not followed"), errno: Some(Errno::LOOP) }
}
