//! What is seen in layers that lie over one another, before an overlay shows them as one.
//!
//! The rules are those of the kernel: the uppermost wins, directories of the same path are one, a character device 0:0
//! hides what is below it, and so does a directory that is marked as opaque. Everything goes by handles: no link leads
//! out of the layers, and what is mounted in one is not seen.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::GuestPath;

/// The mark of a directory that hides what is below it, in a user namespace.
const OPAQUE: &str = "user.overlay.opaque";
/// So many links are followed on one way.
const MOST_LINKS: usize = 40;

/// Layers that lie over one another, open; the uppermost first.
#[derive(Debug)]
pub struct Stacked {
    root: Directory,
}

/// A directory: those of all layers that are one with it, the uppermost first.
#[derive(Debug)]
struct Directory(Vec<OwnedFd>);

/// What has a name in a directory.
enum Entry {
    Directory(Directory),
    Other(OwnedFd, Stat),
}

/// Where a path leads to.
enum Way {
    /// To something that is there.
    There(Entry),
    /// To the root itself.
    Root,
    /// To nothing.
    Nothing,
    /// Nowhere: something on it is no directory, or it is above what is not there.
    Blocked,
}

/// Where a directory is, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Its path, which has no links in it.
    pub path: GuestPath,
    /// Whether it is there.
    pub is_there: bool,
}

/// Whether a link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Link,
    Followed,
}

// === impl Stacked ===

impl Stacked {
    /// Opens layers, the uppermost first.
    pub fn open(layers: &[PathBuf]) -> std::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |layer: &PathBuf| rustix::fs::open(layer, flags, Mode::empty());
        Ok(Self { root: Directory(layers.iter().map(open).collect::<Result<_, _>>()?) })
    }

    /// The content of a regular file, one byte more than `most` at most; links are followed.
    pub fn read(&self, path: &GuestPath, most: u64) -> Option<Vec<u8>> {
        let Ok(Some(Entry::Other(file, stat))) = self.find(path.as_path(), Last::Followed) else { return None };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let mut bytes = Vec::new();
        reopened(&file)?.take(most + 1).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Whether there is something at a path, whatever it is.
    pub fn has(&self, path: &GuestPath) -> bool {
        self.find(path.as_path(), Last::Link).is_ok_and(|found| found.is_some())
    }

    /// Where the directory of a path is, or would be, with all links followed; none if there can be none.
    pub fn whereabouts(&self, path: &GuestPath) -> Option<Whereabouts> {
        let mut walked = PathBuf::new();
        let is_there = match self.walk(path.as_path(), Last::Followed, &mut walked).ok()? {
            Way::There(Entry::Directory(_)) => true,
            Way::Nothing => false,
            Way::There(Entry::Other(..)) | Way::Root | Way::Blocked => return None,
        };
        Some(Whereabouts { path: GuestPath::new(walked).ok()?, is_there })
    }

    fn find(&self, path: &Path, last: Last) -> Result<Option<Entry>, Errno> {
        Ok(match self.walk(path, last, &mut PathBuf::new())? {
            Way::There(entry) => Some(entry),
            Way::Root | Way::Nothing | Way::Blocked => None,
        })
    }

    /// Goes along a path; `walked` is then the same without links, for a directory and for nothing.
    fn walk(&self, path: &Path, last: Last, walked: &mut PathBuf) -> Result<Way, Errno> {
        let mut left: VecDeque<OsString> = parts(path).collect();
        let (mut above, mut links): (Vec<Directory>, usize) = (Vec::new(), 0);
        while let Some(name) = left.pop_front() {
            if name == ".." {
                // The root is above itself.
                above.pop();
                walked.pop();
                continue;
            }
            match above.last().unwrap_or(&self.root).get(&name)? {
                None if left.iter().any(|part| part == "..") => return Ok(Way::Blocked),
                None => {
                    walked.push(name);
                    walked.extend(left);
                    return Ok(Way::Nothing);
                }
                Some(Entry::Directory(directory)) => {
                    above.push(directory);
                    walked.push(name);
                }
                Some(Entry::Other(file, stat)) => {
                    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
                    if !is_link || (left.is_empty() && last == Last::Link) {
                        let is_last = left.is_empty();
                        return Ok(if is_last { Way::There(Entry::Other(file, stat)) } else { Way::Blocked });
                    }
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(Errno::LOOP);
                    }
                    let target = rustix::fs::readlinkat(&file, c"", Vec::new())?;
                    let target = Path::new(OsStr::from_bytes(target.to_bytes()));
                    if target.is_absolute() {
                        above.clear();
                        walked.clear();
                    }
                    for part in parts(target).collect::<Vec<_>>().into_iter().rev() {
                        left.push_front(part);
                    }
                }
            }
        }
        Ok(above.pop().map_or(Way::Root, |directory| Way::There(Entry::Directory(directory))))
    }
}

