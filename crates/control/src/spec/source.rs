//! Paths of the host that a caller names: opened by handle, and stored without links.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Host;
use super::caller_access::HostIds;
use super::units::quoted;
use crate::{Code, Refusal};

/// The kinds of files that are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceKind {
    /// A file or a directory.
    Tree,
    /// A file or a directory, all of which the root user of the sandbox can read.
    Image,
    /// A file or a directory, for a mount through which no process of the host is reached.
    Passive,
    /// A file, a directory or a socket.
    TreeOrSocket,
}

/// What a caller may access on the host.
#[derive(Clone, Copy)]
pub(super) struct HostAccess<'a> {
    /// The settings of the host.
    pub(super) host: &'a Host,
    /// Whether all paths are allowed.
    pub(super) trusted: bool,
    /// The ids of the caller on the host.
    pub(super) ids: HostIds,
}

/// Why a path of the host cannot be used.
pub(super) enum SourcePathError {
    /// It does not exist.
    Missing,
    Link,
    /// The caller is not allowed to use it.
    Forbidden,
    /// It was moved during the check, or has no path.
    Moved,
    /// It leads to a path that is not UTF-8, which cannot be stored.
    NotText,
    /// The caller cannot read it, or this part of it.
    Unreadable(Option<PathBuf>),
    /// It contains more files than are checked.
    Large,
    /// It is a socket, but the mount is not writable.
    Socket,
    /// It is not one of these kinds of files.
    Kind(&'static str),
    /// A system call failed.
    Failed(Errno),
}

/// What to do if the path itself is a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkPolicy {
    /// Refuse it.
    Reject,
    Follow,
}

/// How many files of an image are checked, and how deep.
const MAX_FILES: usize = 1_000_000;
const MAX_DEPTH: usize = 256;
/// Opens a file for reading without blocking.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// Opens a path without opening the file.
const NAME: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens a checked path without following links, since a link may have appeared meanwhile.
pub fn open_source(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat2(CWD, path, NAME, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)?)
}

/// Checks a directory again that was admitted as an image, since it may have been replaced meanwhile. The path must not
/// contain links, and the caller must be able to read all of it. Returns the device and the inode.
pub fn check_image(path: &Path, caller: HostIds) -> io::Result<(u64, u64)> {
    let found = caller.act(|| -> Result<_, SourcePathError> {
        let handle =
            rustix::fs::openat2(CWD, path, NAME | OFlags::DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        check_readable(&handle, SourceKind::Image)?;
        Ok(identity(&handle)?)
    })?;
    found.map_err(|error| io::Error::other(error.to_string()))
}

/// Makes a path absolute. `~` is the operator's home; homes of other users are refused.
pub(super) fn expand(field: &str, text: &str, host: &Host) -> Result<PathBuf, Refusal> {
    let path = match text.strip_prefix('~') {
        Some("") => host.home.clone(),
        Some(rest) if rest.starts_with('/') => host.home.join(rest.trim_start_matches('/')),
        Some(_) => {
            let message =
                format!("{} is the home of another user; use an absolute path, or one below \"~/\"", quoted(text));
            return Err(Refusal::invalid(field, message));
        }
        None => PathBuf::from(text),
    };
    if !path.is_absolute() || text.contains('\0') {
        return Err(Refusal::invalid(field, format!("{} is not an absolute path of the host", quoted(text))));
    }
    Ok(path)
}

/// Expands `~` to the operator's home.
pub(super) fn expand_home(path: &Path, host: &Host) -> PathBuf {
    path.strip_prefix("~").map_or_else(|_| path.to_owned(), |below| host.home.join(below))
}

/// Checks a path for a caller and resolves its links. An untrusted caller must be able to reach and to read it with its
/// own rights.
pub(super) fn resolve(
    path: &Path,
    kinds: SourceKind,
    last: LinkPolicy,
    caller: HostAccess<'_>,
) -> Result<PathBuf, SourcePathError> {
    if caller.trusted {
        return find(path, kinds, last, caller).map(|(_, known)| known);
    }
    let found = caller.ids.act(|| {
        let (handle, known) = find(path, kinds, last, caller)?;
        check_readable(&handle, kinds)?;
        Ok(known)
    });
    found.unwrap_or_else(|error| Err(SourcePathError::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))))
}

