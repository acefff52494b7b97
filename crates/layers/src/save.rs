//! What a sandbox has changed, as the tar of a layer.
//!
//! A guest wrote all of it, so everything goes by handles: no link is followed, nothing is waited for. What the overlay
//! marks as gone or as hiding is said in the words of layers. The order is that of names, so that the same changes are
//! the same layer. Sockets are left out, and devices, which no sandbox can make.

mod entry;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use self::entry::{Entry, Kind};
use crate::xattr;

/// How deep a tree can be: as deep as one is unpacked.
const DEEPEST: usize = 128;
/// What the overlay marks directories and files with.
const OPAQUE: &[u8] = b"user.overlay.opaque";
const WHITEOUT: &[u8] = b"user.overlay.whiteout";
/// What stands before the name of something that is gone.
const GONE: &[u8] = b".wh.";
/// In a directory that hides those below it.
const HIDES: &[u8] = b".wh..wh..opq";
/// How many ids a sandbox has, and the one that stands for those it has not.
const IDS: u32 = 65_536;
const NOBODY: u32 = 65_534;

/// What a sandbox has changed.
#[derive(Debug)]
pub struct Changes {
    /// The upper directory of its overlay, which nobody changes meanwhile.
    pub upper: OwnedFd,
    /// The id on disk that is 0 in the sandbox.
    pub first: u32,
    /// Paths in it that are not the sandbox's own: they are left out with all that is in them.
    pub without: Vec<std::path::PathBuf>,
}

/// Something that cannot be saved.
#[derive(Debug)]
pub(crate) struct Unsaved {
    /// What.
    pub(crate) entry: Vec<u8>,
    /// Why.
    pub(crate) source: io::Error,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) entries: u64,
    /// Sockets and devices.
    pub(crate) skipped: u64,
}

/// A directory that is being read.
struct Level {
    handle: OwnedFd,
    path: Vec<u8>,
    /// The last name first.
    names: Vec<Vec<u8>>,
    /// Whether regular files can mark what is gone.
    marked: bool,
}

struct Save<'a, W> {
    changes: &'a Changes,
    out: W,
    saved: Saved,
    /// Files that have several names, by device and number, with the first of them.
    linked: HashMap<(u64, u64), Vec<u8>>,
}

/// Writes the layer of changes.
pub(crate) fn layer(changes: &Changes, out: impl Write) -> Result<Saved, Unsaved> {
    let mut save = Save { changes, out, saved: Saved::default(), linked: HashMap::new() };
    save.all()?;
    // Two empty blocks end every archive.
    save.out.write_all(&[0; 1024]).and_then(|()| save.out.flush()).map_err(|source| unsaved(b"", source))?;
    Ok(save.saved)
}

// === impl Save ===

