//! Directories over the layers of an image, which have their attributes from below.
//!
//! A layer need not have an entry for a directory in which it changes something. Such a directory was made for want of
//! one, and the overlay would show it as it was made: with the wrong owner and mode. What should be shown is the
//! directory of the layer below. So that is copied, without what is in it, to a layer that lies over all others.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;

use crate::archive::{MOST_MISSING, missing_weight};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// No name leads anywhere but to what has it.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// What tells the overlay that a directory hides those below it.
const OPAQUE: &str = "user.overlay.opaque";
/// Attributes that begin so are the overlay's own.
const OVERLAY: &[u8] = b"user.overlay.";
/// The most directories without an entry that all layers of an image may have.
const MOST_MADE: usize = 100_000;
/// The most directories that are looked for in a layer.
const MOST_LOOKS: usize = 4_000_000;

/// A layer, as far as it is of interest here.
pub(super) struct Sheet {
    pub(super) tree: OwnedFd,
    /// Directories without an entry of their own.
    pub(super) made: HashSet<PathBuf>,
}

/// The directories without an entry of all layers, counted.
#[derive(Default)]
pub(super) struct Made {
    count: usize,
    weight: usize,
}

/// That it takes too long to find out what is to be shown.
#[derive(Debug, thiserror::Error)]
#[error("too many directories have no entry of their own")]
struct TooMuch;

/// A walk through all layers at once, and the directories that lead to where it is.
struct Walk<'a> {
    sheets: &'a [Sheet],
    path: PathBuf,
    levels: Vec<Level>,
    looks: usize,
}

/// A directory of some layers.
struct Level {
    name: OsString,
    /// The layers that have it, the uppermost first, as far down as they can be seen.
    found: Vec<Found>,
    /// The layer that it has its attributes from: the uppermost that has an entry for it.
    from: Option<usize>,
    /// Whether it is to lie over the layers.
    listed: bool,
}

/// A directory of a layer.
#[derive(Clone, Copy)]
struct Found {
    layer: usize,
    /// Whether it hides what the layers below have in theirs.
    hides: bool,
}

/// What a layer has at a path.
enum Look {
    Nothing,
    /// Something that ends the path: it is taken away, or is no directory.
    End,
    Directory(OwnedFd),
}

/// The directories that are to lie over these layers, the uppermost of which is the first, with the layer that each is
/// copied from.
fn needed(sheets: &[Sheet]) -> io::Result<BTreeMap<PathBuf, usize>> {
    // In this order all that is in a directory follows it.
    let made: BTreeSet<&Path> = sheets.iter().flat_map(|sheet| &sheet.made).map(PathBuf::as_path).collect();
    let (mut needed, mut walk) = (BTreeMap::new(), Walk::new(sheets)?);
    for path in made {
        walk.go(path)?;
        if walk.is_patched() {
            walk.list(&mut needed);
        }
    }
    Ok(needed)
}

/// Makes the directories that are to lie over these layers, the uppermost of which is the first. Whether there are any.
pub(super) fn make(sheets: &[Sheet], into: impl Fn() -> io::Result<OwnedFd>) -> io::Result<bool> {
    let needed = needed(sheets)?;
    if needed.is_empty() {
        return Ok(false);
    }
    let root = into()?;
    // All are there before any has attributes, some of which would be handed on to what is made in it.
    for path in needed.keys() {
        if let (Some(above), Some(name)) = (path.parent(), path.file_name()) {
            rustix::fs::mkdirat(open(&root, above)?, name, Mode::from_raw_mode(0o700))?;
        }
    }
    for (path, layer) in &needed {
        let sheet = sheets.get(*layer).ok_or(io::ErrorKind::NotFound)?;
        let (original, copy) = (open(&sheet.tree, path)?, open(&root, path)?);
        copy_attributes(&original, &copy)?;
        let status = rustix::fs::fstat(original)?;
        let nanoseconds = status.st_mtime_nsec.try_into().unwrap_or(0);
        let last_modification = Timespec { tv_sec: status.st_mtime, tv_nsec: nanoseconds };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        rustix::fs::futimens(copy, &Timestamps { last_access, last_modification })?;
    }
    Ok(true)
}

