//! The writable layer of a sandbox, as an overlay mounted with `userxattr` leaves it. A guest wrote all of it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::path::RelativePath;
use crate::tree::{Kind, Meta, Tree, meta_in, names_in};

/// How many ids a sandbox has.
const IDS: u32 = 65_536;
const OPAQUE: &str = "user.overlay.opaque";
const WHITEOUT: &str = "user.overlay.whiteout";

/// The writable layer of a sandbox that has ended.
#[derive(Debug)]
pub struct Upper {
    tree: Tree,
    base: u32,
    user: u32,
    group: u32,
}

/// What a directory of the layer says.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    /// What the project has here is hidden.
    pub(crate) opaque: bool,
    /// What was written, by name.
    pub(crate) entries: Vec<(Vec<u8>, Meta)>,
    /// What was deleted, by name.
    pub(crate) whiteouts: Vec<Vec<u8>>,
}

// === impl Upper ===

impl Upper {
    /// The layer at a handle of its directory. The ids of the sandbox begin at `base` on the host; `user` and `group`, ids
    /// inside, stand for the owner of the project and its group.
    pub fn new(handle: OwnedFd, base: u32, user: u32, group: u32) -> Self {
        Self { tree: Tree::new(handle), base, user, group }
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn user(&self) -> u32 {
        self.user
    }

    /// Who inside a file belongs to. An id that the sandbox does not have is the user's, or its group's.
    pub(crate) fn owner(&self, meta: &Meta) -> (u32, u32) {
        let inside = |id: u32| id.checked_sub(self.base).filter(|inside| *inside < IDS);
        (inside(meta.uid).unwrap_or(self.user), inside(meta.gid).unwrap_or(self.group))
    }

    /// Reads a directory, of at most `limit` names.
    pub(crate) fn read(&self, path: &[u8], limit: u64) -> Result<Layer, Errno> {
        let directory = self.tree.directory(path)?;
        let mark = attribute(&directory, OPAQUE)?;
        let mut layer = Layer { opaque: mark.as_deref() == Some(b"y"), ..Layer::default() };
        for name in names_in(&directory, limit)? {
            let meta = meta_in(&directory, &name)?;
            // Regular files mark deletions only where the directory says that they do.
            let marked = mark.as_deref() == Some(b"x") && meta.kind == Kind::File && meta.size == 0;
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

/// An attribute, as far as it matters: marks have one letter.
fn attribute(file: &impl AsFd, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = [0; 1];
    match rustix::fs::fgetxattr(file, name, &mut value[..]) {
        Ok(length) => Ok(Some(value.get(..length).unwrap_or_default().to_vec())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        // A longer value is there, and is none of the marks.
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(errno) => Err(errno),
    }
}
