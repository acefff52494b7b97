//! Writes the changes of a sandbox as the tar of a layer.
//!
//! The content is untrusted, so everything goes by handles: no symlink is followed, and no open blocks. Overlay
//! whiteouts and opaque directories become `.wh.` entries. Names are sorted, so that the same changes give the same
//! layer. Sockets are skipped, and devices, which a sandbox cannot create.

mod entry;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use self::entry::{LayerEntry, LayerEntryKind};
use crate::xattr;

/// The depth limit, the same as for unpacking.
const MAX_DEPTH: usize = 128;
/// The overlay's attributes of opaque directories and of whiteouts.
const OPAQUE: &[u8] = b"user.overlay.opaque";
const WHITEOUT: &[u8] = b"user.overlay.whiteout";
/// The prefix of a whiteout entry.
const GONE: &[u8] = b".wh.";
/// The entry that makes a directory opaque.
const HIDES: &[u8] = b".wh..wh..opq";
/// The number of IDs in a sandbox, and the one for unmapped IDs.
const IDS: u32 = 65_536;
const NOBODY: u32 = 65_534;

#[derive(Debug)]
pub struct SandboxChanges {
    /// The upper directory of its overlay, which must not change meanwhile.
    pub upper: OwnedFd,
    /// The ID on disk that is 0 in the sandbox.
    pub first: u32,
    /// Paths to leave out, with all their content.
    pub without: Vec<std::path::PathBuf>,
}

/// A file that could not be saved.
#[derive(Debug)]
pub(crate) struct SaveError {
    pub(crate) entry: Vec<u8>,
    pub(crate) source: io::Error,
}

/// Totals of a written layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedTotals {
    pub(crate) entries: u64,
    /// Sockets and devices.
    pub(crate) skipped: u64,
}

/// A directory that is being read.
struct SourceDirectory {
    handle: OwnedFd,
    path: Vec<u8>,
    /// In reverse order.
    names: Vec<Vec<u8>>,
    /// Whether regular files can be whiteouts.
    marked: bool,
}

struct LayerWriter<'a, W> {
    changes: &'a SandboxChanges,
    out: W,
    saved: SavedTotals,
    /// The first path of each file with several links, by device and inode.
    linked: HashMap<(u64, u64), Vec<u8>>,
}

pub(crate) fn layer(changes: &SandboxChanges, out: impl Write) -> Result<SavedTotals, SaveError> {
    let mut save = LayerWriter { changes, out, saved: SavedTotals::default(), linked: HashMap::new() };
    save.all()?;
    // A tar ends with two zero blocks.
    save.out.write_all(&[0; 1024]).and_then(|()| save.out.flush()).map_err(|source| unsaved(b"", source))?;
    Ok(save.saved)
}

// === impl LayerWriter ===