/// Opens a path and resolves its links.
fn find(
    path: &Path,
    kinds: SourceKind,
    last: LinkPolicy,
    caller: HostAccess<'_>,
) -> Result<(OwnedFd, PathBuf), SourcePathError> {
    // A trailing slash would follow a link.
    let path: PathBuf = path.components().collect();
    let flags = if last == LinkPolicy::Reject { NAME | OFlags::NOFOLLOW } else { NAME };
    let handle = if caller.trusted {
        rustix::fs::openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?
    } else {
        open_allowed(&path, flags, &caller.host.allowed)?
    };
    kinds.admit(FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode))?;
    // The path in the kernel has no links. It is valid if it leads to the same file.
    let known =
        std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd())).map_err(|_| SourcePathError::Moved)?;
    let again = open_source(&known).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => SourcePathError::Unreadable(None),
        _ => SourcePathError::Moved,
    })?;
    if !known.is_absolute() || identity(&handle)? != identity(&again)? {
        return Err(SourcePathError::Moved);
    }
    if known.to_str().is_none() { Err(SourcePathError::NotText) } else { Ok((handle, known)) }
}

/// Whether this thread may read what the handle refers to. Of an image, all of it, since the root user of the sandbox
/// reads everything there.
fn check_readable(handle: &OwnedFd, kinds: SourceKind) -> Result<(), SourcePathError> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(());
    }
    let unreadable =
        |errno: Errno| if errno == Errno::ACCESS { SourcePathError::Unreadable(None) } else { errno.into() };
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let opened = rustix::fs::open(path, READ, Mode::empty()).map_err(unreadable)?;
    if kind == FileType::Directory {
        rustix::fs::openat(&opened, c".", NAME, Mode::empty()).map_err(unreadable)?;
        if kinds == SourceKind::Image {
            check_readable_below(&opened, Path::new(""), &mut 0)?;
        }
    }
    Ok(())
}

