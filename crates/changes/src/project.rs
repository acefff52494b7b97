//! The project on the host, and what it looked like when a sandbox started.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::ChangesError;
use crate::failure::Failure;
use crate::identity::ProjectIdentity;
use crate::path::RelativePath;
use crate::stop::NEVER;
use crate::tree::{Kind, Meta, Tree};
use crate::walk::{self, Budget};
use crate::words::Shown;

/// The directory of a project on the host.
#[derive(Debug)]
pub struct Project {
    tree: Tree,
    path: PathBuf,
    owner: (u32, u32),
    identity: ProjectIdentity,
}

/// A project that cannot be opened again.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// The system did not let us.
    #[error(transparent)]
    System(#[from] Failure),
    /// A symbolic link has taken its place, or that of a directory above it.
    #[error("{} is reached through a symbolic link that was not there when the changes were made", Shown::path(.0))]
    Link(PathBuf),
    /// Another directory has taken its place.
    #[error("{} is not the directory that the changes were made in", Shown::path(.0))]
    Replaced(PathBuf),
    /// The record does not say which directory it was.
    #[error(
        "an earlier release kept these changes, and did not record which directory {} was: it cannot be checked",
        Shown::path(.0)
    )]
    Unrecorded(PathBuf),
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
    /// Opens the directory of a project that a person names: links in that path are followed, here and never again.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Failure> {
        let path = path.as_ref();
        let path = std::fs::canonicalize(path).map_err(Failure::at("find", path.as_os_str().as_bytes()))?;
        let root = open_plain(&path).map_err(Failure::at("open", path.as_os_str().as_bytes()))?;
        Self::of(root, path)
    }

    /// Opens the directory of a project again: the same one, by a path that no link is in.
    pub(crate) fn reopen(path: &Path, identity: Option<&ProjectIdentity>) -> Result<Self, ProjectError> {
        let Some(identity) = identity else { return Err(ProjectError::Unrecorded(path.to_owned())) };
        let root = match open_plain(path) {
            Err(Errno::LOOP) => return Err(ProjectError::Link(path.to_owned())),
            Err(Errno::NOENT) => return Err(Failure::at("find", path.as_os_str().as_bytes())(Errno::NOENT).into()),
            root => root.map_err(Failure::at("open", path.as_os_str().as_bytes()))?,
        };
        let project = Self::of(root, path.to_owned())?;
        if project.identity == *identity { Ok(project) } else { Err(ProjectError::Replaced(path.to_owned())) }
    }

    fn of(root: OwnedFd, path: PathBuf) -> Result<Self, Failure> {
        let failed = || Failure::at("look at", path.as_os_str().as_bytes());
        let identity = ProjectIdentity::of(&root).map_err(failed())?;
        let stat = rustix::fs::fstat(&root).map_err(failed())?;
        Ok(Self { tree: Tree::new(root), path, owner: (stat.st_uid, stat.st_gid), identity })
    }

    /// Which directory it is.
    pub fn identity(&self) -> &ProjectIdentity {
        &self.identity
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

/// Opens a directory by a path that was found to have no links: one that is there now is not followed.
fn open_plain(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::io::retry_on_intr(|| rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve))
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

    /// Writes it for another process.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        for (path, seen) in &self.files {
            let (size, modified, inode) = seen.content.unwrap_or_default();
            let kind = seen.kind as u8;
            write!(to, "{kind} {} {} {size} {modified} {inode} ", seen.mode, u8::from(seen.content.is_some()))?;
            to.write_all(path.as_bytes())?;
            // No name has it.
            to.write_all(&[0])?;
        }
        to.flush()
    }

    /// Reads what another process wrote.
    pub fn read(from: impl BufRead) -> io::Result<Self> {
        let mut files = HashMap::new();
        for entry in from.split(0) {
            let (path, seen) = Seen::parse(&entry?).ok_or(io::ErrorKind::InvalidData)?;
            files.insert(path, seen);
        }
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

    /// A file and its path, as a snapshot is written.
    fn parse(entry: &[u8]) -> Option<(RelativePath, Self)> {
        let mut fields = entry.splitn(7, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<i64>().ok();
        let kind = match number()? {
            0 => Kind::File,
            1 => Kind::Directory,
            2 => Kind::Symlink,
            3 => Kind::Fifo,
            4 => Kind::Socket,
            5 => Kind::Device,
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
    fn a_snapshot_is_the_same_in_another_process() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a directory")).unwrap();
        std::fs::write(dir.path().join("a directory/1 2\n3"), "1").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        let snapshot = Snapshot::take(&Project::open(dir.path()).unwrap()).unwrap();
        let mut written = Vec::new();
        snapshot.write(&mut written).unwrap();
        let read = Snapshot::read(&written[..]).unwrap();
        assert_eq!((read.files.len(), &read.files), (3, &snapshot.files));
        assert!(Snapshot::read(&b"0 1 1 1"[..]).is_err());
        assert!(Snapshot::read(&b"0 1 1 1 1 1 ../out\0"[..]).is_err());
    }

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
