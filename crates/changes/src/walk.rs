//! Iterates over a directory tree of the project, within limits.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::cancellation::CancellationFlag;
use crate::confined_tree::{ConfinedTree, FileKind, FileMetadata, meta_in, names_in};
use crate::path::RelativePath;
use crate::path_error::PathError;

/// The limit of visited files, with cancellation.
#[derive(Debug)]
pub(crate) struct WalkBudget<'a> {
    limit: u64,
    left: u64,
    stop: &'a CancellationFlag,
}

/// The limit of files is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are more than {0} files and directories")]
pub struct TooManyFiles(pub u64);

/// Why a walk ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WalkError {
    #[error(transparent)]
    System(#[from] PathError),
    #[error(transparent)]
    TooMany(#[from] TooManyFiles),
}

// === impl WalkBudget ===

impl<'a> WalkBudget<'a> {
    pub(crate) fn new(limit: u64, stop: &'a CancellationFlag) -> Self {
        Self { limit, left: limit, stop }
    }

    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    pub(crate) fn spend(&mut self, entries: usize) -> Result<(), TooManyFiles> {
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(entries).ok_or(TooManyFiles(self.limit))?;
        Ok(())
    }

    pub(crate) fn exceeded(&self) -> TooManyFiles {
        TooManyFiles(self.limit)
    }

    /// Lists an open directory, and counts its entries.
    pub(crate) fn list(&mut self, directory: &OwnedFd, path: &[u8]) -> Result<Vec<Vec<u8>>, WalkError> {
        self.stop.check().map_err(PathError::at("list", path))?;
        let names = match names_in(directory, self.left) {
            Ok(names) => names,
            Err(Errno::FBIG) => return Err(self.exceeded().into()),
            Err(errno) => return Err(PathError::at("list", path)(errno).into()),
        };
        self.spend(names.len())?;
        Ok(names)
    }
}

/// Visits everything below a directory. Other file systems, files that were just deleted, and paths that are too deep
/// or too long are skipped.
pub(crate) fn below(
    tree: &ConfinedTree,
    start: &[u8],
    budget: &mut WalkBudget<'_>,
    mut visit: impl FnMut(RelativePath, FileMetadata),
) -> Result<(), WalkError> {
    let mut waiting = vec![start.to_vec()];
    while let Some(path) = waiting.pop() {
        let directory = match tree.directory(&path) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            Err(errno) => return Err(PathError::at("open", &path)(errno).into()),
        };
        let names = budget.list(&directory, &path)?;
        for name in names {
            let Ok(child) = RelativePath::below(&path, &name) else { continue };
            let meta = match meta_in(&directory, &name) {
                Ok(meta) => meta,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(PathError::at("look at", child.as_bytes())(errno).into()),
            };
            if meta.kind == FileKind::Directory {
                waiting.push(child.as_bytes().to_vec());
            }
            visit(child, meta);
        }
    }
    Ok(())
}