fn check_readable_below(directory: &OwnedFd, path: &Path, count: &mut usize) -> Result<(), SourcePathError> {
    if path.components().count() > MAX_DEPTH {
        return Err(SourcePathError::Large);
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        *count += 1;
        if *count > MAX_FILES {
            return Err(SourcePathError::Large);
        }
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        let failed = |errno: Errno| {
            if errno == Errno::ACCESS { SourcePathError::Unreadable(Some(path.clone())) } else { errno.into() }
        };
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                drop(rustix::fs::openat(directory, name, READ | OFlags::NOFOLLOW, Mode::empty()).map_err(failed)?)
            }
            FileType::Directory => {
                let below =
                    rustix::fs::openat(directory, name, READ | OFlags::NOFOLLOW | OFlags::DIRECTORY, Mode::empty());
                check_readable_below(&below.map_err(failed)?, &path, count)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens a path below what the operator allows, without leaving it by `..` or a link.
fn open_allowed(path: &Path, flags: OFlags, allowed: &[PathBuf]) -> Result<OwnedFd, SourcePathError> {
    let mut outcome = SourcePathError::Forbidden;
    for tree in allowed.iter().filter(|tree| tree.is_absolute()) {
        let Ok(below) = path.strip_prefix(tree) else { continue };
        // The path to the tree is trusted, including its links.
        let Ok(tree) = rustix::fs::openat2(CWD, tree, NAME, Mode::empty(), ResolveFlags::empty()) else { continue };
        if below.as_os_str().is_empty() {
            return Ok(tree);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&tree, below, flags, Mode::empty(), resolve) {
            Ok(handle) => return Ok(handle),
            // It leads out of this tree.
            Err(Errno::XDEV) => {}
            Err(errno) => outcome = errno.into(),
        }
    }
    Err(outcome)
}

/// Validates a path in the sandbox: absolute, with `.` and redundant slashes removed.
pub(super) fn target(field: &str, text: &str) -> Result<String, Refusal> {
    let expanded = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("/home/agbox{rest}"),
        _ => text.to_owned(),
    };
    let refused = |what| Err(Refusal::invalid(field, format!("{} {what}", quoted(text))));
    if expanded.is_empty() {
        return Err(Refusal::invalid(field, "is missing"));
    }
    if !expanded.starts_with('/') || expanded.contains('\0') {
        return refused("is not an absolute path and does not start with \"~/\"");
    }
    let mut clean = String::new();
    for part in Path::new(&expanded).components() {
        match part {
            Component::Normal(name) => clean.extend(["/", name.to_str().unwrap_or_default()]),
            Component::ParentDir => return refused("contains \"..\""),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(if clean.is_empty() { "/".to_owned() } else { clean })
}

fn identity(handle: &impl AsFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(handle)?;
    Ok((stat.st_dev, stat.st_ino))
}

// === impl HostAccess ===

impl HostAccess<'_> {
    /// Whether the caller may use the image `host`, whose programs are all over the host.
    pub(super) fn may_use_host(self) -> bool {
        self.trusted || self.host.allowed.iter().any(|tree| tree == Path::new("/"))
    }
}

// === impl SourceKind ===

impl SourceKind {
    fn admit(self, kind: FileType) -> Result<(), SourcePathError> {
        match (self, kind) {
            (_, FileType::RegularFile | FileType::Directory) | (Self::TreeOrSocket, FileType::Socket) => Ok(()),
            (_, FileType::Symlink) => Err(SourcePathError::Link),
            (Self::Passive, FileType::Socket) => Err(SourcePathError::Socket),
            (Self::Tree | Self::Image, _) => Err(SourcePathError::Kind("a file or a directory")),
            (Self::Passive, _) => Err(SourcePathError::Kind("a file, a directory or a socket")),
            (Self::TreeOrSocket, _) => Err(SourcePathError::Kind("a file, a directory or a socket")),
        }
    }
}

// === impl SourcePathError ===

impl SourcePathError {
    /// The refusal of a request that names such a path.
    pub(super) fn refusal(&self, field: &str, text: &str) -> Refusal {
        match self {
            Self::Forbidden => {
                let message = format!(
                    "{field}: {} is not allowed for this caller; only the operator can allow paths of the host",
                    quoted(text)
                );
                Refusal::new(Code::PermissionDenied, "HOST_PATH_FORBIDDEN", message).about("field", field)
            }
            Self::Unreadable(_) | Self::Large => {
                let message = format!("{field}: {} {self}", quoted(text));
                Refusal::new(Code::PermissionDenied, "HOST_PATH_FORBIDDEN", message).about("field", field)
            }
            other => Refusal::invalid(field, format!("{} {other}", quoted(text))),
        }
    }
}

impl fmt::Display for SourcePathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("does not exist"),
            Self::Link => f.write_str("is a symbolic link; use its target"),
            Self::Forbidden => f.write_str("is not allowed for this caller"),
            Self::Moved => f.write_str("was moved during the check"),
            Self::NotText => f.write_str("leads to a path that is not in UTF-8"),
            Self::Unreadable(None) => f.write_str("cannot be read by this caller"),
            Self::Unreadable(Some(path)) => {
                let path = quoted(&path.to_string_lossy());
                write!(
                    f,
                    "contains {path}, which cannot be read by this caller but could be by the root user of the sandbox"
                )
            }
            Self::Large => f.write_str("contains more files than are checked; import it as a named image"),
            Self::Socket => f.write_str("is a socket, which needs a writable mount; set writable"),
            Self::Kind(kinds) => write!(f, "is not {kinds}"),
            Self::Failed(errno) => write!(f, "cannot be opened: {}", io::Error::from(*errno)),
        }
    }
}

impl From<Errno> for SourcePathError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Missing,
            Errno::LOOP => Self::Link,
            Errno::ACCESS => Self::Unreadable(None),
            errno => Self::Failed(errno),
        }
    }
}
