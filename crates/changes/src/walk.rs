//! A walk below a directory of the project, by iteration and within bounds.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::failure::Failure;
use crate::path::RelativePath;
use crate::stop::Stop;
use crate::tree::{Kind, Meta, Tree, meta_in, names_in};

/// How many files are looked at in all, unless it is called off.
#[derive(Debug)]
pub(crate) struct Budget<'a> {
    limit: u64,
    left: u64,
    stop: &'a Stop,
}

/// There are more files than are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are more than {0} files and directories")]
pub struct TooMany(pub u64);

/// Why a walk ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WalkError {
    #[error(transparent)]
    System(#[from] Failure),
    #[error(transparent)]
    TooMany(#[from] TooMany),
}

// === impl Budget ===

impl<'a> Budget<'a> {
    pub(crate) fn new(limit: u64, stop: &'a Stop) -> Self {
        Self { limit, left: limit, stop }
    }

    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    pub(crate) fn spend(&mut self, entries: usize) -> Result<(), TooMany> {
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(entries).ok_or(TooMany(self.limit))?;
        Ok(())
    }

    pub(crate) fn exceeded(&self) -> TooMany {
        TooMany(self.limit)
    }

    /// Lists an open directory, and counts what is in it.
    pub(crate) fn list(&mut self, directory: &OwnedFd, path: &[u8]) -> Result<Vec<Vec<u8>>, WalkError> {
        self.stop.check().map_err(Failure::at("list", path))?;
        let names = match names_in(directory, self.left) {
            Ok(names) => names,
            Err(Errno::FBIG) => return Err(self.exceeded().into()),
            Err(errno) => return Err(Failure::at("list", path)(errno).into()),
        };
        self.spend(names.len())?;
        Ok(names)
    }
}

/// Visits all that is below a directory. What is on another file system, what has just gone and what is too deep or too
/// long to be named is passed over.
pub(crate) fn below(
    tree: &Tree,
    start: &[u8],
    budget: &mut Budget<'_>,
    mut visit: impl FnMut(RelativePath, Meta),
) -> Result<(), WalkError> {
    let mut waiting = vec![start.to_vec()];
    while let Some(path) = waiting.pop() {
        let directory = match tree.directory(&path) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            Err(errno) => return Err(Failure::at("open", &path)(errno).into()),
        };
        let names = budget.list(&directory, &path)?;
        for name in names {
            let Ok(child) = RelativePath::below(&path, &name) else { continue };
            let meta = match meta_in(&directory, &name) {
                Ok(meta) => meta,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(Failure::at("look at", child.as_bytes())(errno).into()),
            };
            if meta.kind == Kind::Directory {
                waiting.push(child.as_bytes().to_vec());
            }
            visit(child, meta);
        }
    }
    Ok(())
}
