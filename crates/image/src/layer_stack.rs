//! Reads from a stack of overlay layers without mounting them.
//!
//! It follows the rules of overlayfs: the uppermost layer wins, directories with the same path merge, and a character
//! device 0:0 (whiteout) or an opaque directory hides what is below. All lookups use directory handles: no symlink
//! leads out of the layers, and mounts inside a layer are not entered.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::GuestPath;

/// The attribute of an opaque directory in a user namespace.
const OPAQUE: &str = "user.overlay.opaque";
/// The kernel's own limit of symlinks in one path lookup.
const MAX_SYMLINKS: usize = 40;

/// Open layer directories, the uppermost first.
#[derive(Debug)]
pub struct LayerStack {
    root: MergedDirectory,
}

/// The directories of all layers that merge at one path, the uppermost first.
#[derive(Debug)]
struct MergedDirectory(Vec<OwnedFd>);

enum StackEntry {
    Directory(MergedDirectory),
    Other(OwnedFd, Stat),
}

/// The result of a path lookup.
enum PathLookup {
    Existing(StackEntry),
    /// The path is the root itself.
    Root,
    /// Missing has this name.
    Missing,
    /// A component is not a directory, or `..` follows a missing component.
    Blocked,
}

/// A directory path with all symlinks resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedDirectory {
    /// Free of symlinks.
    pub path: GuestPath,
    pub exists: bool,
}

/// Whether a symlink as the last component is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FinalSymlink {
    NoFollow,
    Follow,
}

// === impl LayerStack ===

impl LayerStack {
    /// Opens layer directories, the uppermost first.
    pub fn open(layers: &[PathBuf]) -> std::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |layer: &PathBuf| rustix::fs::open(layer, flags, Mode::empty());
        Ok(Self { root: MergedDirectory(layers.iter().map(open).collect::<Result<_, _>>()?) })
    }

    /// Reads a regular file and follows symlinks; at most one byte more than `limit`, so that a larger file is noticed.
    pub fn read(&self, path: &GuestPath, limit: u64) -> Option<Vec<u8>> {
        let Ok(Some(StackEntry::Other(file, stat))) = self.find(path.as_path(), FinalSymlink::Follow) else {
            return None;
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let mut bytes = Vec::new();
        reopen(&file)?.take(limit + 1).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Whether anything exists at a path; a symlink counts, whatever its target.
    pub fn has(&self, path: &GuestPath) -> bool {
        self.find(path.as_path(), FinalSymlink::NoFollow).is_ok_and(|found| found.is_some())
    }

    /// Resolves the path of a directory that exists or could be created; `None` if neither.
    pub fn resolve_directory(&self, path: &GuestPath) -> Option<ResolvedDirectory> {
        let mut resolved = PathBuf::new();
        let exists = match self.lookup(path.as_path(), FinalSymlink::Follow, &mut resolved).ok()? {
            PathLookup::Existing(StackEntry::Directory(_)) => true,
            PathLookup::Missing => false,
            PathLookup::Existing(StackEntry::Other(..)) | PathLookup::Root | PathLookup::Blocked => return None,
        };
        Some(ResolvedDirectory { path: GuestPath::new(resolved).ok()?, exists })
    }

    fn find(&self, path: &Path, last: FinalSymlink) -> Result<Option<StackEntry>, Errno> {
        Ok(match self.lookup(path, last, &mut PathBuf::new())? {
            PathLookup::Existing(entry) => Some(entry),
            PathLookup::Root | PathLookup::Missing | PathLookup::Blocked => None,
        })
    }

    /// Looks up a path. `resolved` gets the path without symlinks, if the result is a directory or missing.
    fn lookup(&self, path: &Path, last: FinalSymlink, resolved: &mut PathBuf) -> Result<PathLookup, Errno> {
        let mut left: VecDeque<OsString> = parts(path).collect();
        let (mut above, mut links): (Vec<MergedDirectory>, usize) = (Vec::new(), 0);
        while let Some(name) = left.pop_front() {
            if name == ".." {
                // `..` in the root is the root.
                above.pop();
                resolved.pop();
                continue;
            }
            match above.last().unwrap_or(&self.root).get(&name)? {
                None if left.iter().any(|part| part == "..") => return Ok(PathLookup::Blocked),
                None => {
                    resolved.push(name);
                    resolved.extend(left);
                    return Ok(PathLookup::Missing);
                }
                Some(StackEntry::Directory(directory)) => {
                    above.push(directory);
                    resolved.push(name);
                }
                Some(StackEntry::Other(file, stat)) => {
                    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
                    if !is_link || (left.is_empty() && last == FinalSymlink::NoFollow) {
                        let is_last = left.is_empty();
                        return Ok(if is_last {
                            PathLookup::Existing(StackEntry::Other(file, stat))
                        } else {
                            PathLookup::Blocked
                        });
                    }
                    links += 1;
                    if links > MAX_SYMLINKS {
                        return Err(Errno::LOOP);
                    }
                    let target = rustix::fs::readlinkat(&file, c"", Vec::new())?;
                    let target = Path::new(OsStr::from_bytes(target.to_bytes()));
                    if target.is_absolute() {
                        above.clear();
                        resolved.clear();
                    }
                    for part in parts(target).collect::<Vec<_>>().into_iter().rev() {
                        left.push_front(part);
                    }
                }
            }
        }
        Ok(above.pop().map_or(PathLookup::Root, |directory| PathLookup::Existing(StackEntry::Directory(directory))))
    }
}

/// The components of a path that move the lookup.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

/// Reopens an `O_PATH` descriptor for reading.
fn reopen(file: &OwnedFd) -> Option<std::fs::File> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags, Mode::empty()).ok().map(Into::into)
}

