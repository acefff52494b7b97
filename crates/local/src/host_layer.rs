//! Skeletons: the files of the image `host`, written once as a layer that all sandboxes share.
//!
//! A skeleton is named by the digest of its content, complete once it has its name, and never changed. Unused ones are
//! removed when the daemon starts.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use carrel_control::provider::ProviderError;
use carrel_image::RootFs;
use sha2::{Digest, Sha256};

use crate::failed;
use crate::paths::create_directory;

/// The mount points that every sandbox has, whatever its image.
const MOUNT_POINTS: [(&str, u32); 5] =
    [("tmp", 0o1777), ("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("workspace", 0o755)];

/// Writes the files of a root as one layer below `skeletons`. A root that has layers is returned unchanged.
pub(crate) fn to_layer(root: RootFs, skeletons: &Path) -> Result<RootFs, ProviderError> {
    if !root.layers.is_empty() {
        return Ok(root);
    }
    let layer = skeletons.join(digest(&root));
    let known = layer.try_exists().and_then(|known| if known { Ok(()) } else { write(&root, skeletons, &layer) });
    known.map_err(|error| failed(format_args!("{}: {error}", layer.display())))?;
    Ok(RootFs { layers: vec![layer], trees: root.trees, ..RootFs::default() })
}

/// Removes unfinished skeletons, and all that `needed` does not list, if there is more than one. No skeleton may be created
/// concurrently.
pub(crate) fn sweep(skeletons: &Path, needed: impl FnOnce() -> io::Result<Vec<PathBuf>>) -> io::Result<()> {
    let entries = match std::fs::read_dir(skeletons) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if entries.len() < 2 {
        return Ok(());
    }
    let needed = needed()?;
    let mut unneeded = entries.into_iter().map(|entry| entry.path()).filter(|path| !needed.contains(path));
    unneeded.try_for_each(std::fs::remove_dir_all)
}

/// The digest of everything that is written, each part preceded by its length.
fn digest(root: &RootFs) -> String {
    let mut hasher = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for directory in &root.directories {
        part(directory.path.as_path().as_os_str().as_encoded_bytes());
        part(format!("directory {:o} {}", directory.mode, directory.owner).as_bytes());
    }
    for link in &root.links {
        part(link.path.as_path().as_os_str().as_encoded_bytes());
        part(b"link");
        part(link.target.as_os_str().as_encoded_bytes());
    }
    for tree in &root.trees {
        part(tree.target.as_path().as_os_str().as_encoded_bytes());
        part(if tree.source.is_dir() { b"tree" } else { b"tree of a file" });
    }
    for file in &root.files {
        part(file.path.as_path().as_os_str().as_encoded_bytes());
        part(format!("file {:o}", file.mode).as_bytes());
        part(&file.content);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a skeleton under a temporary name, and renames it.
fn write(root: &RootFs, skeletons: &Path, layer: &Path) -> io::Result<()> {
    create_directory(skeletons)?;
    let unfinished = tempfile(skeletons)?;
    let written = fill(root, &unfinished).and_then(|()| match std::fs::rename(&unfinished, layer) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        renamed => renamed,
    });
    // After the rename there is nothing left to remove.
    let _gone = std::fs::remove_dir_all(&unfinished);
    written
}

fn tempfile(skeletons: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let path = skeletons.join(format!("new-{:016x}", u64::from_ne_bytes(random)));
    DirBuilder::new().mode(0o755).create(&path)?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    Ok(path)
}

fn fill(root: &RootFs, top: &Path) -> io::Result<()> {
    for made in &root.directories {
        directory(top, made.path.as_path(), made.mode)?;
        std::os::unix::fs::chown(top.join(made.path.as_path()), Some(made.owner), Some(made.owner))?;
    }
    for (name, mode) in MOUNT_POINTS {
        directory(top, Path::new(name), mode)?;
    }
    for link in &root.links {
        create_parent(top, link.path.as_path())?;
        std::os::unix::fs::symlink(&link.target, top.join(link.path.as_path()))?;
    }
    for tree in &root.trees {
        if tree.source.is_dir() {
            directory(top, tree.target.as_path(), 0o755)?;
        } else {
            file(top, tree.target.as_path(), &[], 0o644)?;
        }
    }
    root.files.iter().try_for_each(|made| file(top, made.path.as_path(), &made.content, made.mode))
}

/// Creates a directory; an existing one is unchanged.
fn directory(top: &Path, path: &Path, mode: u32) -> io::Result<()> {
    create_parent(top, path)?;
    match DirBuilder::new().create(top.join(path)) {
        Ok(()) => std::fs::set_permissions(top.join(path), Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn file(top: &Path, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    create_parent(top, path)?;
    let mut file = File::create(top.join(path))?;
    file.write_all(content)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    // A power cut must not leave an empty file in a skeleton that has its name already: it is never written again.
    file.sync_all()
}

/// Creates the parent directories of a path.
fn create_parent(top: &Path, path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) if !top.join(parent).is_dir() => directory(top, parent, 0o755),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use carrel_image::ImageRef;

    use super::*;

    #[test]
    fn a_skeleton_is_written_once_and_has_the_files_of_the_image() {
        let home = tempfile::tempdir().unwrap();
        let skeletons = home.path().join("skeletons");
        let host = RootFs::resolve(&ImageRef::Host).unwrap();
        let layered = to_layer(host.clone(), &skeletons).unwrap();
        let [layer] = layered.layers.as_slice() else { panic!("{layered:?}") };
        assert_eq!((&layered.trees, &layered.files, &layered.directories), (&host.trees, &vec![], &vec![]));
        for file in &host.files {
            assert_eq!(std::fs::read(layer.join(file.path.as_path())).unwrap(), file.content);
        }
        for link in &host.links {
            assert_eq!(std::fs::read_link(layer.join(link.path.as_path())).unwrap(), link.target);
        }
        let of = |path: &str| std::fs::metadata(layer.join(path)).map(|found| (found.mode() & 0o7777, found.uid()));
        assert_eq!(of("").unwrap(), (0o755, 0));
        assert_eq!(of("tmp").unwrap(), (0o1777, 0));
        assert_eq!(of("root").unwrap(), (0o700, 0));
        assert_eq!(of("home/agbox").unwrap(), (0o755, 1000));
        assert_eq!(of("usr").unwrap(), (0o755, 0));
        let before = std::fs::metadata(layer).unwrap().ino();
        assert_eq!(to_layer(host, &skeletons).unwrap(), layered);
        assert_eq!(std::fs::metadata(layer).unwrap().ino(), before);
        assert_eq!(to_layer(layered.clone(), &skeletons).unwrap(), layered, "one that has layers stays as it is");
    }

    #[test]
    fn another_content_is_another_skeleton_and_unused_ones_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let host = RootFs::resolve(&ImageRef::Host).unwrap();
        let one = to_layer(host.clone(), home.path()).unwrap().layers;
        let mut other = host;
        other.files.iter_mut().for_each(|file| file.content.push(b'\n'));
        let two = to_layer(other, home.path()).unwrap().layers;
        assert_ne!(one, two);
        std::fs::create_dir(home.path().join("new-0000")).unwrap();
        sweep(home.path(), || Ok(two.clone())).unwrap();
        let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, two);
        sweep(&home.path().join("absent"), || Ok(Vec::new())).unwrap();
    }
}
