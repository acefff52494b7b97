//! Unpacks a tar: of a root file system, or of one layer.
//!
//! Archives are untrusted. So no name is resolved by path: each component is opened below a directory handle, and no
//! symlink is followed. What is ambiguous is rejected; nothing is repaired.
//!
//! Supported: files, directories, symlinks, hard links, FIFOs; permissions with set-id and sticky bits, numeric owners
//! (0 to 65535, what a sandbox has), modification times; and for files and directories the extended attributes
//! `security.capability`, `system.posix_acl_*` and `user.*`, if they are in that entry's own header. Other attributes
//! are skipped, and so are ACLs in text form (`SCHILY.acl.*`). Devices below `dev` are skipped and counted, since a
//! sandbox has its own `/dev`; elsewhere they are rejected. A name may occur once, except for directories, where the
//! last entry wins.
//!
//! A layer can also delete: see [`ArchiveForm::Layer`].

mod attributes;
mod entry;
mod error;
mod header;
mod name;
mod pax;
mod reader;
mod sparse;
mod tree;
mod whiteout;

use std::io::BufRead;
use std::os::fd::AsFd;
use std::path::PathBuf;

pub use self::error::{ArchiveError, EntryRejection};

use self::entry::{ArchiveEntry, EntryKind};
use self::reader::ArchiveReader;
use self::tree::{ArchiveTree, EntryError};
use self::whiteout::WhiteoutMeaning;

/// The limit for the total [weight](missing_weight) of a layer's directories without an entry.
pub(crate) const MAX_MISSING: usize = 16 << 20;

/// The memory cost of a directory without an entry, by the length of its path.
pub(crate) const fn missing_weight(length: usize) -> usize {
    length + 32
}

/// The disk space that each entry is charged in addition to its content.
pub(crate) const ENTRY: u64 = 4096;

/// What a tar contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveForm {
    /// A root file system. A leading `/` means the root of the archive, and an archive without end marker is rejected:
    /// it may be truncated.
    Root,
    /// A layer. Its digest proves that it is complete, so it needs no end marker and no entry. Names are relative, and
    /// those with the prefix `.wh.` delete. A deleted name becomes a character device 0:0, and a directory that hides
    /// lower layers gets `user.overlay.opaque`. Whiteouts affect the layers below, not the archive itself.
    Layer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// The sum of all file sizes; a sparse file counts with its apparent size. Symlink targets and attributes count
    /// too, and each entry as 4096 bytes more.
    pub bytes: u64,
    /// Headers in the archive plus directories that are created without an entry.
    pub entries: u64,
}

/// What an archive contained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveTotals {
    /// Files, directories, links, FIFOs and whiteouts.
    pub entries: u64,
    /// The sum of all file sizes.
    pub bytes: u64,
    /// Devices that were skipped, and whiteouts of older formats.
    pub skipped: u64,
    /// Directories of a layer without an entry, possibly the root (an empty path): they should have the attributes of
    /// the layer below.
    pub made: Vec<PathBuf>,
}

