//! The upper layer of a sandbox, as an overlay with `userxattr` leaves it. Its content is untrusted.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::confined_tree::{ConfinedTree, FileKind, FileMetadata, meta_in, names_in};
use crate::path::RelativePath;

/// The number of IDs in a sandbox.
const IDS: u32 = 65_536;
const OPAQUE: &str = "user.overlay.opaque";
const WHITEOUT: &str = "user.overlay.whiteout";

/// The upper layer of a stopped sandbox.
#[derive(Debug)]
pub struct UpperLayer {
    tree: ConfinedTree,
    base: u32,
    user: u32,
    group: u32,
}

/// The content of one directory of the layer.
#[derive(Debug, Default)]
pub(crate) struct UpperDirectory {
    /// Whether it is opaque: the project's directory is hidden.
    pub(crate) opaque: bool,
    /// Written names.
    pub(crate) entries: Vec<(Vec<u8>, FileMetadata)>,
    /// Deleted names.
    pub(crate) whiteouts: Vec<Vec<u8>>,
}

// === impl UpperLayer ===

impl UpperLayer {
    /// Wraps a handle of the layer's directory. The IDs of the sandbox begin at `base` on the host; `user` and `group`
    /// inside stand for the owner of the project and its group.
    pub fn new(handle: OwnedFd, base: u32, user: u32, group: u32) -> Self {
        Self { tree: ConfinedTree::new(handle), base, user, group }
    }

    pub(crate) fn tree(&self) -> &ConfinedTree {
        &self.tree
    }

    pub(crate) fn user(&self) -> u32 {
        self.user
    }

    /// The owner inside. An ID that the sandbox does not have becomes `user` or `group`.
    pub(crate) fn owner(&self, meta: &FileMetadata) -> (u32, u32) {
        let inside = |id: u32| id.checked_sub(self.base).filter(|inside| *inside < IDS);
        (inside(meta.uid).unwrap_or(self.user), inside(meta.gid).unwrap_or(self.group))
    }

    /// Reads a directory of at most `limit` names.
    pub(crate) fn read(&self, path: &[u8], limit: u64) -> Result<UpperDirectory, Errno> {
        let directory = self.tree.directory(path)?;
        let mark = attribute(&directory, OPAQUE)?;
        let mut layer = UpperDirectory { opaque: mark.as_deref() == Some(b"y"), ..UpperDirectory::default() };
        for name in names_in(&directory, limit)? {
            let meta = meta_in(&directory, &name)?;
            // Regular files are whiteouts only if the directory's attribute allows it.
            let marked = mark.as_deref() == Some(b"x") && meta.kind == FileKind::File && meta.size == 0;
            if meta.zero_device || (marked && self.is_whiteout(path, &name)?) {
                layer.whiteouts.push(name);
            } else {
                layer.entries.push((name, meta));
            }
        }
        Ok(layer)
    }

    fn is_whiteout(&self, directory: &[u8], name: &[u8]) -> Result<bool, Errno> {
        let Ok(path) = RelativePath::below(directory, name) else { return Ok(false) };
        Ok(attribute(&self.tree.file(&path)?, WHITEOUT)?.is_some())
    }
}

/// Reads a short attribute: overlay values have one letter.
fn attribute(file: &impl AsFd, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = [0; 1];
    match rustix::fs::fgetxattr(file, name, &mut value[..]) {
        Ok(length) => Ok(Some(value.get(..length).unwrap_or_default().to_vec())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        // A longer value is set, but is not one of the overlay's.
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(errno) => Err(errno),
    }
}
