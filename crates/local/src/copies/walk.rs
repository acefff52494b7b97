//! What is copied, read from the host by handles: no link is followed, and nothing is waited for.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tokio::sync::mpsc::Sender;

use super::CopyError;
use super::glob::Glob;
use super::ignored::Ignored;

/// What says what is no part of a tree.
const GITIGNORE: &str = ".gitignore";
/// The longest one that is read.
const LONGEST_RULES: u64 = 1 << 20;
/// How deep a tree may be: every level is held open.
const DEEPEST: usize = 256;
/// A file up to this size is read at once.
const SMALL: u64 = 64 * 1024;

/// Something to put into a sandbox. What is below the target is relative to it; the target itself is empty.
#[derive(Debug)]
pub(super) enum Item {
    /// A directory, before what is in it.
    Enter { path: String },
    /// The same, behind what is in it.
    Leave { path: String, kept: Kept },
    /// A file.
    File { path: String, kept: Kept, content: Content },
    /// A link.
    Link { path: String, to: String, kept: Kept },
}

/// What is in a file.
#[derive(Debug)]
pub(super) enum Content {
    Small(Bytes),
    Large(File),
}

/// What is kept of what a file or directory is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) mode: u32,
    /// In seconds since 1970.
    pub(super) modified: i64,
}

/// One who walks through a tree.
struct Walk<'a> {
    /// Where the tree is.
    source: &'a Path,
    exclude: &'a [Glob],
    ignored: Ignored,
    /// Where everything that is found goes; nowhere while somebody only looks.
    to: Option<&'a Sender<Item>>,
}

/// Whether to go on.
type Walked = Result<(), Stop>;

/// Why a walk is over before its end.
#[derive(Debug)]
enum Stop {
    Failed(CopyError),
    /// Nobody takes what is found.
    Unwanted,
    /// Something leads out of a directory that is no part of the tree.
    Outward,
}

/// Finds what is at a path of the host, but for what is excluded, and passes it on.
pub(super) fn walk(source: &Path, exclude: &[Glob], to: &Sender<Item>) -> Result<(), CopyError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let alone = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(CWD, source, flags, Mode::empty(), alone).map_err(host(source))?;
    let stat = rustix::fs::fstat(&opened).map_err(host(source))?;
    let mut walk = Walk { source, exclude, ignored: Ignored::default(), to: Some(to) };
    let walked = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => walk.file(opened, String::new(), &stat),
        FileType::Directory => {
            walk.ignored = rules(&opened).map_err(host(&source.join(GITIGNORE)))?;
            walk.directory(opened, "", &stat, 0)
        }
        _ => return Err(CopyError::Kind(source.to_owned())),
    };
    match walked {
        Ok(()) | Err(Stop::Unwanted | Stop::Outward) => Ok(()),
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// What a tree says is no part of it.
fn rules(top: &OwnedFd) -> Result<Ignored, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(top, GITIGNORE, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A link is none of its own.
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(Ignored::default()),
        Err(errno) => return Err(errno),
    };
    let mut bytes = Vec::new();
    let read = file
        .metadata()
        .and_then(|meta| if meta.is_file() { file.take(LONGEST_RULES).read_to_end(&mut bytes) } else { Ok(0) });
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Ignored::new(&String::from_utf8_lossy(&bytes)))
}

// === impl Walk ===

