//! The project on the host, and its state when a sandbox started.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::ChangesError;
use crate::cancellation::NEVER;
use crate::confined_tree::{ConfinedTree, FileKind, FileMetadata};
use crate::escape::EscapedName;
use crate::identity::ProjectIdentity;
use crate::path::RelativePath;
use crate::path_error::PathError;
use crate::walk::{self, WalkBudget};

/// The directory of a project on the host.
#[derive(Debug)]
pub struct Project {
    tree: ConfinedTree,
    path: PathBuf,
    owner: (u32, u32),
    identity: ProjectIdentity,
}

/// A project that could not be opened again.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] PathError),
    /// A component of its path became a symlink.
    #[error("{} is reached through a symlink that did not exist when the changes were made", EscapedName::path(.0))]
    Link(PathBuf),
    /// Another directory is at its path.
    #[error("{} is not the directory that the changes were made in", EscapedName::path(.0))]
    Replaced(PathBuf),
    /// The record has no identity of the directory.
    #[error(
        "an earlier release kept these changes, and did not record which directory {} was: it cannot be checked",
        EscapedName::path(.0)
    )]
    Unrecorded(PathBuf),
}

/// The `stat` results of a project's files, to detect changes by the host while a sandbox runs.
#[derive(Debug, Default)]
pub struct ProjectSnapshot {
    files: HashMap<RelativePath, FileStamp>,
}

/// The `stat` result of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    kind: FileKind,
    mode: u32,
    /// Size, time and inode; `None` for directories, whose content is compared separately.
    content: Option<(u64, i64, u64)>,
}

// === impl Project ===

impl Project {
    /// Opens a directory that the user names. Symlinks in that path are followed this one time.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PathError> {
        let path = path.as_ref();
        let path = std::fs::canonicalize(path).map_err(PathError::at("find", path.as_os_str().as_bytes()))?;
        let root = open_plain(&path).map_err(PathError::at("open", path.as_os_str().as_bytes()))?;
        Self::of(root, path)
    }

    /// Opens a recorded directory again: it must be the same one, and its path must have no symlink.
    pub(crate) fn reopen(path: &Path, identity: Option<&ProjectIdentity>) -> Result<Self, ProjectError> {
        let Some(identity) = identity else { return Err(ProjectError::Unrecorded(path.to_owned())) };
        let root = match open_plain(path) {
            Err(Errno::LOOP) => return Err(ProjectError::Link(path.to_owned())),
            Err(Errno::NOENT) => return Err(PathError::at("find", path.as_os_str().as_bytes())(Errno::NOENT).into()),
            root => root.map_err(PathError::at("open", path.as_os_str().as_bytes()))?,
        };
        let project = Self::of(root, path.to_owned())?;
        if project.identity == *identity { Ok(project) } else { Err(ProjectError::Replaced(path.to_owned())) }
    }

    fn of(root: OwnedFd, path: PathBuf) -> Result<Self, PathError> {
        let failed = || PathError::at("look at", path.as_os_str().as_bytes());
        let identity = ProjectIdentity::of(&root).map_err(failed())?;
        let stat = rustix::fs::fstat(&root).map_err(failed())?;
        Ok(Self { tree: ConfinedTree::new(root), path, owner: (stat.st_uid, stat.st_gid), identity })
    }

    /// The identity of the directory.
    pub fn identity(&self) -> &ProjectIdentity {
        &self.identity
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn tree(&self) -> &ConfinedTree {
        &self.tree
    }

    /// The user and the group that own it.
    pub(crate) fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// The file at a path; `None` if there is none, or it is behind a symlink or on another file system.
    pub(crate) fn find(&self, path: &RelativePath) -> Result<Option<FileMetadata>, PathError> {
        match self.tree.meta(path) {
            Ok(meta) => Ok(Some(meta)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(PathError::at("look at", path.as_bytes())(errno)),
        }
    }
}

/// Opens a directory without following symlinks.
fn open_plain(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::io::retry_on_intr(|| rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve))
}

// === impl Snapshot ===

impl ProjectSnapshot {
    /// Records all files of a project without opening them.
    pub fn take(project: &Project) -> Result<Self, ChangesError> {
        let mut files = HashMap::new();
        walk::below(project.tree(), b"", &mut WalkBudget::new(crate::collect::MOST, &NEVER), |path, meta| {
            files.insert(path, FileStamp::of(&meta));
        })?;
        Ok(Self { files })
    }

    /// Writes the snapshot in the format that [`Self::read`] reads.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        for (path, stamp) in &self.files {
            let (size, modified, inode) = stamp.content.unwrap_or_default();
            let kind = stamp.kind as u8;
            write!(to, "{kind} {} {} {size} {modified} {inode} ", stamp.mode, u8::from(stamp.content.is_some()))?;
            to.write_all(path.as_bytes())?;
            // A file name contains no NUL.
            to.write_all(&[0])?;
        }
        to.flush()
    }

    /// Reads a snapshot that [`Self::write`] wrote.
    pub fn read(from: impl BufRead) -> io::Result<Self> {
        let mut files = HashMap::new();
        for entry in from.split(0) {
            let (path, stamp) = FileStamp::parse(&entry?).ok_or(io::ErrorKind::InvalidData)?;
            files.insert(path, stamp);
        }
        Ok(Self { files })
    }

    /// Whether a file is unchanged since.
    pub(crate) fn still(&self, path: &RelativePath, now: Option<&FileMetadata>) -> bool {
        self.files.get(path).copied() == now.map(FileStamp::of)
    }
}

// === impl FileStamp ===

impl FileStamp {
    fn of(meta: &FileMetadata) -> Self {
        let content = (meta.kind != FileKind::Directory).then_some((meta.size, meta.modified, meta.inode));
        Self { kind: meta.kind, mode: meta.mode, content }
    }

    /// Parses one entry of a written snapshot.
    fn parse(entry: &[u8]) -> Option<(RelativePath, Self)> {
        let mut fields = entry.splitn(7, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<i64>().ok();
        let kind = match number()? {
            0 => FileKind::File,
            1 => FileKind::Directory,
            2 => FileKind::Symlink,
            3 => FileKind::Fifo,
            4 => FileKind::Socket,
            5 => FileKind::Device,
            _ => return None,
        };
        let (mode, has_content) = (u32::try_from(number()?).ok()?, number()? == 1);
        let content = (u64::try_from(number()?).ok()?, number()?, u64::try_from(number()?).ok()?);
        let path = RelativePath::new(fields.next()?).ok()?;
        Some((path, Self { kind, mode, content: has_content.then_some(content) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_survives_writing_and_reading() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a directory")).unwrap();
        std::fs::write(dir.path().join("a directory/1 2\n3"), "1").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        let snapshot = ProjectSnapshot::take(&Project::open(dir.path()).unwrap()).unwrap();
        let mut written = Vec::new();
        snapshot.write(&mut written).unwrap();
        let read = ProjectSnapshot::read(&written[..]).unwrap();
        assert_eq!((read.files.len(), &read.files), (3, &snapshot.files));
        assert!(ProjectSnapshot::read(&b"0 1 1 1"[..]).is_err());
        assert!(ProjectSnapshot::read(&b"0 1 1 1 1 1 ../out\0"[..]).is_err());
    }

    #[test]
    fn a_snapshot_detects_changes_by_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        for name in ["d/same", "d/longer", "gone"] {
            std::fs::write(at(name), "1").unwrap();
        }
        let project = Project::open(dir.path()).unwrap();
        let snapshot = ProjectSnapshot::take(&project).unwrap();
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
