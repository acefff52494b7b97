//! Operations that finish immediately.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use carrel_protocol::payload::{FsMkdir, FsOp, FsOpenFile, FsOpenOptions, FsResult, FsSymlink};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::handles::{HandleTarget, OpenDirectory, OpenFile};
use super::{FsError, FsIdentity, attributes, entries};
use crate::session::SessionKey;
use crate::shared_state::SessionIo;

/// Performs an operation that does not stream.
pub(super) fn perform(io: &mut SessionIo, key: SessionKey, op: FsOp) -> Result<Option<FsResult>, FsError> {
    let owner = io.owner(key);
    match op {
        FsOp::RealPath(path) => real_path(&path.path).map(FsResult::Path).map(Some),
        FsOp::Stat(stat) => {
            let flags = if stat.follow_symlink { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
            let found = rustix::fs::statat(CWD, &stat.path, flags).map_err(failed("stat"))?;
            Ok(Some(FsResult::Stat(entries::entry(stat.path, &found))))
        }
        FsOp::SetStat(set) => {
            done(attributes::set_path(&set.path, set.follow_symlink, &set.attrs).map_err(failed("setstat")))
        }
        FsOp::List(path) => list(&path.path).map(FsResult::List).map(Some),
        FsOp::ReadLink(path) => {
            let target = rustix::fs::readlink(&path.path, Vec::new()).map_err(failed("readlink"))?;
            Ok(Some(FsResult::Path(target.to_string_lossy().into_owned())))
        }
        FsOp::Symlink(link) => done(symlink(&link)),
        FsOp::Mkdir(make) => done(mkdir(&make)),
        FsOp::Remove(path) => done(rustix::fs::unlink(&path.path).map_err(failed("remove"))),
        FsOp::RemoveDir(remove) => done(rustix::fs::rmdir(&remove.path).map_err(failed("rmdir"))),
        FsOp::Rename(paths) => done(rustix::fs::rename(&paths.src, &paths.dst).map_err(failed("rename"))),
        FsOp::OpenFile(open) => {
            let opened = HandleTarget::File(Rc::new(open_file(&open)?));
            io.handles.insert(key, owner, opened).map(FsResult::Handle).map(Some)
        }
        FsOp::OpenDir(path) => {
            let (entries, path) = open_directory("opendir", &path.path)?;
            let opened = HandleTarget::Directory(Rc::new(OpenDirectory { entries: entries.into(), path }));
            io.handles.insert(key, owner, opened).map(FsResult::Handle).map(Some)
        }
        FsOp::CloseHandle(handle) => done(io.handles.close(owner, handle.handle)),
        FsOp::ReadDir(read) => {
            let directory = io.handles.directory("readdir", owner, read.handle)?;
            let limit = read.limit.unwrap_or(entries::DEFAULT_LIMIT).clamp(1, entries::MOST) as usize;
            let found = entries::next(&mut directory.entries.borrow_mut(), &directory.path, limit);
            Ok(Some(FsResult::List(found.map_err(failed("readdir"))?)))
        }
        FsOp::FStat(handle) => {
            let (stat, path) = match io.handles.any("fstat", owner, handle.handle)? {
                HandleTarget::File(file) => (rustix::fs::fstat(&file.fd), file.path.clone()),
                HandleTarget::Directory(dir) => (dir.entries.borrow_mut().stat(), dir.path.clone()),
            };
            Ok(Some(FsResult::Stat(entries::entry(path, &stat.map_err(failed("fstat"))?))))
        }
        FsOp::FSetStat(set) => {
            let outcome = match io.handles.any("fsetstat", owner, set.handle)? {
                HandleTarget::File(file) => attributes::set_open(&file.fd, &set.attrs),
                HandleTarget::Directory(directory) => {
                    let directory = directory.entries.borrow();
                    directory.fd().and_then(|fd| attributes::set_open(fd, &set.attrs))
                }
            };
            done(outcome.map_err(failed("fsetstat")))
        }
        FsOp::Read(_) | FsOp::Write(_) | FsOp::Copy(_) => Err(FsError::new("fs", Errno::NOSYS)),
    }
}

fn done(outcome: Result<(), FsError>) -> Result<Option<FsResult>, FsError> {
    outcome.map(|()| None)
}

fn failed(what: &'static str) -> impl Fn(Errno) -> FsError {
    move |errno| FsError::new(what, errno)
}

fn real_path(path: &str) -> Result<String, FsError> {
    let real = std::fs::canonicalize(path).map_err(|error| FsError::io("realpath", &error))?;
    Ok(real.to_string_lossy().into_owned())
}

fn list(path: &str) -> Result<Vec<carrel_protocol::payload::FsEntry>, FsError> {
    let (mut directory, path) = open_directory("list", path)?;
    let found = entries::next(&mut directory, &path, carrel_protocol::cbor::MAX_LIST).map_err(failed("list"))?;
    if entries::next(&mut directory, &path, 1).map_err(failed("list"))?.is_empty() {
        Ok(found)
    } else {
        Err(FsError::other("list", "too many entries for one response; open the directory and read it in batches"))
    }
}

/// Opens a directory and makes its path absolute, so that the paths of its entries are.
fn open_directory(what: &'static str, path: &str) -> Result<(Dir, String), FsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed(what))?;
    let directory = Dir::new(fd).map_err(failed(what))?;
    let absolute = std::path::absolute(path).map_err(|error| FsError::io(what, &error))?;
    Ok((directory, absolute.to_string_lossy().into_owned()))
}

fn symlink(link: &FsSymlink) -> Result<(), FsError> {
    let _identity = FsIdentity::take("symlink", link.user.as_deref())?;
    rustix::fs::symlink(&link.target, &link.link_path).map_err(failed("symlink"))
}

/// Creates a directory with its parents. An existing one is no error.
fn mkdir(make: &FsMkdir) -> Result<(), FsError> {
    let _identity = FsIdentity::take("mkdir", make.user.as_deref())?;
    let path = Path::new(&make.path);
    let mode = Mode::from_raw_mode(make.mode.unwrap_or(0o755) & 0o7777);
    let ancestors: Vec<_> = path.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()).collect();
    for ancestor in ancestors.into_iter().rev() {
        let mode = if ancestor == path { mode } else { Mode::from_raw_mode(0o755) };
        match rustix::fs::mkdir(ancestor, mode) {
            Ok(()) => {}
            Err(_) if ancestor.is_dir() => {}
            Err(errno) => return Err(FsError::new("mkdir", errno)),
        }
    }
    Ok(())
}

