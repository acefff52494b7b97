//! Directories over the layers of an image, which have their attributes from below.
//!
//! A layer need not have an entry for a directory in which it changes something. Such a directory was made for want of
//! one, and the overlay would show it as it was made: with the wrong owner and mode. What should be shown is the
//! directory of the layer below. So that is copied, without what is in it, to a layer that lies over all others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// What tells the overlay that a directory hides those below it.
const OPAQUE: &str = "user.overlay.opaque";
/// Attributes that begin so are the overlay's own.
const OVERLAY: &[u8] = b"user.overlay.";

/// A layer, as far as it is of interest here.
pub(super) struct Sheet {
    pub(super) tree: OwnedFd,
    /// Directories without an entry of their own.
    pub(super) made: HashSet<PathBuf>,
}

/// What a layer has at a path.
enum Look {
    /// Nothing; whether what lies below is hidden.
    Nothing { hidden: bool },
    /// Something that ends the path: it is taken away, or is no directory.
    End,
    /// A directory; whether what lies below is hidden.
    Directory { handle: OwnedFd, hidden: bool },
}

/// The directory that is to be shown at a path.
struct Shown {
    /// The layer that it has its attributes from.
    layer: usize,
    /// Whether that is not the uppermost.
    patched: bool,
}

/// The directories that are to lie over these layers, the uppermost of which is the first, with the layer that each is
/// copied from.
fn needed(sheets: &[Sheet]) -> io::Result<BTreeMap<PathBuf, usize>> {
    let made: BTreeSet<&PathBuf> = sheets.iter().flat_map(|sheet| &sheet.made).collect();
    let mut needed = BTreeMap::new();
    for path in made {
        match shown(sheets, path)? {
            Some(shown) if shown.patched => {
                needed.insert(path.clone(), shown.layer);
            }
            _ => {}
        }
    }
    // What leads there is seen too.
    let above: BTreeSet<PathBuf> =
        needed.keys().flat_map(|path| path.ancestors().skip(1)).map(Path::to_owned).collect();
    for path in above {
        if let Some(shown) = shown(sheets, &path)? {
            needed.entry(path).or_insert(shown.layer);
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
    let original =
        |path: &Path, layer: usize| match sheets.get(layer).map(|sheet| look(&sheet.tree, path)).transpose()? {
            Some(Look::Directory { handle, .. }) => Ok(handle),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
    // All are there before any has attributes, some of which would be handed on to what is made in it.
    for path in needed.keys() {
        descend(&root, path)?;
    }
    for (path, layer) in &needed {
        let original = original(path, *layer)?;
        copy_attributes(&original, descend(&root, path)?)?;
        let status = rustix::fs::fstat(original)?;
        let nanoseconds = status.st_mtime_nsec.try_into().unwrap_or(0);
        let last_modification = Timespec { tv_sec: status.st_mtime, tv_nsec: nanoseconds };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        rustix::fs::futimens(descend(&root, path)?, &Timestamps { last_access, last_modification })?;
    }
    Ok(true)
}

/// The directory that is to be shown at a path: the uppermost that has an entry, unless something ends the path before.
fn shown(sheets: &[Sheet], path: &Path) -> io::Result<Option<Shown>> {
    let mut uppermost = None;
    for (layer, sheet) in sheets.iter().enumerate() {
        let hidden = match look(&sheet.tree, path)? {
            Look::End => break,
            Look::Nothing { hidden } => hidden,
            Look::Directory { .. } if !sheet.made.contains(path) => {
                return Ok(Some(Shown { layer, patched: uppermost.is_some() }));
            }
            Look::Directory { hidden, .. } => {
                uppermost.get_or_insert(layer);
                hidden
            }
        };
        if hidden {
            break;
        }
    }
    Ok(uppermost.map(|layer| Shown { layer, patched: false }))
}

fn look(tree: &OwnedFd, path: &Path) -> io::Result<Look> {
    let mut handle = rustix::io::fcntl_dupfd_cloexec(tree, 3)?;
    let mut hidden = false;
    for name in path.components() {
        let Component::Normal(name) = name else { return Ok(Look::End) };
        hidden |= is_opaque(&handle);
        handle = match rustix::fs::openat(&handle, name, DIRECTORY, Mode::empty()) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Ok(Look::Nothing { hidden }),
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Look::End),
            Err(errno) => return Err(errno.into()),
        };
    }
    // That a directory hides what is in those below does not change that it is the same directory.
    Ok(Look::Directory { handle, hidden })
}

/// Whether a directory hides those below it.
fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 1];
    matches!(rustix::fs::fgetxattr(directory, OPAQUE, &mut value), Ok(1)) && value == *b"y"
}

