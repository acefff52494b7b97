//! Paths of the host and of the project, resolved without running anything or opening anything but regular files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::confined_tree::FileMetadata;
use crate::escape::EscapedName;
use crate::path::{RelativePath, join};
use crate::path_error::PathError;
use crate::project::Project;

/// The maximum size of a settings file. Git has no limit; a longer file ends the search.
const LONGEST_CONFIG: u64 = 1 << 20;
/// The maximum number of links in one path.
const MAX_LINKS: usize = 40;

/// The host, and the project in it.
pub(super) struct HostPaths<'a> {
    pub(super) project: &'a Project,
    pub(super) root: Vec<u8>,
}

/// A path of the host with its links resolved.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResolvedPath {
    /// What the result depends on: the links on the way, and the names before a `..`, which may become links.
    pub(super) depends_on: Vec<Vec<u8>>,
    /// How many of these are links.
    pub(super) links: usize,
    pub(super) end: Vec<u8>,
}

// === impl HostPaths ===

impl<'a> HostPaths<'a> {
    pub(super) fn new(project: &'a Project) -> Self {
        Self { project, root: project.path().as_os_str().as_bytes().to_vec() }
    }

    /// Resolves a path of the host. Missing components are kept as written.
    pub(super) fn resolve(&self, path: &[u8]) -> ResolvedPath {
        let parts = |path: &[u8]| path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect::<Vec<_>>();
        let mut way = ResolvedPath { depends_on: Vec::new(), links: 0, end: b"/".to_vec() };
        let mut waiting = parts(path);
        while let Some(part) = waiting.pop() {
            match part.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    if self.relative_to_project(&way.end).is_some_and(|inner| !inner.is_empty())
                        && !way.depends_on.contains(&way.end)
                    {
                        way.depends_on.push(way.end.clone());
                    }
                    way.end = parent(&way.end);
                    continue;
                }
                _ => {}
            }
            let next = if way.end == b"/" { [b"/", part.as_slice()].concat() } else { join(&way.end, &part) };
            match self.link(&next).filter(|_| way.links < MAX_LINKS) {
                Some(target) => {
                    if target.starts_with(b"/") {
                        way.end = b"/".to_vec();
                    }
                    waiting.extend(parts(&target));
                    way.depends_on.push(next);
                    way.links += 1;
                }
                None => way.end = next,
            }
        }
        way
    }

    fn link(&self, path: &[u8]) -> Option<Vec<u8>> {
        match self.relative_to_project(path) {
            Some(inner) => self.project.tree().target(&RelativePath::new(inner).ok()?).ok(),
            None => std::fs::read_link(Path::new(OsStr::from_bytes(path)))
                .ok()
                .map(|target| target.as_os_str().as_bytes().to_vec()),
        }
    }

    /// The content of a file of the host or the project; none if it is not a readable file.
    pub(super) fn read(&self, path: &[u8]) -> Result<Option<Vec<u8>>, PathError> {
        let end = self.resolve(path).end;
        let file = match self.relative_to_project(&end) {
            Some(inner) => RelativePath::new(inner).ok().and_then(|inner| self.project.tree().file(&inner).ok()),
            None => open_regular(&end).ok(),
        };
        let Some(file) = file else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = file.take(LONGEST_CONFIG + 1).read_to_end(&mut bytes).map_err(PathError::at("read", path))?;
        if u64::try_from(read).is_ok_and(|read| read > LONGEST_CONFIG) {
            return Err(PathError::at("read", path)(Errno::FBIG));
        }
        Ok(Some(bytes))
    }

    /// Converts a project path to a host path.
    pub(super) fn outside(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.root.clone() } else { under(&self.root, path) }
    }

    /// A path of the host relative to the project, if it is in it; the project itself is empty.
    pub(super) fn relative_to_project(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = if self.root == b"/" { path } else { path.strip_prefix(self.root.as_slice())? };
        match rest.first() {
            None => Some(Vec::new()),
            Some(b'/') => Some(rest.get(1..).unwrap_or_default().to_vec()),
            Some(_) => None,
        }
    }

    /// A path for display: relative to the project, if it is in it.
    pub(super) fn shown(&self, path: &[u8]) -> String {
        let inner = self.relative_to_project(path).filter(|inner| !inner.is_empty());
        EscapedName(inner.as_deref().unwrap_or(path)).to_string()
    }
}

/// Opens only a regular file of the host: opening a device may have an effect.
fn open_regular(path: &[u8]) -> Result<File, Errno> {
    let path = OsStr::from_bytes(path);
    let named = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let was = FileMetadata::of(&rustix::fs::fstat(&named)?);
    if was.kind != crate::confined_tree::FileKind::File {
        return Err(Errno::INVAL);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let is = FileMetadata::of(&rustix::fs::fstat(&file)?);
    if (was.device, was.inode) == (is.device, is.inode) { Ok(file.into()) } else { Err(Errno::STALE) }
}

/// The parent directory of a path of the host.
pub(super) fn parent(path: &[u8]) -> Vec<u8> {
    match path.iter().rposition(|byte| *byte == b'/') {
        None | Some(0) => b"/".to_vec(),
        Some(slash) => path.get(..slash).unwrap_or_default().to_vec(),
    }
}

/// A path relative to a directory, unless it is absolute.
pub(super) fn under(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { [directory, b"/", path].concat() }
}

/// A path relative to the directory of a file.
pub(super) fn above(file: &[u8], path: &[u8]) -> Vec<u8> {
    under(&parent(file), path)
}
