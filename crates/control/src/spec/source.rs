//! Paths of the host: named by a caller, opened by handle, and kept without links.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Host;
use super::identity::HostIds;
use super::units::shown;
use crate::{Code, Refusal};

/// What may be given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinds {
    /// A file or a directory.
    Tree,
    /// The same, and all that is in it is shown to whoever is root inside.
    Image,
    /// A file or a directory, for a mount that reaches nobody on the host.
    Passive,
    /// A file, a directory or a socket.
    TreeOrSocket,
}

/// Who asks, and where.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    /// The host.
    pub(super) host: &'a Host,
    /// Whether every path of it may be named.
    pub(super) trusted: bool,
    /// Who it is there.
    pub(super) ids: HostIds,
}

/// Why a path of the host is not to be had.
pub(super) enum Unusable {
    /// Nothing is there.
    Missing,
    /// It is a link.
    Link,
    /// The caller may not name it.
    Forbidden,
    /// It moved while it was looked at, or lies where nothing can be named.
    Moved,
    /// It leads to a path that is no text, which could not be kept.
    NotText,
    /// The caller cannot read it, or not all of it.
    Unreadable(Option<PathBuf>),
    /// It has more in it than is looked through for a caller.
    Large,
    /// It is a socket, and was not asked for to be written.
    Socket,
    /// It is of a kind that cannot be given.
    Kind(&'static str),
    /// The system says so.
    Failed(Errno),
}

/// What a name itself is when it is a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// Nothing that can be given.
    NoLink,
    /// What it leads to.
    Followed,
}

/// How much of an image is looked through, and how deep.
const MOST_FILES: usize = 1_000_000;
const DEEPEST: usize = 256;
/// Reads something, without waiting.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// Names something, without opening it.
const NAME: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens a source as it was checked: where there is a link by now, it is not followed.
pub fn open_source(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat2(CWD, path, NAME, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)?)
}

/// Looks again, for a caller, at a directory that was admitted as an image: it may have been exchanged since. The path is
/// followed through no link, and all that is there has to be the caller's to read. Says which directory that is, by device
/// and inode.
pub fn check_image(path: &Path, caller: HostIds) -> io::Result<(u64, u64)> {
    let found = caller.act(|| -> Result<_, Unusable> {
        let handle =
            rustix::fs::openat2(CWD, path, NAME | OFlags::DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        readable(&handle, Kinds::Image)?;
        Ok(identity(&handle)?)
    })?;
    found.map_err(|unusable| io::Error::other(unusable.to_string()))
}

/// A caller's path as an absolute one: `~` is the operator's home, and nobody else's is to be had.
pub(super) fn expanded(field: &str, text: &str, host: &Host) -> Result<PathBuf, Refusal> {
    let path = match text.strip_prefix('~') {
        Some("") => host.home.clone(),
        Some(rest) if rest.starts_with('/') => host.home.join(rest.trim_start_matches('/')),
        Some(_) => {
            let message = format!("{} is somebody's home: give an absolute path, or one below \"~/\"", shown(text));
            return Err(Refusal::invalid(field, message));
        }
        None => PathBuf::from(text),
    };
    if !path.is_absolute() || text.contains('\0') {
        return Err(Refusal::invalid(field, format!("{} is no absolute path of the host", shown(text))));
    }
    Ok(path)
}

/// A path whose `~` is the operator's home.
pub(super) fn at_home(path: &Path, host: &Host) -> PathBuf {
    path.strip_prefix("~").map_or_else(|_| path.to_owned(), |below| host.home.join(below))
}

/// Looks at a path for a caller, and finds the one that has no links. Whoever is not trusted has to be able to reach it
/// and to read it without us.
pub(super) fn look(path: &Path, kinds: Kinds, last: Last, caller: Caller<'_>) -> Result<PathBuf, Unusable> {
    if caller.trusted {
        return find(path, kinds, last, caller).map(|(_, known)| known);
    }
    let found = caller.ids.act(|| {
        let (handle, known) = find(path, kinds, last, caller)?;
        readable(&handle, kinds)?;
        Ok(known)
    });
    found.unwrap_or_else(|error| Err(Unusable::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))))
}

/// Finds a path, opens it and knows it without links.
fn find(path: &Path, kinds: Kinds, last: Last, caller: Caller<'_>) -> Result<(OwnedFd, PathBuf), Unusable> {
    // A trailing slash would follow a link.
    let path: PathBuf = path.components().collect();
    let flags = if last == Last::NoLink { NAME | OFlags::NOFOLLOW } else { NAME };
    let handle = if caller.trusted {
        rustix::fs::openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?
    } else {
        open_allowed(&path, flags, &caller.host.allowed)?
    };
    kinds.admit(FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode))?;
    // The path that the kernel knows has no links. It is right if it leads to the same thing.
    let known = std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd())).map_err(|_| Unusable::Moved)?;
    let again = open_source(&known).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Unusable::Unreadable(None),
        _ => Unusable::Moved,
    })?;
    if !known.is_absolute() || identity(&handle)? != identity(&again)? {
        return Err(Unusable::Moved);
    }
    if known.to_str().is_none() { Err(Unusable::NotText) } else { Ok((handle, known)) }
}

/// Whether this thread may read what is open to be named. Of an image, all that is in it: its root is the sandbox's, and
/// reads everything there.
fn readable(handle: &OwnedFd, kinds: Kinds) -> Result<(), Unusable> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(());
    }
    let unreadable = |errno: Errno| if errno == Errno::ACCESS { Unusable::Unreadable(None) } else { errno.into() };
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let opened = rustix::fs::open(path, READ, Mode::empty()).map_err(unreadable)?;
    if kind == FileType::Directory {
        rustix::fs::openat(&opened, c".", NAME, Mode::empty()).map_err(unreadable)?;
        if kinds == Kinds::Image {
            readable_below(&opened, Path::new(""), &mut 0)?;
        }
    }
    Ok(())
}