/// The parts of a path that lead somewhere.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

/// A file that is open only to be named, open to be read.
fn reopened(file: &OwnedFd) -> Option<std::fs::File> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags, Mode::empty()).ok().map(Into::into)
}

// === impl Directory ===

impl Directory {
    /// What has a name in it.
    fn get(&self, name: &OsStr) -> Result<Option<Entry>, Errno> {
        let mut directories = Vec::new();
        for layer in &self.0 {
            let file = match alone(layer, name, OFlags::PATH | OFlags::NOFOLLOW) {
                Ok(file) => file,
                Err(Errno::NOENT | Errno::XDEV) => continue,
                Err(errno) => return Err(errno),
            };
            let stat = rustix::fs::fstat(&file)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let directory = alone(&file, OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
                    let is_last = is_opaque(&directory);
                    directories.push(directory);
                    if is_last {
                        break;
                    }
                }
                // It hides all that is below it, and is not seen itself.
                FileType::CharacterDevice if stat.st_rdev == 0 => break,
                _ if directories.is_empty() => return Ok(Some(Entry::Other(file, stat))),
                _ => break,
            }
        }
        Ok((!directories.is_empty()).then_some(Entry::Directory(Self(directories))))
    }
}

/// Opens one name, and nothing that it leads to.
fn alone(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
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

    /// Layers, the uppermost first.
    struct Layers(#[allow(dead_code)] tempfile::TempDir, Vec<PathBuf>);

    impl Layers {
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
            let bytes = Stacked::open(&self.1).unwrap().read(&GuestPath::new(path).unwrap(), 100)?;
            Some(String::from_utf8(bytes).unwrap())
        }

        fn has(&self, path: &str) -> bool {
            Stacked::open(&self.1).unwrap().has(&GuestPath::new(path).unwrap())
        }
    }

    #[test]
    fn the_uppermost_wins_and_directories_are_one() {
        let layers = Layers::new(3);
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
    fn what_is_hidden_is_not_seen_however_deep_it_is() {
        let layers = Layers::new(3);
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
    fn links_lead_through_all_layers_and_never_out() {
        let layers = Layers::new(2);
        layers.link(0, "etc/passwd", "../usr/lib/passwd");
        layers.put(1, "usr/lib/passwd", "found");
        layers.link(0, "lib", "/usr/lib");
        layers.link(1, "out", "../../../../../../../../etc/hostname");
        layers.link(1, "round", "round");
        assert_eq!(layers.read("etc/passwd").as_deref(), Some("found"));
        assert_eq!(layers.read("lib/passwd").as_deref(), Some("found"));
        assert_eq!(layers.read("out"), None);
        assert!(layers.has("out") && layers.has("round"), "a link is there whatever it leads to");
        assert_eq!(layers.read("round"), None);
        layers.put(1, "etc/hostname", "inside");
        assert_eq!(layers.read("out").as_deref(), Some("inside"), "above the root is the root");
    }
    #[test]
    fn a_directory_is_where_links_lead_whether_it_is_there_or_not() {
        let layers = Layers::new(2);
        layers.link(1, "var/run", "/run");
        layers.put(1, "run/there/file", "");
        layers.link(0, "lib", "usr/lib");
        layers.put(1, "usr/lib/file", "");
        layers.link(0, "app", "/srv/app");
        layers.link(0, "odd", "missing/../x");
        layers.link(0, "top", "/");
        layers.link(0, "round", "round");
        let stacked = Stacked::open(&layers.1).unwrap();
        let found = |path: &str| {
            let found = stacked.whereabouts(&GuestPath::new(path).unwrap())?;
            Some((found.path.as_path().to_str().unwrap().to_owned(), found.is_there))
        };
        let at = |path: &str, is_there| Some((path.to_owned(), is_there));
        assert_eq!(found("var/run/app/deep"), at("run/app/deep", false));
        assert_eq!(found("var/run/there"), at("run/there", true));
        assert_eq!(found("lib/x"), at("usr/lib/x", false));
        assert_eq!(found("app"), at("srv/app", false), "a link that leads to nothing says where it would be");
        assert_eq!(found("plain/new"), at("plain/new", false));
        for nowhere in ["odd", "top", "round", "usr/lib/file", "usr/lib/file/below"] {
            assert_eq!(found(nowhere), None, "{nowhere}");
        }
    }
}