/// Whether it is the image that asks for too much.
pub(super) fn is_too_much(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<TooMuch>())
}

/// Opens a directory beneath another; without a path that itself.
fn open(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    rustix::fs::openat2(root, path, DIRECTORY, Mode::empty(), RESOLVE)
}

fn look(root: &OwnedFd, path: &Path) -> io::Result<Look> {
    match open(root, path) {
        Ok(directory) => Ok(Look::Directory(directory)),
        Err(Errno::NOENT) => Ok(Look::Nothing),
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(Look::End),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a directory hides those below it.
fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 1];
    matches!(rustix::fs::fgetxattr(directory, OPAQUE, &mut value), Ok(1)) && value == *b"y"
}

/// Gives a directory the owner, the permissions and the attributes of another.
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

// === impl Made ===

impl Made {
    /// Counts those of a layer. Whether there are not too many.
    pub(super) fn add(&mut self, sheet: &Sheet) -> bool {
        let weights = sheet.made.iter().map(|path| missing_weight(path.as_os_str().len()));
        self.count = self.count.saturating_add(sheet.made.len());
        self.weight = weights.fold(self.weight, usize::saturating_add);
        self.count <= MOST_MADE && self.weight <= MOST_MISSING
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    /// Begins at the root, which all layers have.
    fn new(sheets: &'a [Sheet]) -> io::Result<Self> {
        let mut walk = Self { sheets, path: PathBuf::new(), levels: Vec::new(), looks: 0 };
        let layers = (0..sheets.len()).map(|layer| Found { layer, hides: false }).collect::<Vec<_>>();
        walk.enter(OsStr::new(""), &layers)?;
        Ok(walk)
    }

    /// Goes to a path, from the directories that lead there already.
    fn go(&mut self, path: &Path) -> io::Result<()> {
        let parts: Vec<&OsStr> = path.iter().collect();
        let same = self.levels.iter().skip(1).zip(&parts).take_while(|(level, part)| level.name == **part).count();
        while self.levels.len() > same + 1 {
            self.levels.pop();
            self.path.pop();
        }
        for part in parts.get(same..).unwrap_or_default() {
            let above = self.levels.last().map(|level| level.found.clone()).unwrap_or_default();
            self.path.push(part);
            // What one layer alone has, it shows as it has it.
            let above = if above.len() > 1 { above.as_slice() } else { &[] };
            self.enter(part, above)?;
        }
        Ok(())
    }

    /// Enters a directory of those layers that have the one above it.
    fn enter(&mut self, name: &OsStr, above: &[Found]) -> io::Result<()> {
        let (mut found, mut from) = (Vec::new(), None);
        for Found { layer, hides } in above {
            let Some(sheet) = self.sheets.get(*layer) else { continue };
            self.looks += 1;
            if self.looks > MOST_LOOKS {
                return Err(io::Error::other(TooMuch));
            }
            match look(&sheet.tree, &self.path)? {
                Look::End => break,
                Look::Nothing => {}
                Look::Directory(directory) => {
                    // That a directory hides what is in those below does not change that it is the same directory.
                    found.push(Found { layer: *layer, hides: is_opaque(&directory) });
                    if from.is_none() && !sheet.made.contains(&self.path) {
                        from = Some(*layer);
                    }
                }
            }
            if *hides {
                break;
            }
        }
        self.levels.push(Level { name: name.to_owned(), found, from, listed: false });
        Ok(())
    }

    /// Whether the uppermost directory here has its attributes from another.
    fn is_patched(&self) -> bool {
        self.levels.last().is_some_and(|level| match (level.found.first(), level.from) {
            (Some(uppermost), Some(from)) => uppermost.layer != from,
            _ => false,
        })
    }

    /// Lists the directory here, and what leads to it: that is seen, too.
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
