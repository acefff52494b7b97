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
use super::gitignore::GitIgnore;
use super::glob::Glob;

/// What says what is no part of a tree.
const GITIGNORE: &str = ".gitignore";
/// The longest one that is read.
const MAX_GITIGNORE_BYTES: u64 = 1 << 20;
/// How deep a tree may be: every level is held open.
const MAX_DEPTH: usize = 256;
/// A file up to this size is read at once.
const INLINE_BYTES: u64 = 64 * 1024;

/// Something to put into a sandbox. What is below the target is relative to it; the target itself is empty.
#[derive(Debug)]
pub(super) enum TreeEntry {
    /// A directory, before what is in it.
    Enter { path: String },
    /// The same, behind what is in it.
    Leave { path: String, metadata: EntryMetadata },
    /// A file.
    File { path: String, metadata: EntryMetadata, content: EntryContent },
    /// A link.
    Link { path: String, to: String, metadata: EntryMetadata },
}

/// What is in a file.
#[derive(Debug)]
pub(super) enum EntryContent {
    Small(Bytes),
    Large(File),
}

/// What is kept of what a file or directory is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryMetadata {
    pub(super) mode: u32,
    /// In seconds since 1970.
    pub(super) modified: i64,
}

/// One who walks through a tree.
struct TreeWalker<'a> {
    /// Where the tree is.
    source: &'a Path,
    exclude: &'a [Glob],
    gitignore: GitIgnore,
    /// Where everything that is found goes; nowhere while somebody only looks.
    to: Option<&'a Sender<TreeEntry>>,
}

/// Whether to go on.
type WalkResult = Result<(), WalkError>;

/// Why a walk is over before its end.
#[derive(Debug)]
enum WalkError {
    Failed(CopyError),
    /// Nobody takes what is found.
    ReceiverDropped,
    /// Something leads out of a directory that is no part of the tree.
    LinkOutside,
}

/// Finds what is at a path of the host, but for what is excluded, and passes it on.
pub(super) fn walk(source: &Path, exclude: &[Glob], to: &Sender<TreeEntry>) -> Result<(), CopyError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let alone = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(CWD, source, flags, Mode::empty(), alone).map_err(host(source))?;
    let stat = rustix::fs::fstat(&opened).map_err(host(source))?;
    let mut walk = TreeWalker { source, exclude, gitignore: GitIgnore::default(), to: Some(to) };
    let walked = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => walk.file(opened, String::new(), &stat),
        FileType::Directory => {
            walk.gitignore = read_gitignore(&opened).map_err(host(&source.join(GITIGNORE)))?;
            walk.directory(opened, "", &stat, 0)
        }
        _ => return Err(CopyError::Kind(source.to_owned())),
    };
    match walked {
        Ok(()) | Err(WalkError::ReceiverDropped | WalkError::LinkOutside) => Ok(()),
        Err(WalkError::Failed(error)) => Err(error),
    }
}

/// What a tree says is no part of it.
fn read_gitignore(top: &OwnedFd) -> Result<GitIgnore, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(top, GITIGNORE, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A link is none of its own.
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(GitIgnore::default()),
        Err(errno) => return Err(errno),
    };
    let mut bytes = Vec::new();
    let read = file
        .metadata()
        .and_then(|meta| if meta.is_file() { file.take(MAX_GITIGNORE_BYTES).read_to_end(&mut bytes) } else { Ok(0) });
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(GitIgnore::new(&String::from_utf8_lossy(&bytes)))
}

// === impl TreeWalker ===

impl TreeWalker<'_> {
    /// A directory, and all below it.
    fn directory(&self, opened: OwnedFd, path: &str, stat: &Stat, depth: usize) -> WalkResult {
        if depth > MAX_DEPTH {
            return Err(CopyError::TooDeep(self.source.to_owned()).into());
        }
        let (metadata, shown) = (EntryMetadata::of(stat, 0o1777), self.source.join(path));
        self.emit(|| TreeEntry::Enter { path: path.to_owned() })?;
        for name in names(&opened).map_err(host(&shown))? {
            let Some(name) = name.to_str() else { return Err(CopyError::NotText(shown.join(name)).into()) };
            let below = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            if !self.exclude.iter().any(|glob| glob.matches(&below) || glob.matches(name)) {
                self.entry(&opened, name, below, depth)?;
            }
        }
        self.emit(|| TreeEntry::Leave { path: path.to_owned(), metadata })
    }

    fn entry(&self, parent: &OwnedFd, name: &str, path: String, depth: usize) -> WalkResult {
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
                    && self.gitignore.matches(&path, true)
                    && self.escapes(parent, name, &path, &stat, depth)?
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
    fn escapes(&self, parent: &OwnedFd, name: &str, path: &str, stat: &Stat, depth: usize) -> Result<bool, WalkError> {
        let opened = open(parent, name, OFlags::DIRECTORY).map_err(host(&self.source.join(path)))?;
        let checker =
            TreeWalker { source: self.source, exclude: self.exclude, gitignore: GitIgnore::default(), to: None };
        match checker.directory(opened, path, stat, depth + 1) {
            Ok(()) => Ok(false),
            Err(WalkError::LinkOutside) => Ok(true),
            Err(stop) => Err(stop),
        }
    }

    fn link(&self, parent: &OwnedFd, name: &str, path: String, stat: &Stat) -> WalkResult {
        let shown = self.source.join(&path);
        let to = rustix::fs::readlinkat(parent, name, Vec::new()).map_err(host(&shown))?;
        let Ok(to) = to.into_string() else { return Err(CopyError::NotText(shown).into()) };
        if escapes(self.source, &path, &to) {
            return match self.to {
                None => Err(WalkError::LinkOutside),
                Some(_) if self.gitignore.matches(&path, false) => Ok(()),
                Some(_) => Err(CopyError::LinkOutside { path: shown, to }.into()),
            };
        }
        self.emit(|| TreeEntry::Link { path, to, metadata: EntryMetadata::of(stat, 0o777) })
    }

    fn file(&self, opened: OwnedFd, path: String, stat: &Stat) -> WalkResult {
        let shown = self.source.join(&path);
        let mut file = File::from(opened);
        let failed = |error: std::io::Error| host(&shown)(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let mut bytes = Vec::new();
        // It may have grown since it was looked at.
        (&mut file).take(INLINE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        let content = if u64::try_from(bytes.len()).is_ok_and(|size| size <= INLINE_BYTES) {
            EntryContent::Small(bytes.into())
        } else {
            file.rewind().map_err(failed)?;
            EntryContent::Large(file)
        };
        self.emit(|| TreeEntry::File { path, metadata: EntryMetadata::of(stat, 0o777), content })
    }

    fn emit(&self, item: impl FnOnce() -> TreeEntry) -> WalkResult {
        match self.to {
            Some(to) => to.blocking_send(item()).map_err(|_| WalkError::ReceiverDropped),
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
fn escapes(source: &Path, path: &str, to: &str) -> bool {
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

// === impl EntryMetadata ===

impl EntryMetadata {
    fn of(stat: &Stat, mask: u32) -> Self {
        Self { mode: stat.st_mode & mask, modified: stat.st_mtime }
    }
}

// === impl WalkError ===

impl From<CopyError> for WalkError {
    fn from(error: CopyError) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests;
