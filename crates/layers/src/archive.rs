//! Unpacking a tar: that of a root file system, or a layer of one.
//!
//! An archive is written by anyone. So nothing is resolved by path: every name is opened alone, beneath a directory that
//! was opened before, and no link is followed. What is ambiguous is refused, and nothing is repaired.
//!
//! What is taken over: files, directories, symbolic and hard links, pipes; permissions with set-id and sticky bits,
//! owners by number (0 to 65535, what a sandbox has), times of modification; and for files and directories the extended
//! attributes `security.capability`, `system.posix_acl_*` and `user.*`, if they are given to that entry alone. Other
//! attributes are left out, and so are access-control lists that are written as text (`SCHILY.acl.*`). Devices below
//! `dev` are left out and counted, since a sandbox has a `/dev` of its own; anywhere else they are refused. A name is had
//! by one entry: only a directory may come again, and has what its last entry says.
//!
//! A layer differs from a root in what it takes away: see [`Form::Layer`].

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

pub use self::error::{ArchiveError, Refusal};

use self::entry::{Entry, Kind};
use self::reader::Entries;
use self::tree::{Failure, Tree};
use self::whiteout::Meaning;

/// The most that the directories of a layer without an entry may [weigh](missing_weight) together.
pub(crate) const MOST_MISSING: usize = 16 << 20;

/// What it takes to remember a directory that has no entry, by the length of its path.
pub(crate) const fn missing_weight(length: usize) -> usize {
    length + 32
}

/// What an entry takes besides its content: something of this size, on most disks.
pub(crate) const ENTRY: u64 = 4096;

/// What an archive is the tar of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A root file system. A leading `/` means the root of the archive, and an archive without its end mark is refused:
    /// it may have been cut short.
    Root,
    /// A layer, of which the digest tells whether it is whole: it need not have an end mark, nor any entry. Its names
    /// are relative, and those that begin with `.wh.` take away. What is gone becomes a character device 0:0, and a
    /// directory that hides those below it gets `user.overlay.opaque`. What an archive takes away from the layers below,
    /// it does not take away from itself.
    Layer,
}

/// How much one archive may unpack to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The sizes of all files together; a sparse file counts as large as it claims to be. Targets of links and
    /// attributes count, too, and every entry as 4096 bytes more.
    pub bytes: u64,
    /// Headers in the archive and directories that are made for want of an entry, together.
    pub entries: u64,
}

/// What an archive held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files, directories, links, pipes, and what is taken away.
    pub entries: u64,
    /// The sizes of all files together.
    pub bytes: u64,
    /// Devices, and in a layer what it was once written with, which were left out.
    pub skipped: u64,
    /// The directories of a layer that have no entry of their own, the root (an empty path) among them: owner,
    /// permissions and times are not theirs, but should be those of the layer below.
    pub made: Vec<PathBuf>,
}

/// Unpacks an archive into an empty directory that nobody else can reach. After an error what is there is useless, and
/// the caller's to remove. What follows the end of the archive is not read.
pub fn unpack(archive: impl BufRead, into: impl AsFd, form: Form, limits: Limits) -> Result<Unpacked, ArchiveError> {
    let root = |failure| failed(b"/", failure);
    let mut entries = Entries::new(archive, form, limits.entries);
    let mut tree = Tree::new(into, form).map_err(|errno| root(errno.into()))?;
    let mut done = Unpacked::default();
    let mut weight: u64 = 0;
    while let Some(entry) = entries.next()? {
        weight = weight.saturating_add(entry.weight()).saturating_add(ENTRY);
        let refuse = |why| ArchiveError::refused(entry.name.as_bytes(), why);
        let too_large = |made: u64| weight.saturating_add(made.saturating_mul(ENTRY)) > limits.bytes;
        if too_large(tree.made()) {
            return Err(refuse(Refusal::TooLarge(limits.bytes)));
        }
        let meaning = match form {
            Form::Root => Meaning::Itself,
            Form::Layer if entry.absolute => {
                return Err(ArchiveError::refused(&[b"/", entry.name.as_bytes()].concat(), Refusal::Absolute));
            }
            Form::Layer => whiteout::meaning(&entry.name).map_err(refuse)?,
        };
        match (&meaning, &entry.kind) {
            (Meaning::Itself, Kind::Skipped) | (Meaning::Nothing, _) => done.skipped += 1,
            (Meaning::Itself, kind) => {
                done.entries += 1;
                done.bytes += kind.size();
            }
            _ => done.entries += 1,
        }
        match meaning {
            Meaning::Itself => put(&mut entries, &mut tree, &entry)?,
            meaning => take_away(&mut entries, &mut tree, &entry, &meaning)?,
        }
        if entries.seen().saturating_add(tree.made()) > limits.entries {
            return Err(refuse(Refusal::TooMany(limits.entries)));
        }
        if too_large(tree.made()) {
            return Err(refuse(Refusal::TooLarge(limits.bytes)));
        }
    }
    done.made = tree.finish().map_err(root)?;
    Ok(done)
}

/// Puts one entry into the tree.
fn put<R: BufRead>(entries: &mut Entries<R>, tree: &mut Tree, entry: &Entry) -> Result<(), ArchiveError> {
    let name = entry.name.as_bytes();
    let failed = |failure: Failure| failed(name, failure);
    match &entry.kind {
        Kind::Skipped => Ok(()),
        Kind::Directory => tree.directory(entry).map_err(failed),
        Kind::Symlink(target) => tree.symlink(entry, target).map_err(failed),
        Kind::HardLink(target) => tree.hard_link(entry, target).map_err(failed),
        Kind::Pipe => tree.pipe(entry).map_err(failed),
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

/// Takes away what an entry of a layer says. What the entry itself is, apart from its name, means nothing.
fn take_away<R: BufRead>(
    entries: &mut Entries<R>,
    tree: &mut Tree,
    entry: &Entry,
    meaning: &Meaning<'_>,
) -> Result<(), ArchiveError> {
    let name = entry.name.as_bytes();
    entries.skip(entry.kind.stored())?;
    let (above, _) = entry.name.split();
    let outcome = match (meaning, &entry.kind) {
        (Meaning::Itself | Meaning::Nothing, _) => Ok(()),
        // Some have made them links to one that is empty.
        (Meaning::Gone(gone), Kind::File(_) | Kind::HardLink(_)) => tree.gone(above, gone),
        (Meaning::Opaque, Kind::File(_) | Kind::HardLink(_)) => tree.opaque(above),
        _ => Err(Failure::Refused(Refusal::Whiteout)),
    };
    outcome.map_err(|failure| failed(name, failure))
}

fn failed(name: &[u8], failure: Failure) -> ArchiveError {
    match failure {
        Failure::Refused(why) => ArchiveError::refused(name, why),
        Failure::System(errno) => ArchiveError::write(name, errno.into()),
    }
}

// === impl Limits ===

impl Default for Limits {
    /// 64 GiB and five million entries.
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 5_000_000 }
    }
}
