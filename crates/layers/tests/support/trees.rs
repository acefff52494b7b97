//! Compares trees: everything that an archive can contain about a file.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// All entries of a tree, by their paths in it.
pub(crate) fn described(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let status = std::fs::symlink_metadata(&path).unwrap();
        let content = if status.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            String::new()
        } else if status.is_symlink() {
            format!("{:?}", std::fs::read_link(&path).unwrap())
        } else if status.is_file() {
            use sha2::Digest as _;
            format!("{:x}", sha2::Sha256::digest(std::fs::read(&path).unwrap()))
        } else {
            format!("{:x}", status.rdev())
        };
        // The number of links and the size of a directory depend on the file system.
        let links = if status.is_dir() { 0 } else { status.nlink() };
        let size = if status.is_dir() { 0 } else { status.size() };
        let line = format!(
            "mode {:o} owner {}:{} links {links} size {size} modified {}.{:09} attributes {:?} content {content}",
            status.mode(),
            status.uid(),
            status.gid(),
            status.mtime(),
            status.mtime_nsec(),
            attributes(&path),
        );
        found.insert(path.strip_prefix(root).unwrap().to_owned(), line);
    }
    found
}

/// The extended attributes of a file.
fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 4096];
            let length = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value).unwrap();
            (String::from_utf8_lossy(name).into_owned(), value[..length].to_vec())
        })
        .collect()
}

/// Describes the entries that differ.
#[track_caller]
pub(crate) fn assert_same(ours: &BTreeMap<PathBuf, String>, theirs: &BTreeMap<PathBuf, String>) {
    for (path, line) in theirs {
        assert_eq!(ours.get(path), Some(line), "{}", path.display());
    }
    for path in ours.keys() {
        assert!(theirs.contains_key(path), "only ours: {}", path.display());
    }
}
