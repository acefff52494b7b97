//! Kept changes as a tar archive that is a layer of an OCI image.
//!
//! It holds what is new or different, with paths from the project's directory, the owners that they had inside, and a
//! time of zero. What was deleted is an empty file `.wh.NAME` in its place, as layers have it; a deleted directory stands
//! for all that was in it. The same changes give the same bytes.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;

use tar::{Builder, EntryType, Header};

use crate::kept::{Entry, KeepError, Kept};
use crate::path::{RelativePath, join};
use crate::state::{Content, State};

/// What the name of a deleted file begins with.
const WHITEOUT: &[u8] = b".wh.";

/// The longest target of a link that is in a header.
const LONGEST_LINK: usize = 100;

/// Changes that cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// In a layer, a file of that name would delete another.
    #[error("{0} cannot be in a layer: names that begin with `.wh.` stand for deletions there")]
    Reserved(RelativePath),
    /// The changes cannot be read.
    #[error(transparent)]
    Kept(#[from] KeepError),
    /// The archive cannot be written.
    #[error("cannot write the archive: {0}")]
    Write(#[from] io::Error),
}

// === impl Kept ===

impl Kept {
    /// Writes the changes as a layer of an image.
    pub fn export(&self, out: &mut impl Write) -> Result<(), ExportError> {
        let entries = &self.record().entries;
        let reserved = |entry: &&Entry| entry.path.names().any(|name| name.starts_with(WHITEOUT));
        if let Some(entry) = entries.iter().find(reserved) {
            return Err(ExportError::Reserved(entry.path.clone()));
        }
        let mut archive = Builder::new(out);
        let mut hidden: Option<&RelativePath> = None;
        for entry in entries {
            match &entry.after {
                State::Absent if hidden.is_some_and(|above| entry.path.is_below(above)) => {}
                State::Absent => {
                    hidden = Some(&entry.path);
                    let name = [WHITEOUT, entry.path.name()].concat();
                    let mut header = header(entry, EntryType::Regular, 0, 0);
                    let path = join(entry.path.directory(), &name);
                    archive.append_data(&mut header, OsStr::from_bytes(&path), io::empty())?;
                }
                State::Directory { mode } => {
                    let mut header = header(entry, EntryType::Directory, *mode, 0);
                    archive.append_data(&mut header, entry.path.as_os_str(), io::empty())?;
                }
                State::Symlink { target } => {
                    // What takes the place of a directory hides what was in it.
                    hidden = Some(&entry.path);
                    let mut header = header(entry, EntryType::Symlink, 0o777, 0);
                    link(&mut archive, &mut header, target)?;
                    archive.append_data(&mut header, entry.path.as_os_str(), io::empty())?;
                }
                State::File { mode, size, content: Content::Sha256(digest) } => {
                    hidden = Some(&entry.path);
                    let mut header = header(entry, EntryType::Regular, *mode, *size);
                    let content = self.content(digest, *size)?.take(*size);
                    archive.append_data(&mut header, entry.path.as_os_str(), content)?;
                }
                // The others are not kept.
                State::File { .. } | State::Special => {}
            }
        }
        archive.into_inner()?.flush()?;
        Ok(())
    }
}

/// Sets the target of a link, byte for byte. One that is too long for a header comes in an entry before it.
fn link(archive: &mut Builder<impl Write>, header: &mut Header, target: &[u8]) -> io::Result<()> {
    if header.set_link_name_literal(target).is_ok() {
        return Ok(());
    }
    let mut long = Header::new_gnu();
    long.set_path("././@LongLink")?;
    long.set_entry_type(EntryType::GNULongLink);
    long.set_mode(0o644);
    long.set_size(u64::try_from(target.len()).map_or(u64::MAX, |length| length + 1));
    long.set_cksum();
    archive.append(&long, target.chain(&[0][..]))?;
    header.set_link_name_literal(target.get(..LONGEST_LINK).unwrap_or_default())
}

fn header(entry: &Entry, kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    let (uid, gid) = entry.owner.unwrap_or_default();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(uid.into());
    header.set_gid(gid.into());
    header.set_mtime(0);
    header
}
