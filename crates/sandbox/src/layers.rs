//! The layers of an image with as few mounts as possible: layers of one store share a mount.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::host_tree::{failed, idmap_error, is_directory, open_no_symlinks, refuse_host_root};
use crate::launch::LaunchError;
use crate::request_error::MountError;
use crate::{mount, sys};

/// How many levels above a layer its mount may start. A store has its layers that deep; otherwise only the layer is mounted.
const MAX_DEPTH: usize = 3;
/// The longest path below a mount: the kernel's limit for a mount option is 255 bytes.
const MAX_PATH_LENGTH: usize = 200;

/// The layers, uppermost first, and their mounts.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    mounts: Vec<LayerMount>,
    locations: Vec<LayerLocation>,
}

/// A detached mount of one or more layers.
#[derive(Debug)]
struct LayerMount {
    mount: OwnedFd,
    path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerLocation {
    /// The index of its mount.
    pub(crate) mount: usize,
    /// The path below the mount; empty for the mount itself.
    pub(crate) path: PathBuf,
}

/// The start of a mount, and its layers.
#[derive(Debug, PartialEq, Eq)]
struct LayerGroup<'a> {
    above: &'a Path,
    layers: Vec<usize>,
}

// === impl Layers ===

impl Layers {
    /// Opens the layers of an image, without the mounts below them: an overlay layer is one file system. If an identity is
    /// given, the uppermost layer must have it.
    pub(crate) fn open(paths: &[PathBuf], identity: Option<(u64, u64)>) -> Result<Self, MountError> {
        let mut layers = Self::default();
        if let (Some(identity), [path, below @ ..]) = (identity, paths) {
            return layers.with(path, identity, below);
        }
        let mut locations = vec![None; paths.len()];
        for group in groups(paths) {
            let number = layers.mounts.len();
            let above = open_no_symlinks(group.above).map_err(failed(group.above))?;
            for layer in group.layers {
                let Some((path, place)) = paths.get(layer).zip(locations.get_mut(layer)) else { continue };
                let below = path.strip_prefix(group.above).unwrap_or(Path::new(""));
                if is_visible_through(&above, below).map_err(failed(path))? {
                    *place = Some(LayerLocation { mount: number, path: below.to_owned() });
                }
            }
            layers.mounts.push(LayerMount::of(&above, group.above)?);
        }
        for (place, path) in locations.into_iter().zip(paths) {
            let alone = LayerLocation { mount: layers.mounts.len(), path: PathBuf::new() };
            if place.is_none() {
                layers.mounts.push(LayerMount::of(&open_no_symlinks(path).map_err(failed(path))?, path)?);
            }
            layers.locations.push(place.unwrap_or(alone));
        }
        Ok(layers)
    }

    /// Opens a layer with the given identity over others.
    fn with(mut self, path: &Path, identity: (u64, u64), below: &[PathBuf]) -> Result<Self, MountError> {
        let handle = open_no_symlinks(path).map_err(failed(path))?;
        let stat = rustix::fs::fstat(&handle).map_err(failed(path))?;
        if (stat.st_dev, stat.st_ino) != identity {
            return Err(failed(path)(Errno::STALE));
        }
        let others = Self::open(below, None)?;
        self.mounts.push(LayerMount::of(&handle, path)?);
        self.mounts.extend(others.mounts);
        self.locations.push(LayerLocation { mount: 0, path: PathBuf::new() });
        self.locations
            .extend(others.locations.into_iter().map(|place| LayerLocation { mount: place.mount + 1, ..place }));
        Ok(self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locations.is_empty()
    }

    pub(crate) fn mounts(&self) -> impl ExactSizeIterator<Item = &OwnedFd> {
        self.mounts.iter().map(|shared| &shared.mount)
    }

    /// The locations of the layers, uppermost first.
    pub(crate) fn locations(&self) -> &[LayerLocation] {
        &self.locations
    }

    /// The root directory of the uppermost layer, if there is one, not id-mapped.
    pub(crate) fn top(&self) -> Result<Option<OwnedFd>, Errno> {
        let Some(place) = self.locations.first() else { return Ok(None) };
        let shared = self.mounts.get(place.mount).ok_or(Errno::NOENT)?;
        let below = if place.path.as_os_str().is_empty() { Path::new(".") } else { &place.path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(&shared.mount, below, flags, Mode::empty(), resolve).map(Some)
    }

    /// Id-maps all mounts.
    pub(crate) fn map_ids(&self, ids: BorrowedFd<'_>) -> Result<(), LaunchError> {
        for LayerMount { mount, path } in &self.mounts {
            sys::set_mount(mount.as_fd(), sys::READ_ONLY_ATTRIBUTES, Some(ids)).map_err(idmap_error(path))?;
        }
        Ok(())
    }
}

// === impl LayerMount ===

impl LayerMount {
    fn of(place: &OwnedFd, path: &Path) -> Result<Self, MountError> {
        let stat = rustix::fs::fstat(place).map_err(failed(path))?;
        refuse_host_root(&stat, path)?;
        if !is_directory(&stat) {
            return Err(failed(path)(Errno::NOTDIR));
        }
        Ok(Self { mount: mount::copy_without_submounts(place).map_err(failed(path))?, path: path.to_owned() })
    }
}

/// Whether a layer is visible through a mount that starts above it: it is not if another mount covers it.
fn is_visible_through(above: &OwnedFd, below: &Path) -> Result<bool, Errno> {
    if below.as_os_str().is_empty() {
        return Ok(true);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(above, below, flags, Mode::empty(), resolve) {
        Ok(_) => Ok(true),
        Err(Errno::XDEV) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Groups layers that one mount can show.
fn groups(paths: &[PathBuf]) -> Vec<LayerGroup<'_>> {
    let mut groups: Vec<LayerGroup<'_>> = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let joined = groups.iter_mut().find_map(|group| {
            let above = common(group.above, path)?;
            let others = group.layers.iter().filter_map(|layer| paths.get(*layer));
            others.chain([path]).all(|path| fits(path, above)).then_some((group, above))
        });
        match joined {
            Some((group, above)) => {
                group.above = above;
                group.layers.push(number);
            }
            None => groups.push(LayerGroup { above: path, layers: vec![number] }),
        }
    }
    groups
}

/// The deepest directory that contains both.
fn common<'a>(one: &'a Path, other: &Path) -> Option<&'a Path> {
    one.ancestors().find(|above| other.starts_with(above) && above.parent().is_some())
}

