//! Reads a tree of the host by directory handles: it follows no link and blocks on no FIFO.

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

const GITIGNORE: &str = ".gitignore";
/// The rest of a longer file is ignored.
const MAX_GITIGNORE_BYTES: u64 = 1 << 20;
/// How deep a tree may be: each level holds a descriptor open.
const MAX_DEPTH: usize = 256;
/// Files up to this size are read into memory at once.
const INLINE_BYTES: u64 = 64 * 1024;

/// An entry of the copied tree. Paths are relative to the target; the target itself is the empty path.
#[derive(Debug)]
pub(super) enum TreeEntry {
    /// A directory, before its entries.
    Enter {
        path: String,
    },
    /// The same directory, after its entries.
    Leave {
        path: String,
        metadata: EntryMetadata,
    },
    File {
        path: String,
        metadata: EntryMetadata,
        content: EntryContent,
    },
    Link {
        path: String,
        to: String,
        metadata: EntryMetadata,
    },
}

#[derive(Debug)]
pub(super) enum EntryContent {
    Small(Bytes),
    Large(File),
}

/// The attributes that a copy preserves.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryMetadata {
    pub(super) mode: u32,
    /// In seconds since the epoch.
    pub(super) modified: i64,
}

struct TreeWalker<'a> {
    /// The root of the tree on the host.
    source: &'a Path,
    exclude: &'a [Glob],
    gitignore: GitIgnore,
    /// Receives the entries; none for a dry run that only checks links.
    to: Option<&'a Sender<TreeEntry>>,
}

type WalkResult = Result<(), WalkError>;

/// Why a walk ended early.
#[derive(Debug)]
enum WalkError {
    Failed(CopyError),
    ReceiverDropped,
    /// A link in an ignored directory points outside the tree.
    LinkOutside,
}

/// Walks a file or tree of the host without the excluded paths, and sends its entries.
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

/// Reads the `.gitignore` at the top of a tree.
fn read_gitignore(top: &OwnedFd) -> Result<GitIgnore, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(top, GITIGNORE, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A symbolic link does not count as a `.gitignore`.
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
    /// Walks a directory recursively.
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
            // Removed since it was listed.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(host(&shown)(errno).into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let opened = open(parent, name, OFlags::DIRECTORY).map_err(host(&shown))?;
                // An ignored directory with a link that points outside the tree is skipped as a whole.
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
            // Sockets, FIFOs and devices are skipped: they have no peer in the sandbox.
            _ => Ok(()),
        }
    }

    /// Whether any link in a directory points outside the tree.
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
        // The file may have grown since the stat.
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

/// The names in a directory, sorted.
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

/// Opens an entry; fails if it was replaced by a symbolic link.
fn open(parent: impl AsFd, name: &str, kind: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC | kind;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Whether a link in a tree points outside of it, judged by its target string.
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