impl Walk<'_> {
    /// A directory, and all below it.
    fn directory(&self, opened: OwnedFd, path: &str, stat: &Stat, depth: usize) -> Walked {
        if depth > DEEPEST {
            return Err(CopyError::Deep(self.source.to_owned()).into());
        }
        let (kept, shown) = (Kept::of(stat, 0o1777), self.source.join(path));
        self.pass(|| Item::Enter { path: path.to_owned() })?;
        for name in names(&opened).map_err(host(&shown))? {
            let Some(name) = name.to_str() else { return Err(CopyError::NotText(shown.join(name)).into()) };
            let below = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            if !self.exclude.iter().any(|glob| glob.matches(&below) || glob.matches(name)) {
                self.entry(&opened, name, below, depth)?;
            }
        }
        self.pass(|| Item::Leave { path: path.to_owned(), kept })
    }

    fn entry(&self, parent: &OwnedFd, name: &str, path: String, depth: usize) -> Walked {
        let shown = self.source.join(&path);
        let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Gone since it was listed.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(host(&shown)(errno).into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let opened = open(parent, name, OFlags::DIRECTORY).map_err(host(&shown))?;
                // Where something that is no part of the tree leads out of it, none of it is copied.
                if self.to.is_some()
                    && self.ignored.covers(&path, true)
                    && self.leads_out(parent, name, &path, &stat, depth)?
                {
                    return Ok(());
                }
                self.directory(opened, &path, &stat, depth + 1)
            }
            FileType::RegularFile if self.to.is_none() => Ok(()),
            FileType::RegularFile => {
                let opened = open(parent, name, OFlags::NONBLOCK).map_err(host(&shown))?;
                self.file(opened, path, &stat)
            }
            FileType::Symlink => self.link(parent, name, path, &stat),
            // What talks to somebody here talks to nobody there.
            _ => Ok(()),
        }
    }

    /// Whether anything in a directory leads out of the tree.
    fn leads_out(&self, parent: &OwnedFd, name: &str, path: &str, stat: &Stat, depth: usize) -> Result<bool, Stop> {
        let opened = open(parent, name, OFlags::DIRECTORY).map_err(host(&self.source.join(path)))?;
        let only_look = Walk { source: self.source, exclude: self.exclude, ignored: Ignored::default(), to: None };
        match only_look.directory(opened, path, stat, depth + 1) {
            Ok(()) => Ok(false),
            Err(Stop::Outward) => Ok(true),
            Err(stop) => Err(stop),
        }
    }

    fn link(&self, parent: &OwnedFd, name: &str, path: String, stat: &Stat) -> Walked {
        let shown = self.source.join(&path);
        let to = rustix::fs::readlinkat(parent, name, Vec::new()).map_err(host(&shown))?;
        let Ok(to) = to.into_string() else { return Err(CopyError::NotText(shown).into()) };
        if leads_out(self.source, &path, &to) {
            return match self.to {
                None => Err(Stop::Outward),
                Some(_) if self.ignored.covers(&path, false) => Ok(()),
                Some(_) => Err(CopyError::Outward { path: shown, to }.into()),
            };
        }
        self.pass(|| Item::Link { path, to, kept: Kept::of(stat, 0o777) })
    }

    fn file(&self, opened: OwnedFd, path: String, stat: &Stat) -> Walked {
        let shown = self.source.join(&path);
        let mut file = File::from(opened);
        let failed = |error: std::io::Error| host(&shown)(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let mut bytes = Vec::new();
        // It may have grown since it was looked at.
        (&mut file).take(SMALL + 1).read_to_end(&mut bytes).map_err(failed)?;
        let content = if u64::try_from(bytes.len()).is_ok_and(|size| size <= SMALL) {
            Content::Small(bytes.into())
        } else {
            file.rewind().map_err(failed)?;
            Content::Large(file)
        };
        self.pass(|| Item::File { path, kept: Kept::of(stat, 0o777), content })
    }

    fn pass(&self, item: impl FnOnce() -> Item) -> Walked {
        match self.to {
            Some(to) => to.blocking_send(item()).map_err(|_| Stop::Unwanted),
            None => Ok(()),
        }
    }
}

/// The names in a directory, in their order.
fn names(directory: &OwnedFd) -> Result<Vec<PathBuf>, Errno> {
    use std::os::unix::ffi::OsStrExt;
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            names.push(PathBuf::from(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes())));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens one name, unless something else is in its place by now.
fn open(parent: impl AsFd, name: &str, kind: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC | kind;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Whether a link in a tree leads out of it, by what it says.
fn leads_out(source: &Path, path: &str, to: &str) -> bool {
    let relative = match Path::new(to).strip_prefix(source) {
        Ok(below) => below.to_owned(),
        Err(_) if to.starts_with('/') => return true,
        Err(_) => Path::new(path).parent().unwrap_or(Path::new("")).join(to),
    };
    let mut depth = 0_usize;
    for part in relative.components() {
        match part {
            Component::ParentDir => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return true,
            },
            Component::Normal(_) => depth += 1,
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    false
}

fn host(path: &Path) -> impl Fn(Errno) -> CopyError {
    move |errno| CopyError::Host { path: path.to_owned(), source: errno.into() }
}

// === impl Kept ===

impl Kept {
    fn of(stat: &Stat, mask: u32) -> Self {
        Self { mode: stat.st_mode & mask, modified: stat.st_mtime }
    }
}

// === impl Stop ===

impl From<CopyError> for Stop {
    fn from(error: CopyError) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests;