fn fits(path: &Path, above: &Path) -> bool {
    path.strip_prefix(above)
        .is_ok_and(|below| below.components().count() <= MAX_DEPTH && below.as_os_str().len() <= MAX_PATH_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grouped(paths: &[&str]) -> Vec<(String, Vec<usize>)> {
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        groups(&paths).into_iter().map(|group| (group.above.display().to_string(), group.layers)).collect()
    }

    #[test]
    fn layers_of_one_store_share_a_mount() {
        assert_eq!(
            grouped(&["/h/images/images/9/patch", "/h/images/layers/1/tree", "/h/images/layers/2/tree"]),
            [("/h/images".to_owned(), vec![0, 1, 2])]
        );
        assert_eq!(
            grouped(&["/h/images/layers/1/tree", "/h/images/layers/2/tree"]),
            [("/h/images/layers".to_owned(), vec![0, 1])]
        );
    }

    #[test]
    fn a_single_layer_and_distant_layers_have_their_own_mounts() {
        assert_eq!(grouped(&["/srv/root"]), [("/srv/root".to_owned(), vec![0])]);
        assert_eq!(grouped(&["/a", "/b"]), [("/a".to_owned(), vec![0]), ("/b".to_owned(), vec![1])]);
        let far = ["/var/lib/carrel/images/layers/1/tree", "/var/tmp/x", "/var/lib/carrel/images/layers/2/tree"];
        assert_eq!(
            grouped(&far),
            [("/var/lib/carrel/images/layers".to_owned(), vec![0, 2]), ("/var/tmp/x".to_owned(), vec![1])]
        );
        let long = format!("/s/{}/tree", "x".repeat(MAX_PATH_LENGTH));
        assert_eq!(grouped(&["/s/1/tree", &long]).len(), 2);
    }

    #[test]
    fn a_layer_on_another_file_system_has_its_own_mount() {
        // Every host has two file systems side by side there.
        let layers = [PathBuf::from("/sys/kernel"), PathBuf::from("/sys/fs/cgroup")];
        assert_eq!(groups(&layers).len(), 1);
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let stat = rustix::fs::stat("/sys/kernel").unwrap();
        let alone = Layers::open(&layers, Some((stat.st_dev, stat.st_ino))).unwrap();
        assert_eq!(alone.locations().iter().map(|place| place.mount).collect::<Vec<_>>(), [0, 1]);
        let another = Layers::open(&layers, Some((stat.st_dev, stat.st_ino + 1)));
        assert!(
            matches!(another, Err(MountError::Source { source, .. }) if source.raw_os_error() == Some(libc::ESTALE))
        );
        let opened = Layers::open(&layers, None).unwrap();
        let locations: Vec<_> =
            opened.locations().iter().map(|place| (place.mount, place.path.to_str().unwrap())).collect();
        assert_eq!(locations, [(0, "kernel"), (1, "")]);
    }
}