/// Opens a file without blocking: a FIFO without writer must not block the agent.
fn open_file(open: &FsOpenFile) -> Result<OpenFile, FsError> {
    let options = &open.options;
    let mode = Mode::from_raw_mode(options.mode.unwrap_or(0o644) & 0o7777);
    let flags = open_flags(options).ok_or_else(|| FsError::new("open", Errno::INVAL))?;
    let identity = FsIdentity::take("open", options.user.as_deref())?;
    let fd = rustix::fs::open(&open.path, flags, mode).map_err(failed("open"))?;
    drop(identity);
    opened(fd, open.path.clone())
}

/// An open file, if peers may access it.
pub(super) fn opened(fd: OwnedFd, path: String) -> Result<OpenFile, FsError> {
    let stat = rustix::fs::fstat(&fd).map_err(failed("open"))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Err(FsError::new("open", Errno::ISDIR)),
        _ if is_own_process(&fd) => Err(FsError::new("open", Errno::ACCESS)),
        kind => {
            let seekable = kind == FileType::RegularFile;
            Ok(OpenFile { fd, path, seekable, closed: false.into() })
        }
    }
}

/// Whether this is a file of the agent's own process in `/proc`: peers must not access its memory through any link.
fn is_own_process(fd: &OwnedFd) -> bool {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    let in_proc = rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == PROC_SUPER_MAGIC);
    if !in_proc {
        return false;
    }
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let own = format!("/proc/{}/", rustix::process::getpid().as_raw_nonzero());
    // If this cannot be determined, access is denied.
    std::fs::read_link(link).map_or(true, |path| path.to_string_lossy().starts_with(&own))
}

pub(super) fn open_flags(options: &FsOpenOptions) -> Option<OFlags> {
    let writes = options.write || options.append;
    let access = match (options.read, writes) {
        (true, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
        (false, false) => return None,
    };
    // Options that modify a file require write access.
    if !writes && (options.create || options.create_new || options.truncate) {
        return None;
    }
    let mut flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    flags.set(OFlags::APPEND, options.append);
    flags.set(OFlags::CREATE, options.create || options.create_new);
    flags.set(OFlags::EXCL, options.create_new);
    flags.set(OFlags::TRUNC, options.truncate && !options.create_new);
    Some(flags)
}