fn readable_below(directory: &OwnedFd, path: &Path, count: &mut usize) -> Result<(), Unusable> {
    if path.components().count() > DEEPEST {
        return Err(Unusable::Large);
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        *count += 1;
        if *count > MOST_FILES {
            return Err(Unusable::Large);
        }
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        let failed =
            |errno: Errno| if errno == Errno::ACCESS { Unusable::Unreadable(Some(path.clone())) } else { errno.into() };
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                drop(rustix::fs::openat(directory, name, READ | OFlags::NOFOLLOW, Mode::empty()).map_err(failed)?)
            }
            FileType::Directory => {
                let below =
                    rustix::fs::openat(directory, name, READ | OFlags::NOFOLLOW | OFlags::DIRECTORY, Mode::empty());
                readable_below(&below.map_err(failed)?, &path, count)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens a path from what the operator allows, and never leaves that: neither by `..` nor by a link.
fn open_allowed(path: &Path, flags: OFlags, allowed: &[PathBuf]) -> Result<OwnedFd, Unusable> {
    let mut outcome = Unusable::Forbidden;
    for tree in allowed.iter().filter(|tree| tree.is_absolute()) {
        let Ok(below) = path.strip_prefix(tree) else { continue };
        // The way to the tree is the operator's, links and all.
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

/// A path inside: absolute, without `.` and without slashes that do nothing.
pub(super) fn target(field: &str, text: &str) -> Result<String, Refusal> {
    let expanded = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("/home/agbox{rest}"),
        _ => text.to_owned(),
    };
    let refused = |what| Err(Refusal::invalid(field, format!("{} {what}", shown(text))));
    if expanded.is_empty() {
        return Err(Refusal::invalid(field, "is missing"));
    }
    if !expanded.starts_with('/') || expanded.contains('\0') {
        return refused("is no absolute path, and does not begin with \"~/\"");
    }
    let mut clean = String::new();
    for part in Path::new(&expanded).components() {
        match part {
            Component::Normal(name) => clean.extend(["/", name.to_str().unwrap_or_default()]),
            Component::ParentDir => return refused("has \"..\" in it"),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(if clean.is_empty() { "/".to_owned() } else { clean })
}

fn identity(handle: &impl AsFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(handle)?;
    Ok((stat.st_dev, stat.st_ino))
}

// === impl Caller ===

impl Caller<'_> {
    /// Whether it may have the host's own programs, which lie all over it.
    pub(super) fn may_have_host(self) -> bool {
        self.trusted || self.host.allowed.iter().any(|tree| tree == Path::new("/"))
    }
}

// === impl Kinds ===

impl Kinds {
    fn admit(self, kind: FileType) -> Result<(), Unusable> {
        match (self, kind) {
            (_, FileType::RegularFile | FileType::Directory) | (Self::TreeOrSocket, FileType::Socket) => Ok(()),
            (_, FileType::Symlink) => Err(Unusable::Link),
            (Self::Passive, FileType::Socket) => Err(Unusable::Socket),
            (Self::Tree | Self::Image, _) => Err(Unusable::Kind("a file or a directory")),
            (Self::Passive, _) => Err(Unusable::Kind("a file, a directory or a socket")),
            (Self::TreeOrSocket, _) => Err(Unusable::Kind("a file, a directory or a socket")),
        }
    }
}

// === impl Unusable ===

impl Unusable {
    /// The refusal of a request that names such a path.
    pub(super) fn refusal(&self, field: &str, text: &str) -> Refusal {
        match self {
            Self::Forbidden => {
                let message = format!(
                    "{field}: {} is not for this caller: paths of the host are the operator's to give",
                    shown(text)
                );
                Refusal::new(Code::PermissionDenied, "HOST_PATH_FORBIDDEN", message).about("field", field)
            }
            Self::Unreadable(_) | Self::Large => {
                let message = format!("{field}: {} {self}", shown(text));
                Refusal::new(Code::PermissionDenied, "HOST_PATH_FORBIDDEN", message).about("field", field)
            }
            other => Refusal::invalid(field, format!("{} {other}", shown(text))),
        }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("does not exist"),
            Self::Link => f.write_str("is a link: give the path that it leads to"),
            Self::Forbidden => f.write_str("is not for this caller"),
            Self::Moved => f.write_str("was moved while it was looked at"),
            Self::NotText => f.write_str("leads to a path that is not in UTF-8"),
            Self::Unreadable(None) => f.write_str("cannot be read by this caller"),
            Self::Unreadable(Some(path)) => {
                let path = shown(&path.to_string_lossy());
                write!(f, "has {path} in it, which cannot be read by this caller: the root of a sandbox would read it")
            }
            Self::Large => f.write_str("has more in it than is looked through: import it as an image with a name"),
            Self::Socket => f.write_str("is a socket, which is only mounted to be written: set writable"),
            Self::Kind(kinds) => write!(f, "is not {kinds}"),
            Self::Failed(errno) => write!(f, "cannot be opened: {}", io::Error::from(*errno)),
        }
    }
}

impl From<Errno> for Unusable {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Missing,
            Errno::LOOP => Self::Link,
            Errno::ACCESS => Self::Unreadable(None),
            errno => Self::Failed(errno),
        }
    }
}
