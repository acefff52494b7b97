//! Exports saved changes as a tar that is an OCI layer.
//!
//! It has added and modified files, with paths relative to the project, the owners inside the sandbox, and a time of
//! zero. Deletions are whiteouts, `.wh.NAME`; one for a directory deletes its content. The same changes give the same
//! bytes.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;

use tar::{Builder, EntryType, Header};

use crate::file_state::{FileContent, FileState};
use crate::path::{RelativePath, join};
use crate::saved::{ChangeEntry, SavedChanges, SavedChangesError};

/// The prefix of whiteouts.
const WHITEOUT: &[u8] = b".wh.";

/// The longest symlink target in a header.
const LONGEST_LINK: usize = 100;

/// Changes that could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file's name is that of a whiteout.
    #[error("{0} cannot be in a layer: names with the prefix `.wh.` are deletions there")]
    Reserved(RelativePath),
    /// The saved changes cannot be read.
    #[error(transparent)]
    Kept(#[from] SavedChangesError),
    /// The output failed.
    #[error("cannot write the archive: {0}")]
    Write(#[from] io::Error),
}

// === impl SavedChanges ===

impl SavedChanges {
    /// Writes the changes as a layer.
    pub fn export(&self, out: &mut impl Write) -> Result<(), ExportError> {
        let entries = &self.record().entries;
        let reserved = |entry: &&ChangeEntry| entry.path.names().any(|name| name.starts_with(WHITEOUT));
        if let Some(entry) = entries.iter().find(reserved) {
            return Err(ExportError::Reserved(entry.path.clone()));
        }
        let mut archive = Builder::new(out);
        let mut hidden: Option<&RelativePath> = None;
        for entry in entries {
            match &entry.after {
                FileState::Absent if hidden.is_some_and(|above| entry.path.is_below(above)) => {}
                FileState::Absent => {
                    hidden = Some(&entry.path);
                    let name = [WHITEOUT, entry.path.name()].concat();
                    let mut header = header(entry, EntryType::Regular, 0, 0);
                    let path = join(entry.path.directory(), &name);
                    archive.append_data(&mut header, OsStr::from_bytes(&path), io::empty())?;
                }
                FileState::Directory { mode } => {
                    let mut header = header(entry, EntryType::Directory, *mode, 0);
                    archive.append_data(&mut header, entry.path.as_os_str(), io::empty())?;
                }
                FileState::Symlink { target } => {
                    // A file that replaces a directory hides its content.
                    hidden = Some(&entry.path);
                    let mut header = header(entry, EntryType::Symlink, 0o777, 0);
                    link(&mut archive, &mut header, target)?;
                    archive.append_data(&mut header, entry.path.as_os_str(), io::empty())?;
                }
                FileState::File { mode, size, content: FileContent::Sha256(digest) } => {
                    hidden = Some(&entry.path);
                    let mut header = header(entry, EntryType::Regular, *mode, *size);
                    let content = self.content(digest, *size)?.take(*size);
                    archive.append_data(&mut header, entry.path.as_os_str(), content)?;
                }
                // Other kinds are not saved.
                FileState::File { .. } | FileState::Special => {}
            }
        }
        archive.into_inner()?.flush()?;
        Ok(())
    }
}

/// Sets the target of a symlink. A long one goes to a GNU header before it.
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

fn header(entry: &ChangeEntry, kind: EntryType, mode: u32, size: u64) -> Header {
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