// === impl MergedDirectory ===

impl MergedDirectory {
    /// Looks up one name in the merged directory.
    fn get(&self, name: &OsStr) -> Result<Option<StackEntry>, Errno> {
        let mut directories = Vec::new();
        for layer in &self.0 {
            let file = match open_beneath(layer, name, OFlags::PATH | OFlags::NOFOLLOW) {
                Ok(file) => file,
                Err(Errno::NOENT | Errno::XDEV) => continue,
                Err(errno) => return Err(errno),
            };
            let stat = rustix::fs::fstat(&file)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let directory = open_beneath(&file, OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
                    let is_last = is_opaque(&directory);
                    directories.push(directory);
                    if is_last {
                        break;
                    }
                }
                // A whiteout hides what is below it.
                FileType::CharacterDevice if stat.st_rdev == 0 => break,
                _ if directories.is_empty() => return Ok(Some(StackEntry::Other(file, stat))),
                _ => break,
            }
        }
        Ok((!directories.is_empty()).then_some(StackEntry::Directory(Self(directories))))
    }
}

/// Opens one name without following symlinks or crossing mounts.
fn open_beneath(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(directory, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 2];
    rustix::fs::fgetxattr(directory, OPAQUE, &mut value).is_ok_and(|length| value.get(..length) == Some(b"y"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, XattrFlags};

    use super::*;

    /// Layer directories, the uppermost first.
    struct TestLayers(#[allow(dead_code)] tempfile::TempDir, Vec<PathBuf>);

    impl TestLayers {
        fn new(count: usize) -> Self {
            let directory = tempfile::tempdir_in("/var/tmp").unwrap();
            let layers: Vec<PathBuf> = (0..count).map(|number| directory.path().join(number.to_string())).collect();
            layers.iter().for_each(|layer| std::fs::create_dir(layer).unwrap());
            Self(directory, layers)
        }

        fn put(&self, layer: usize, path: &str, content: &str) {
            let path = self.1[layer].join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }

        fn hide(&self, layer: usize, path: &str) {
            let path = self.1[layer].join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }

        fn opaque(&self, layer: usize, path: &str) {
            let path = self.1[layer].join(path);
            std::fs::create_dir_all(&path).unwrap();
            rustix::fs::setxattr(path, OPAQUE, b"y", XattrFlags::empty()).unwrap();
        }

        fn link(&self, layer: usize, path: &str, target: &str) {
            let path = self.1[layer].join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }

        fn read(&self, path: &str) -> Option<String> {
            let bytes = LayerStack::open(&self.1).unwrap().read(&GuestPath::new(path).unwrap(), 100)?;
            Some(String::from_utf8(bytes).unwrap())
        }

        fn has(&self, path: &str) -> bool {
            LayerStack::open(&self.1).unwrap().has(&GuestPath::new(path).unwrap())
        }
    }

    #[test]
    fn the_uppermost_layer_wins_and_directories_merge() {
        let layers = TestLayers::new(3);
        layers.put(2, "etc/passwd", "lowest");
        layers.put(1, "etc/passwd", "middle");
        layers.put(0, "etc/group", "upper");
        layers.put(2, "etc/hosts", "hosts");
        assert_eq!(layers.read("etc/passwd").as_deref(), Some("middle"));
        assert_eq!(layers.read("etc/hosts").as_deref(), Some("hosts"));
        assert_eq!((layers.read("etc"), layers.read("etc/nothing")), (None, None));
        assert!(layers.has("etc") && layers.has("etc/group") && !layers.has("etc/group/x") && !layers.has("var"));
    }

    #[test]
    fn whiteouts_and_opaque_directories_hide_lower_layers_at_any_depth() {
        let layers = TestLayers::new(3);
        for path in ["gone", "dir/gone", "opaque/below", "file/below", "back/old"] {
            layers.put(2, path, "lowest");
        }
        for path in ["gone", "dir/gone", "back"] {
            layers.hide(1, path);
        }
        layers.opaque(1, "opaque");
        layers.put(1, "opaque/own", "own");
        layers.put(1, "file", "over a directory");
        layers.put(0, "back/new", "again");
        for hidden in ["gone", "dir/gone", "opaque/below", "file/below", "back/old"] {
            assert!(!layers.has(hidden) && layers.read(hidden).is_none(), "{hidden}");
        }
        assert!(layers.has("dir"));
        assert_eq!(layers.read("opaque/own").as_deref(), Some("own"));
        assert_eq!(layers.read("back/new").as_deref(), Some("again"));
    }

    #[test]
    fn symlinks_resolve_across_layers_and_never_leave_them() {
        let layers = TestLayers::new(2);
        layers.link(0, "etc/passwd", "../usr/lib/passwd");
        layers.put(1, "usr/lib/passwd", "found");
        layers.link(0, "lib", "/usr/lib");
        layers.link(1, "out", "../../../../../../../../etc/hostname");
        layers.link(1, "round", "round");
        assert_eq!(layers.read("etc/passwd").as_deref(), Some("found"));
        assert_eq!(layers.read("lib/passwd").as_deref(), Some("found"));
        assert_eq!(layers.read("out"), None);
        assert!(layers.has("out") && layers.has("round"), "a symlink exists whatever its target");
        assert_eq!(layers.read("round"), None);
        layers.put(1, "etc/hostname", "inside");
        assert_eq!(layers.read("out").as_deref(), Some("inside"), "`..` in the root is the root");
    }
    #[test]
    fn a_directory_path_is_resolved_through_symlinks_whether_it_exists_or_not() {
        let layers = TestLayers::new(2);
        layers.link(1, "var/run", "/run");
        layers.put(1, "run/there/file", "");
        layers.link(0, "lib", "usr/lib");
        layers.put(1, "usr/lib/file", "");
        layers.link(0, "app", "/srv/app");
        layers.link(0, "odd", "missing/../x");
        layers.link(0, "top", "/");
        layers.link(0, "round", "round");
        let stacked = LayerStack::open(&layers.1).unwrap();
        let found = |path: &str| {
            let found = stacked.resolve_directory(&GuestPath::new(path).unwrap())?;
            Some((found.path.as_path().to_str().unwrap().to_owned(), found.exists))
        };
        let at = |path: &str, exists| Some((path.to_owned(), exists));
        assert_eq!(found("var/run/app/deep"), at("run/app/deep", false));
        assert_eq!(found("var/run/there"), at("run/there", true));
        assert_eq!(found("lib/x"), at("usr/lib/x", false));
        assert_eq!(found("app"), at("srv/app", false), "a dangling symlink resolves to the missing target");
        assert_eq!(found("plain/new"), at("plain/new", false));
        for nowhere in ["odd", "top", "round", "usr/lib/file", "usr/lib/file/below"] {
            assert_eq!(found(nowhere), None, "{nowhere}");
        }
    }
}