/// Unpacks an archive into an empty directory that no other process can reach. After an error the caller removes its
/// content. Bytes after the end of the archive are not read.
pub fn unpack(
    archive: impl BufRead,
    into: impl AsFd,
    form: ArchiveForm,
    limits: ArchiveLimits,
) -> Result<ArchiveTotals, ArchiveError> {
    let root = |failure| failed(b"/", failure);
    let mut entries = ArchiveReader::new(archive, form, limits.entries);
    let mut tree = ArchiveTree::new(into, form).map_err(|errno| root(errno.into()))?;
    let mut done = ArchiveTotals::default();
    let mut weight: u64 = 0;
    while let Some(entry) = entries.next()? {
        weight = weight.saturating_add(entry.weight()).saturating_add(ENTRY);
        let refuse = |why| ArchiveError::refused(entry.name.as_bytes(), why);
        let too_large = |made: u64| weight.saturating_add(made.saturating_mul(ENTRY)) > limits.bytes;
        if too_large(tree.made()) {
            return Err(refuse(EntryRejection::TooLarge(limits.bytes)));
        }
        let meaning = match form {
            ArchiveForm::Root => WhiteoutMeaning::Itself,
            ArchiveForm::Layer if entry.absolute => {
                return Err(ArchiveError::refused(&[b"/", entry.name.as_bytes()].concat(), EntryRejection::Absolute));
            }
            ArchiveForm::Layer => whiteout::meaning(&entry.name).map_err(refuse)?,
        };
        match (&meaning, &entry.kind) {
            (WhiteoutMeaning::Itself, EntryKind::Skipped) | (WhiteoutMeaning::Nothing, _) => done.skipped += 1,
            (WhiteoutMeaning::Itself, kind) => {
                done.entries += 1;
                done.bytes += kind.size();
            }
            _ => done.entries += 1,
        }
        match meaning {
            WhiteoutMeaning::Itself => put(&mut entries, &mut tree, &entry)?,
            meaning => apply_whiteout(&mut entries, &mut tree, &entry, &meaning)?,
        }
        if entries.entries_read().saturating_add(tree.made()) > limits.entries {
            return Err(refuse(EntryRejection::TooMany(limits.entries)));
        }
        if too_large(tree.made()) {
            return Err(refuse(EntryRejection::TooLarge(limits.bytes)));
        }
    }
    done.made = tree.finish().map_err(root)?;
    Ok(done)
}

/// Writes one entry to disk.
fn put<R: BufRead>(
    entries: &mut ArchiveReader<R>,
    tree: &mut ArchiveTree,
    entry: &ArchiveEntry,
) -> Result<(), ArchiveError> {
    let name = entry.name.as_bytes();
    let failed = |failure: EntryError| failed(name, failure);
    match &entry.kind {
        EntryKind::Skipped => Ok(()),
        EntryKind::Directory => tree.directory(entry).map_err(failed),
        EntryKind::Symlink(target) => tree.symlink(entry, target).map_err(failed),
        EntryKind::HardLink(target) => tree.hard_link(entry, target).map_err(failed),
        EntryKind::Pipe => tree.pipe(entry).map_err(failed),
        EntryKind::File(size) => {
            let file = tree.file(entry).map_err(failed)?;
            entries.content(*size, &file, 0, name)?;
            entries.padding(*size)?;
            tree::finish_file(&file, entry).map_err(failed)
        }
        EntryKind::Sparse(map) => {
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

/// Applies a whiteout entry. Only its name matters.
fn apply_whiteout<R: BufRead>(
    entries: &mut ArchiveReader<R>,
    tree: &mut ArchiveTree,
    entry: &ArchiveEntry,
    meaning: &WhiteoutMeaning<'_>,
) -> Result<(), ArchiveError> {
    let name = entry.name.as_bytes();
    entries.skip(entry.kind.stored())?;
    let (above, _) = entry.name.split();
    let outcome = match (meaning, &entry.kind) {
        (WhiteoutMeaning::Itself | WhiteoutMeaning::Nothing, _) => Ok(()),
        // Some tools write whiteouts as hard links to an empty file.
        (WhiteoutMeaning::Gone(gone), EntryKind::File(_) | EntryKind::HardLink(_)) => tree.create_whiteout(above, gone),
        (WhiteoutMeaning::Opaque, EntryKind::File(_) | EntryKind::HardLink(_)) => tree.opaque(above),
        _ => Err(EntryError::Refused(EntryRejection::Whiteout)),
    };
    outcome.map_err(|failure| failed(name, failure))
}

fn failed(name: &[u8], failure: EntryError) -> ArchiveError {
    match failure {
        EntryError::Refused(why) => ArchiveError::refused(name, why),
        EntryError::System(errno) => ArchiveError::write(name, errno.into()),
    }
}

// === impl ArchiveLimits ===

impl Default for ArchiveLimits {
    /// 64 GiB and five million entries.
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 5_000_000 }
    }
}
