//! The attribute layer of an image, `patch/` on disk: directory attributes that its layers lack.
//!
//! A layer may change something in a directory without an entry for that directory. The unpacker then creates it with
//! default attributes, and overlayfs would show those. The attributes of the layer below are copied to an extra layer
//! on top, without the content.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;

use crate::archive::{MAX_MISSING, missing_weight};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A name leads nowhere but to its own entry.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// The attribute of an opaque directory.
const OPAQUE: &str = "user.overlay.opaque";
/// The prefix of the overlay's own attributes.
const OVERLAY: &[u8] = b"user.overlay.";
/// The limit of directories without an entry in all layers of an image.
const MAX_MADE: usize = 100_000;
/// The limit of lookups.
const MAX_LOOKS: usize = 4_000_000;

/// A layer and its directories without an entry.
pub(super) struct PatchSource {
    pub(super) tree: OwnedFd,
    /// Directories without an entry.
    pub(super) made: HashSet<PathBuf>,
}

/// Counts the directories without an entry in all layers.
#[derive(Default)]
pub(super) struct MissingEntries {
    count: usize,
    weight: usize,
}

/// The lookup limit was exceeded.
#[derive(Debug, thiserror::Error)]
#[error("too many directories have no entry of their own")]
struct LookupLimit;

/// A walk through all layers at once.
struct LayerWalk<'a> {
    sources: &'a [PatchSource],
    path: PathBuf,
    levels: Vec<PatchDirectory>,
    looks: usize,
}

/// A directory that some layers have.
struct PatchDirectory {
    name: OsString,
    /// The visible layers that have it, the uppermost first.
    found: Vec<LayerDirectory>,
    /// The uppermost layer with an entry for it, whose attributes it should have.
    from: Option<usize>,
    /// Whether it is in the patch already.
    listed: bool,
}

#[derive(Clone, Copy)]
struct LayerDirectory {
    layer: usize,
    /// Whether it hides the content of lower layers.
    hides: bool,
}

/// What a layer has at a path.
enum LayerLookup {
    Nothing,
    /// A whiteout, or something that is not a directory.
    End,
    Directory(OwnedFd),
}

/// The directories of the patch for these layers, the uppermost first, each with the layer to copy from.
fn needed(sources: &[PatchSource]) -> io::Result<BTreeMap<PathBuf, usize>> {
    // In this order a directory comes before its content.
    let made: BTreeSet<&Path> = sources.iter().flat_map(|source| &source.made).map(PathBuf::as_path).collect();
    let (mut needed, mut walk) = (BTreeMap::new(), LayerWalk::new(sources)?);
    for path in made {
        walk.move_to(path)?;
        if walk.is_patched() {
            walk.list(&mut needed);
        }
    }
    Ok(needed)
}

/// Creates the patch for these layers, the uppermost first. Returns whether it has any directory.
pub(super) fn make(sources: &[PatchSource], into: impl Fn() -> io::Result<OwnedFd>) -> io::Result<bool> {
    let needed = needed(sources)?;
    if needed.is_empty() {
        return Ok(false);
    }
    let root = into()?;
    // Create all before setting attributes, since default ACLs would be inherited.
    for path in needed.keys() {
        if let (Some(above), Some(name)) = (path.parent(), path.file_name()) {
            rustix::fs::mkdirat(open(&root, above)?, name, Mode::from_raw_mode(0o700))?;
        }
    }
    for (path, layer) in &needed {
        let source = sources.get(*layer).ok_or(io::ErrorKind::NotFound)?;
        let (original, copy) = (open(&source.tree, path)?, open(&root, path)?);
        copy_attributes(&original, &copy)?;
        let status = rustix::fs::fstat(original)?;
        let nanoseconds = status.st_mtime_nsec.try_into().unwrap_or(0);
        let last_modification = Timespec { tv_sec: status.st_mtime, tv_nsec: nanoseconds };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        rustix::fs::futimens(copy, &Timestamps { last_access, last_modification })?;
    }
    Ok(true)
}

/// Whether the lookup limit was exceeded.
pub(super) fn is_too_much(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<LookupLimit>())
}

/// Opens a directory below another; the empty path is that directory itself.
fn open(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    rustix::fs::openat2(root, path, DIRECTORY, Mode::empty(), RESOLVE)
}

fn look_up(root: &OwnedFd, path: &Path) -> io::Result<LayerLookup> {
    match open(root, path) {
        Ok(directory) => Ok(LayerLookup::Directory(directory)),
        Err(Errno::NOENT) => Ok(LayerLookup::Nothing),
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(LayerLookup::End),
        Err(errno) => Err(errno.into()),
    }
}

fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 1];
    matches!(rustix::fs::fgetxattr(directory, OPAQUE, &mut value), Ok(1)) && value == *b"y"
}

/// Copies owner, permissions and attributes.
fn copy_attributes(original: impl AsFd, copy: impl AsFd) -> io::Result<()> {
    use rustix::fs::{Gid, Uid};
    let status = rustix::fs::fstat(&original)?;
    rustix::fs::fchown(&copy, Some(Uid::from_raw(status.st_uid)), Some(Gid::from_raw(status.st_gid)))?;
    rustix::fs::fchmod(&copy, Mode::from_raw_mode(status.st_mode & 0o7777))?;
    for (name, value) in crate::xattr::all(&original)? {
        if !name.to_bytes().starts_with(OVERLAY) {
            rustix::fs::fsetxattr(&copy, &*name, &value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

// === impl MissingEntries ===

impl MissingEntries {
    /// Adds the directories of a layer. Returns whether the limit still holds.
    pub(super) fn add(&mut self, source: &PatchSource) -> bool {
        let weights = source.made.iter().map(|path| missing_weight(path.as_os_str().len()));
        self.count = self.count.saturating_add(source.made.len());
        self.weight = weights.fold(self.weight, usize::saturating_add);
        self.count <= MAX_MADE && self.weight <= MAX_MISSING
    }
}

// === impl LayerWalk ===

impl<'a> LayerWalk<'a> {
    /// Starts at the root, which all layers have.
    fn new(sources: &'a [PatchSource]) -> io::Result<Self> {
        let mut walk = Self { sources, path: PathBuf::new(), levels: Vec::new(), looks: 0 };
        let layers = (0..sources.len()).map(|layer| LayerDirectory { layer, hides: false }).collect::<Vec<_>>();
        walk.enter(OsStr::new(""), &layers)?;
        Ok(walk)
    }

    /// Moves to a path from the current one.
    fn move_to(&mut self, path: &Path) -> io::Result<()> {
        let parts: Vec<&OsStr> = path.iter().collect();
        let same = self.levels.iter().skip(1).zip(&parts).take_while(|(level, part)| level.name == **part).count();
        while self.levels.len() > same + 1 {
            self.levels.pop();
            self.path.pop();
        }
        for part in parts.get(same..).unwrap_or_default() {
            let above = self.levels.last().map(|level| level.found.clone()).unwrap_or_default();
            self.path.push(part);
            // A directory of only one layer needs no patch.
            let above = if above.len() > 1 { above.as_slice() } else { &[] };
            self.enter(part, above)?;
        }
        Ok(())
    }

    /// Enters a directory in those layers that have its parent.
    fn enter(&mut self, name: &OsStr, above: &[LayerDirectory]) -> io::Result<()> {
        let (mut found, mut from) = (Vec::new(), None);
        for LayerDirectory { layer, hides } in above {
            let Some(source) = self.sources.get(*layer) else { continue };
            self.looks += 1;
            if self.looks > MAX_LOOKS {
                return Err(io::Error::other(LookupLimit));
            }
            match look_up(&source.tree, &self.path)? {
                LayerLookup::End => break,
                LayerLookup::Nothing => {}
                LayerLookup::Directory(directory) => {
                    // An opaque directory hides the content below, not the attributes.
                    found.push(LayerDirectory { layer: *layer, hides: is_opaque(&directory) });
                    if from.is_none() && !source.made.contains(&self.path) {
                        from = Some(*layer);
                    }
                }
            }
            if *hides {
                break;
            }
        }
        self.levels.push(PatchDirectory { name: name.to_owned(), found, from, listed: false });
        Ok(())
    }

    /// Whether the current directory should get its attributes from a lower layer.
    fn is_patched(&self) -> bool {
        self.levels.last().is_some_and(|level| match (level.found.first(), level.from) {
            (Some(uppermost), Some(from)) => uppermost.layer != from,
            _ => false,
        })
    }

    /// Adds the current directory and its parents, which become visible with it.
    fn list(&mut self, needed: &mut BTreeMap<PathBuf, usize>) {
        let paths = self.path.ancestors();
        for (level, path) in self.levels.iter_mut().rev().zip(paths) {
            if std::mem::replace(&mut level.listed, true) {
                break;
            }
            let uppermost = level.found.first().map(|found| found.layer);
            needed.extend(level.from.or(uppermost).map(|layer| (path.to_owned(), layer)));
        }
    }
}
