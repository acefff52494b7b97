//! Test trees.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use carrel_changes::{
    Changes, Project, ProjectSnapshot, SaveLimits, SaveRequest, SavedChanges, SavedChangesError, UpperLayer,
};
use rustix::fs::{FileType, Mode, XattrFlags};
use tempfile::TempDir;

/// The first id of the sandbox on the host.
pub(crate) const BASE: u32 = 100_000;
/// The id inside that maps to the owner of the project.
pub(crate) const USER: u32 = 1000;
/// The id inside that maps to its group.
pub(crate) const GROUP: u32 = 1001;

/// A project and a layer over it, both initially empty.
pub(crate) struct TestTrees {
    pub(crate) dir: TempDir,
}

/// The entry at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeItem {
    File(u32, Vec<u8>),
    Directory(u32),
    Link(Vec<u8>),
    Other,
}

// === impl TestTrees ===

impl TestTrees {
    pub(crate) fn new() -> Self {
        let trees = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["project", "upper"] {
            std::fs::create_dir(trees.path(name)).unwrap();
        }
        trees
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file of the project.
    pub(crate) fn project(self, path: &str, content: &str) -> Self {
        write(&self.path("project").join(path), content.as_bytes(), 0o644);
        self
    }

    /// Writes a file of the layer.
    pub(crate) fn upper(self, path: &str, content: &str) -> Self {
        write(&self.path("upper").join(path), content.as_bytes(), 0o644);
        self
    }

    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    pub(crate) fn directory(self, path: &str, mode: u32) -> Self {
        let path = self.path(path);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        self
    }

    pub(crate) fn mode(self, path: &str, mode: u32) -> Self {
        std::fs::set_permissions(self.path(path), PermissionsExt::from_mode(mode)).unwrap();
        self
    }

    /// Marks an entry as deleted, as an overlay does.
    pub(crate) fn whiteout(self, path: &str) -> Self {
        let path = self.path("upper").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        self
    }

    pub(crate) fn attribute(self, path: &str, name: &str, value: &str) -> Self {
        rustix::fs::setxattr(self.path("upper").join(path), name, value.as_bytes(), XattrFlags::empty()).unwrap();
        self
    }

    pub(crate) fn open(&self) -> (UpperLayer, Project) {
        let upper = std::fs::File::open(self.path("upper")).unwrap();
        (UpperLayer::new(upper.into(), BASE, USER, GROUP), Project::open(self.path("project")).unwrap())
    }

    pub(crate) fn collect(&self) -> Changes {
        let (upper, project) = self.open();
        Changes::collect(&upper, &project).unwrap()
    }

    /// The changes, one per line.
    pub(crate) fn list(&self) -> String {
        self.collect().list().to_string()
    }

    pub(crate) fn keep(&self) -> SavedChanges {
        self.try_keep("kept", None, SaveLimits::default()).unwrap()
    }

    pub(crate) fn try_keep(
        &self,
        name: &str,
        snapshot: Option<&ProjectSnapshot>,
        limits: SaveLimits,
    ) -> Result<SavedChanges, SavedChangesError> {
        let (upper, project) = self.open();
        let changes = Changes::collect(&upper, &project).unwrap();
        let what = SaveRequest { changes: &changes, upper: &upper, project: &project, snapshot, limits, stop: None };
        SavedChanges::save(&self.path("changes"), &name.parse().unwrap(), &what)
    }

    pub(crate) fn items(&self) -> BTreeMap<Vec<u8>, TreeItem> {
        items(&self.path("project"))
    }

    /// A copy of the project.
    pub(crate) fn copy(&self, name: &str) -> PathBuf {
        let copy = self.path(name);
        let done = Command::new("cp").arg("-a").arg(self.path("project")).arg(&copy).status().unwrap();
        assert!(done.success());
        copy
    }
}

pub(crate) fn write(path: &Path, content: &[u8], mode: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// All entries below a directory.
pub(crate) fn items(root: &Path) -> BTreeMap<Vec<u8>, TreeItem> {
    let mut items = BTreeMap::new();
    let mut waiting = vec![Vec::new()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(root.join(OsStr::from_bytes(&directory))).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            let path =
                if directory.is_empty() { name.as_bytes().to_vec() } else { [&directory, name.as_bytes()].join(&b'/') };
            let meta = entry.metadata().unwrap();
            let mode = meta.permissions().mode() & 0o7777;
            let item = if meta.is_dir() {
                waiting.push(path.clone());
                TreeItem::Directory(mode)
            } else if meta.is_symlink() {
                TreeItem::Link(std::fs::read_link(entry.path()).unwrap().as_os_str().as_bytes().to_vec())
            } else if meta.is_file() {
                TreeItem::File(mode, std::fs::read(entry.path()).unwrap())
            } else {
                TreeItem::Other
            };
            items.insert(path, item);
        }
    }
    items
}
