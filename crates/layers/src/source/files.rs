//! Named files of a directory or of a tar.

mod contents;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::unpack::{Compression, Decompress};

/// How many links are followed.
const LINKS: usize = 16;

/// Read access to files by name.
pub(super) enum NamedFiles {
    Directory(OwnedFd),
    Tar { file: Arc<File>, entries: HashMap<String, TarEntry> },
}

#[derive(Debug)]
pub(super) enum TarEntry {
    At { offset: u64, size: u64 },
    Link(String),
}

/// A range of a file that is shared by several readers.
struct FileRange {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

// === impl NamedFiles ===

impl NamedFiles {
    pub(super) fn directory(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::Directory(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Opens a tar. A compressed one is decompressed to a file without a name first.
    pub(super) fn tar(path: &Path, plain: &dyn Decompress) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut start = Vec::new();
        (&file).take(4).read_to_end(&mut start)?;
        file.rewind()?;
        match Compression::of(&start) {
            Compression::None => {}
            compression => file = plain.plain(file, compression)?,
        }
        let entries = contents::of(&file)?;
        Ok(Self::Tar { file: Arc::new(file), entries })
    }

    /// Opens a file at an offset, if it exists; also returns its full size.
    pub(super) fn open(&self, name: &str, from: u64) -> io::Result<Option<(Box<dyn Read + Send>, u64)>> {
        match self {
            Self::Directory(directory) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let mut file = match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
                    Ok(file) => File::from(file),
                    Err(Errno::NOENT) => return Ok(None),
                    Err(errno) => return Err(errno.into()),
                };
                let status = file.metadata()?;
                if !status.is_file() {
                    return Ok(None);
                }
                file.seek(io::SeekFrom::Start(from))?;
                Ok(Some((Box::new(file), status.len())))
            }
            Self::Tar { file, entries } => {
                let Some((offset, size)) = find(entries, name) else { return Ok(None) };
                let offset = offset.saturating_add(from);
                let part = FileRange { file: Arc::clone(file), offset, left: size.saturating_sub(from) };
                Ok(Some((Box::new(part), size)))
            }
        }
    }

    /// Reads a whole file up to a limit, if it exists.
    pub(super) fn read_bounded(&self, name: &str, largest: u64) -> io::Result<Option<Vec<u8>>> {
        let Some((reader, size)) = self.open(name, 0)? else { return Ok(None) };
        if size > largest {
            return Err(io::Error::other(format!("{name} is larger than {largest} bytes")));
        }
        let mut bytes = Vec::new();
        reader.take(largest).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

/// Follows links to a file's offset and size.
fn find(entries: &HashMap<String, TarEntry>, name: &str) -> Option<(u64, u64)> {
    let mut name = normal(name, "")?;
    for _ in 0..LINKS {
        match entries.get(&name)? {
            TarEntry::At { offset, size } => return Some((*offset, *size)),
            TarEntry::Link(target) => name.clone_from(target),
        }
    }
    None
}

/// Resolves a name relative to a directory of the tar; `None` if it escapes.
fn normal(name: &str, above: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    let above = if name.starts_with('/') { "" } else { above };
    for part in above.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

// === impl FileRange ===

impl Read for FileRange {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let read = self.file.read_at(into.get_mut(..most).unwrap_or_default(), self.offset)?;
        self.offset = self.offset.saturating_add(read as u64);
        self.left = self.left.saturating_sub(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_tar_do_not_escape_it() {
        assert_eq!(normal("./a//b", "").as_deref(), Some("a/b"));
        assert_eq!(normal("../b/layer.tar", "a").as_deref(), Some("b/layer.tar"));
        assert_eq!(normal("/b", "a").as_deref(), Some("b"));
        assert_eq!(normal("../../b", "a"), None);
    }

    #[test]
    fn a_cycle_of_links_is_not_found() {
        let link = |to: &str| TarEntry::Link(to.to_owned());
        let at = TarEntry::At { offset: 512, size: 3 };
        let entries = [("a", link("b")), ("b", link("a")), ("c", link("d")), ("d", at)];
        let entries = entries.into_iter().map(|(name, place)| (name.to_owned(), place)).collect();
        assert_eq!(find(&entries, "a"), None);
        assert_eq!(find(&entries, "./c"), Some((512, 3)));
        assert_eq!(find(&entries, "e"), None);
    }
}
