//! The project on the host, and what it looked like when a sandbox started.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::ChangesError;
use crate::failure::Failure;
use crate::path::RelativePath;
use crate::stop::NEVER;
use crate::tree::{Kind, Meta, Tree};
use crate::walk::{self, Budget};

/// The directory of a project on the host.
#[derive(Debug)]
pub struct Project {
    tree: Tree,
    path: PathBuf,
    owner: (u32, u32),
}

/// What a project's files looked like from outside. A file that the host changes while a sandbox runs is known by it.
#[derive(Debug, Default)]
pub struct Snapshot {
    files: HashMap<RelativePath, Seen>,
}

/// A file from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    kind: Kind,
    mode: u32,
    /// Length, time and inode. A directory's change with what is in it, which is looked at by itself.
    content: Option<(u64, i64, u64)>,
}

// === impl Project ===

impl Project {
    /// Opens a project's directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Failure> {
        let path = path.as_ref();
        let path = std::fs::canonicalize(path).map_err(Failure::at("find", path.as_os_str().as_bytes()))?;
        let failed = |action| Failure::at(action, path.as_os_str().as_bytes());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed("open"))?;
        let stat = rustix::fs::fstat(&root).map_err(failed("look at"))?;
        Ok(Self { tree: Tree::new(root), path, owner: (stat.st_uid, stat.st_gid) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The user and the group that it belongs to.
    pub(crate) fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// What is at a path; none, if that is nothing, or nothing that belongs to the project: behind a link, or on another
    /// file system.
    pub(crate) fn find(&self, path: &RelativePath) -> Result<Option<Meta>, Failure> {
        match self.tree.meta(path) {
            Ok(meta) => Ok(Some(meta)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(Failure::at("look at", path.as_bytes())(errno)),
        }
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// Looks at every file of a project, and opens none.
    pub fn take(project: &Project) -> Result<Self, ChangesError> {
        let mut files = HashMap::new();
        walk::below(project.tree(), b"", &mut Budget::new(crate::collect::MOST, &NEVER), |path, meta| {
            files.insert(path, Seen::of(&meta));
        })?;
        Ok(Self { files })
    }

    /// Whether a file looks as it did.
    pub(crate) fn still(&self, path: &RelativePath, now: Option<&Meta>) -> bool {
        self.files.get(path).copied() == now.map(Seen::of)
    }
}

// === impl Seen ===

impl Seen {
    fn of(meta: &Meta) -> Self {
        let content = (meta.kind != Kind::Directory).then_some((meta.size, meta.modified, meta.inode));
        Self { kind: meta.kind, mode: meta.mode, content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_tells_what_the_host_changed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        for name in ["d/same", "d/longer", "gone"] {
            std::fs::write(at(name), "1").unwrap();
        }
        let project = Project::open(dir.path()).unwrap();
        let snapshot = Snapshot::take(&project).unwrap();
        std::fs::write(at("d/longer"), "12").unwrap();
        std::fs::write(at("d/new"), "1").unwrap();
        std::fs::remove_file(at("gone")).unwrap();
        for (name, still) in [("d", true), ("d/same", true), ("d/longer", false), ("d/new", false), ("gone", false)] {
            let path = RelativePath::new(name).unwrap();
            let now = project.find(&path).unwrap();
            assert_eq!(snapshot.still(&path, now.as_ref()), still, "{name}");
        }
    }
}