impl<W: Write> LayerWriter<'_, W> {
    fn all(&mut self) -> Result<(), SaveError> {
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
                Some(_) if deep >= MAX_DEPTH => {
                    return Err(unsaved(
                        &path,
                        io::Error::other(format!("nested deeper than {MAX_DEPTH} directories")),
                    ));
                }
                below => levels.extend(below),
            }
        }
        Ok(())
    }

    /// Writes one entry. Returns the directory to read next, if it is one.
    fn one(&mut self, level: &SourceDirectory, name: &[u8], path: &[u8]) -> io::Result<Option<SourceDirectory>> {
        use std::os::unix::ffi::OsStrExt;
        if self.changes.without.iter().any(|without| without.as_os_str().as_bytes() == path) {
            return Ok(None);
        }
        let status = rustix::fs::statat(&level.handle, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(status.st_mode);
        if kind == FileType::CharacterDevice && status.st_rdev == 0 {
            return self.write_whiteout(path, name).map(|()| None);
        }
        if name.starts_with(GONE) {
            return Err(io::Error::other("its name is reserved for whiteouts in layers"));
        }
        match kind {
            FileType::Directory => {
                let handle = open(&level.handle, name, true)?;
                self.enter(handle, path.to_vec()).map(Some)
            }
            FileType::RegularFile => self.file(level, name, path).map(|()| None),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&level.handle, name, Vec::new())?;
                let entry = self.entry(path, LayerEntryKind::Symlink, &status);
                self.put(entry.target(target.as_bytes()), io::empty()).map(|()| None)
            }
            FileType::Fifo => self.put(self.entry(path, LayerEntryKind::Pipe, &status), io::empty()).map(|()| None),
            _ => {
                self.saved.skipped += 1;
                Ok(None)
            }
        }
    }

    /// Writes a directory entry and lists its content.
    fn enter(&mut self, handle: OwnedFd, path: Vec<u8>) -> io::Result<SourceDirectory> {
        let status = rustix::fs::fstat(&handle)?;
        let attributes = xattr::all(&handle)?;
        let mark = attributes.iter().find(|(name, _)| name.to_bytes() == OPAQUE).map(|(_, value)| value.clone());
        if attributes.iter().any(|(name, _)| name.to_bytes() == b"user.overlay.redirect") {
            return Err(io::Error::other("a renamed directory (overlay redirect) cannot be saved in a layer"));
        }
        let name = [&path[..], b"/"].concat();
        let name = if path.is_empty() { b"./" } else { &name[..] };
        let entry = self.entry(name, LayerEntryKind::Directory, &status).attributes(&attributes, self.changes.first);
        self.put(entry, io::empty())?;
        if mark.as_deref() == Some(b"y") {
            let name = if path.is_empty() { HIDES.to_vec() } else { [&path[..], HIDES].join(&b'/') };
            self.put(LayerEntry::mark(&name), io::empty())?;
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
        Ok(SourceDirectory { handle, path, names, marked: mark.as_deref() == Some(b"x") })
    }

    fn file(&mut self, level: &SourceDirectory, name: &[u8], path: &[u8]) -> io::Result<()> {
        let file = File::from(open(&level.handle, name, false)?);
        let status = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(changed());
        }
        let attributes = xattr::all(&file)?;
        if level.marked && attributes.iter().any(|(name, _)| name.to_bytes() == WHITEOUT) {
            return self.write_whiteout(path, name);
        }
        if status.st_nlink > 1 {
            if let Some(first) = self.linked.get(&(status.st_dev, status.st_ino)) {
                let entry = self.entry(path, LayerEntryKind::HardLink, &status).target(first);
                return self.put(entry, io::empty());
            }
            self.linked.insert((status.st_dev, status.st_ino), path.to_vec());
        }
        let size = u64::try_from(status.st_size).unwrap_or(0);
        let entry = self.entry(path, LayerEntryKind::File(size), &status).attributes(&attributes, self.changes.first);
        self.put(entry, file.take(size))
    }

    fn write_whiteout(&mut self, path: &[u8], name: &[u8]) -> io::Result<()> {
        let above = path.get(..path.len() - name.len()).unwrap_or_default();
        self.put(LayerEntry::mark(&[above, GONE, name].concat()), io::empty())
    }

    fn entry(&self, path: &[u8], kind: LayerEntryKind, status: &Stat) -> LayerEntry {
        let inside = |id| inside(id, self.changes.first);
        LayerEntry::new(path, kind, status, (inside(status.st_uid), inside(status.st_gid)))
    }

    fn put(&mut self, entry: LayerEntry, content: impl Read) -> io::Result<()> {
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

/// Maps an ID on disk to one in the sandbox.
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

/// Opens one name without following symlinks.
fn open(directory: impl AsFd, name: &[u8], is_directory: bool) -> io::Result<OwnedFd> {
    let kind = if is_directory { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC | kind;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

fn changed() -> io::Error {
    io::Error::other("changed while it was read")
}

fn unsaved(entry: &[u8], source: io::Error) -> SaveError {
    SaveError { entry: entry.to_vec(), source }
}
