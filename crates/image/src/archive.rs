//! Unpacking the tar of a root file system.
//!
//! An archive is written by anyone, and unpacked by root. So nothing is resolved by path: every name is opened alone,
//! beneath a directory that was opened before, and no link is followed. What is ambiguous is refused, and an archive
//! without its end is too: it may have been cut short. Nothing is repaired.
//!
//! What is taken over: files, directories, symbolic and hard links; permissions with set-id and sticky bits, owners by
//! number (0 to 65535, what a sandbox has), times of modification, and the extended attributes `security.capability`
//! and `user.*`, if they are given to that entry alone. Other attributes and access-control lists are left out. So are
//! devices and pipes, which are counted: a sandbox has a `/dev` of its own, and devices anywhere else do not work in it.
//! A leading `/` means the root of the archive. A later entry replaces an earlier one, unless one of the two is a
//! directory and the other not.

mod attributes;
mod entry;
mod error;
mod header;
mod name;
mod pax;
mod reader;
mod sparse;
mod tree;

use std::io::BufRead;
use std::os::fd::AsFd;

pub use self::error::{ArchiveError, Refusal};

use self::entry::{Entry, Kind};
use self::reader::Entries;
use self::tree::{Failure, Tree};

/// How much one archive may unpack to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The sizes of all files together; a sparse file counts as large as it claims to be. Targets of links and
    /// attributes count, too.
    pub bytes: u64,
    /// Headers in the archive and directories that are made for want of an entry, together.
    pub entries: u64,
}

/// What an archive held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files, directories and links.
    pub entries: u64,
    /// The sizes of all files together.
    pub bytes: u64,
    /// Devices and pipes, which were left out.
    pub skipped: u64,
}

/// Unpacks an archive into an empty directory that nobody else can reach. After an error what is there is useless, and
/// the caller's to remove. What follows the end of the archive is not read.
pub fn unpack(archive: impl BufRead, into: impl AsFd, limits: Limits) -> Result<Unpacked, ArchiveError> {
    let mut entries = Entries::new(archive, limits.entries);
    let mut tree = Tree::new(into).map_err(|errno| ArchiveError::Write { entry: "/".into(), source: errno.into() })?;
    let mut done = Unpacked::default();
    let mut weight: u64 = 0;
    while let Some(entry) = entries.next()? {
        weight = weight.saturating_add(entry.weight());
        let refuse = |why| ArchiveError::refused(entry.name.as_bytes(), why);
        if weight > limits.bytes {
            return Err(refuse(Refusal::TooLarge(limits.bytes)));
        }
        match &entry.kind {
            Kind::Skipped => done.skipped += 1,
            kind => {
                done.entries += 1;
                done.bytes += kind.size();
            }
        }
        put(&mut entries, &mut tree, &entry)?;
        if entries.seen().saturating_add(tree.made()) > limits.entries {
            return Err(refuse(Refusal::TooMany(limits.entries)));
        }
    }
    tree.finish().map_err(|errno| ArchiveError::Write { entry: "/".into(), source: errno.into() })?;
    Ok(done)
}

/// Puts one entry into the tree.
fn put<R: BufRead>(entries: &mut Entries<R>, tree: &mut Tree, entry: &Entry) -> Result<(), ArchiveError> {
    let name = entry.name.as_bytes();
    let failed = |failure: Failure| match failure {
        Failure::Refused(why) => ArchiveError::refused(name, why),
        Failure::System(errno) => ArchiveError::write(name, errno.into()),
    };
    match &entry.kind {
        Kind::Skipped => Ok(()),
        Kind::Directory => tree.directory(entry).map_err(failed),
        Kind::Symlink(target) => tree.symlink(entry, target).map_err(failed),
        Kind::HardLink(target) => tree.hard_link(entry, target).map_err(failed),
        Kind::File(size) => {
            let file = tree.file(entry).map_err(failed)?;
            entries.content(*size, &file, 0, name)?;
            entries.padding(*size)?;
            tree::finish_file(&file, entry).map_err(failed)
        }
        Kind::Sparse(map) => {
            let file = tree.file(entry).map_err(failed)?;
            for (offset, length) in map.segments() {
                entries.content(*length, &file, *offset, name)?;
            }
            entries.padding(map.stored())?;
            file.set_len(map.size()).map_err(|error| ArchiveError::write(name, error))?;
            tree::finish_file(&file, entry).map_err(failed)
        }
    }
}

// === impl Limits ===

impl Default for Limits {
    /// 64 GiB and five million entries.
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 5_000_000 }
    }
}