/// Opens a directory, of which all that lead to it are there.
fn descend(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mut handle = rustix::io::fcntl_dupfd_cloexec(root, 3)?;
    for name in path.components().map(Component::as_os_str) {
        match rustix::fs::mkdirat(&handle, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        handle = rustix::fs::openat(&handle, name, DIRECTORY, Mode::empty())?;
    }
    Ok(handle)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    struct Layers(tempfile::TempDir);

    impl Layers {
        fn directory(&self, layer: usize, path: &str, mode: u32) {
            let at = self.0.path().join(layer.to_string()).join(path);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::set_permissions(at, std::fs::Permissions::from_mode(mode)).unwrap();
        }

        fn opaque(&self, layer: usize, path: &str) {
            let at = self.0.path().join(layer.to_string()).join(path);
            rustix::fs::setxattr(at, OPAQUE, b"y", XattrFlags::empty()).unwrap();
        }

        /// The modes of what lies over layers of which these are made for want of an entry.
        fn patch(&self, made: &[&[&str]]) -> BTreeMap<String, u32> {
            let sheet = |(layer, made): (usize, &&[&str])| Sheet {
                tree: OwnedFd::from(std::fs::File::open(self.0.path().join(layer.to_string())).unwrap()),
                made: made.iter().map(PathBuf::from).collect(),
            };
            let sheets: Vec<_> = made.iter().enumerate().map(sheet).collect();
            let at = self.0.path().join("patch");
            let made = make(&sheets, || {
                std::fs::create_dir(&at)?;
                Ok(std::fs::File::open(&at)?.into())
            });
            let mut found = BTreeMap::new();
            let mut waiting = if made.unwrap() { vec![at.clone()] } else { Vec::new() };
            while let Some(path) = waiting.pop() {
                waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                let name = path.strip_prefix(&at).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::metadata(&path).unwrap().mode() & 0o7777);
            }
            found
        }
    }

    fn layers() -> Layers {
        Layers(tempfile::tempdir().unwrap())
    }

    fn modes(modes: &[(&str, u32)]) -> BTreeMap<String, u32> {
        modes.iter().map(|(path, mode)| ((*path).to_owned(), *mode)).collect()
    }

    #[test]
    fn a_directory_without_an_entry_has_the_attributes_of_the_one_below() {
        let layers = layers();
        layers.directory(0, "a/b", 0o755);
        layers.directory(1, "a/b", 0o700);
        layers.directory(1, "a", 0o711);
        assert_eq!(layers.patch(&[&["a/b"], &[]]), modes(&[("", 0o755), ("a", 0o755), ("a/b", 0o700)]));
    }

    #[test]
    fn nothing_is_made_where_nothing_is_hidden() {
        let layers = layers();
        layers.directory(0, "a", 0o755);
        layers.directory(0, "new", 0o755);
        layers.directory(1, "a", 0o700);
        // The upper one has an entry; what is new has none below.
        assert_eq!(layers.patch(&[&["new"], &["a"]]), modes(&[]));
    }

    #[test]
    fn what_was_taken_away_between_lends_no_attributes() {
        let layers = layers();
        layers.directory(0, "a", 0o755);
        layers.directory(1, "", 0o755);
        let device = layers.0.path().join("1/a");
        rustix::fs::mknodat(rustix::fs::CWD, &device, rustix::fs::FileType::CharacterDevice, 0o600.into(), 0).unwrap();
        layers.directory(2, "a", 0o700);
        assert_eq!(layers.patch(&[&["a"], &[], &[]]), modes(&[]));
        // Without that it does.
        std::fs::remove_file(device).unwrap();
        assert_eq!(layers.patch(&[&["a"], &[], &[]]), modes(&[("", 0o755), ("a", 0o700)]));
    }

    #[test]
    fn a_directory_that_hides_those_below_hides_what_is_in_it_but_not_its_own_attributes() {
        let layers = layers();
        layers.directory(0, "a/b", 0o755);
        layers.directory(1, "a/b", 0o750);
        layers.directory(1, "a", 0o711);
        layers.opaque(0, "a");
        assert_eq!(layers.patch(&[&["a", "a/b"], &[]]), modes(&[("", 0o755), ("a", 0o711)]));
    }
}