impl<W: Write> Save<'_, W> {
    fn all(&mut self) -> Result<(), Unsaved> {
        let root = open(&self.changes.upper, b".", true).map_err(|source| unsaved(b"", source))?;
        let mut levels = vec![self.enter(root, Vec::new()).map_err(|source| unsaved(b"", source))?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let path = if level.path.is_empty() { name.clone() } else { [&level.path, &name[..]].join(&b'/') };
            let deep = levels.len();
            let Some(level) = levels.last() else { break };
            let below = self.one(level, &name, &path).map_err(|source| unsaved(&path, source))?;
            match below {
                Some(_) if deep >= DEEPEST => {
                    return Err(unsaved(&path, io::Error::other(format!("it lies deeper than {DEEPEST} directories"))));
                }
                below => levels.extend(below),
            }
        }
        Ok(())
    }

    /// Writes one entry. A directory is gone into next.
    fn one(&mut self, level: &Level, name: &[u8], path: &[u8]) -> io::Result<Option<Level>> {
        use std::os::unix::ffi::OsStrExt;
        if self.changes.without.iter().any(|without| without.as_os_str().as_bytes() == path) {
            return Ok(None);
        }
        let status = rustix::fs::statat(&level.handle, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(status.st_mode);
        if kind == FileType::CharacterDevice && status.st_rdev == 0 {
            return self.gone(path, name).map(|()| None);
        }
        if name.starts_with(GONE) {
            return Err(io::Error::other("in a layer its name says that something is gone"));
        }
        match kind {
            FileType::Directory => {
                let handle = open(&level.handle, name, true)?;
                self.enter(handle, path.to_vec()).map(Some)
            }
            FileType::RegularFile => self.file(level, name, path).map(|()| None),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&level.handle, name, Vec::new())?;
                let entry = self.entry(path, Kind::Symlink, &status);
                self.put(entry.target(target.as_bytes()), io::empty()).map(|()| None)
            }
            FileType::Fifo => self.put(self.entry(path, Kind::Pipe, &status), io::empty()).map(|()| None),
            _ => {
                self.saved.skipped += 1;
                Ok(None)
            }
        }
    }

    /// Writes a directory, and looks what is in it.
    fn enter(&mut self, handle: OwnedFd, path: Vec<u8>) -> io::Result<Level> {
        let status = rustix::fs::fstat(&handle)?;
        let attributes = xattr::all(&handle)?;
        let mark = attributes.iter().find(|(name, _)| name.to_bytes() == OPAQUE).map(|(_, value)| value.clone());
        if attributes.iter().any(|(name, _)| name.to_bytes() == b"user.overlay.redirect") {
            return Err(io::Error::other("it was moved in a way that a layer cannot say"));
        }
        let name = [&path[..], b"/"].concat();
        let name = if path.is_empty() { b"./" } else { &name[..] };
        let entry = self.entry(name, Kind::Directory, &status).attributes(&attributes, self.changes.first);
        self.put(entry, io::empty())?;
        if mark.as_deref() == Some(b"y") {
            let name = if path.is_empty() { HIDES.to_vec() } else { [&path[..], HIDES].join(&b'/') };
            self.put(Entry::mark(&name), io::empty())?;
        }
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&handle)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
        }
        names.sort_by(|a, b| b.cmp(a));
        Ok(Level { handle, path, names, marked: mark.as_deref() == Some(b"x") })
    }

    fn file(&mut self, level: &Level, name: &[u8], path: &[u8]) -> io::Result<()> {
        let file = File::from(open(&level.handle, name, false)?);
        let status = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(changed());
        }
        let attributes = xattr::all(&file)?;
        if level.marked && attributes.iter().any(|(name, _)| name.to_bytes() == WHITEOUT) {
            return self.gone(path, name);
        }
        if status.st_nlink > 1 {
            if let Some(first) = self.linked.get(&(status.st_dev, status.st_ino)) {
                let entry = self.entry(path, Kind::HardLink, &status).target(first);
                return self.put(entry, io::empty());
            }
            self.linked.insert((status.st_dev, status.st_ino), path.to_vec());
        }
        let size = u64::try_from(status.st_size).unwrap_or(0);
        let entry = self.entry(path, Kind::File(size), &status).attributes(&attributes, self.changes.first);
        self.put(entry, file.take(size))
    }

    fn gone(&mut self, path: &[u8], name: &[u8]) -> io::Result<()> {
        let above = path.get(..path.len() - name.len()).unwrap_or_default();
        self.put(Entry::mark(&[above, GONE, name].concat()), io::empty())
    }

    fn entry(&self, path: &[u8], kind: Kind, status: &Stat) -> Entry {
        let inside = |id| inside(id, self.changes.first);
        Entry::new(path, kind, status, (inside(status.st_uid), inside(status.st_gid)))
    }

    fn put(&mut self, entry: Entry, content: impl Read) -> io::Result<()> {
        self.saved.entries += 1;
        let size = entry.size();
        self.out.write_all(&entry.head()?)?;
        if copy(content, &mut self.out)? != size {
            return Err(changed());
        }
        let rest = usize::try_from(size.next_multiple_of(512) - size).unwrap_or(0);
        self.out.write_all([0; 512].get(..rest).unwrap_or_default())
    }
}

/// An id as the sandbox has it.
fn inside(id: u32, first: u32) -> u32 {
    id.checked_sub(first).filter(|inside| *inside < IDS).unwrap_or(NOBODY)
}

fn copy(mut from: impl Read, into: &mut impl Write) -> io::Result<u64> {
    let (mut buffer, mut copied) = (vec![0; 64 << 10], 0);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(read) => {
                into.write_all(buffer.get(..read).unwrap_or_default())?;
                copied += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens what has a name in a directory, and nothing that it leads to.
fn open(directory: impl AsFd, name: &[u8], is_directory: bool) -> io::Result<OwnedFd> {
    let kind = if is_directory { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC | kind;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

fn changed() -> io::Error {
    io::Error::other("it changed while it was read")
}

fn unsaved(entry: &[u8], source: io::Error) -> Unsaved {
    Unsaved { entry: entry.to_vec(), source }
}
