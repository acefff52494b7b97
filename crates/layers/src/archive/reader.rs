//! Reads an archive block by block, with bounded memory.

use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::FileExt;

use super::ArchiveForm;
use super::entry::{ArchiveEntry, EntryHeaders};
use super::error::{ArchiveError, EntryRejection, shown};
use super::header::{self, BLOCK, Block};
use super::pax::{self, PaxRecords};
use super::sparse::SparseMap;

/// The size limit of one extended header: enough for all attributes that a file can have.
const EXTENSION: usize = 1 << 20;
/// The size limit of all global pax headers.
const GLOBAL: usize = 64 << 10;

/// Iterates over the entries of an archive.
pub(super) struct ArchiveReader<R> {
    archive: R,
    form: ArchiveForm,
    offset: u64,
    /// The name of the previous entry.
    last: Vec<u8>,
    entries_read: u64,
    most: u64,
    global: PaxRecords,
}

/// Extended headers for the next entry.
#[derive(Default)]
struct ExtendedHeaders {
    local: Option<PaxRecords>,
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

// === impl ArchiveReader ===

impl<R: BufRead> ArchiveReader<R> {
    pub(super) fn new(archive: R, form: ArchiveForm, most: u64) -> Self {
        Self { archive, form, offset: 0, last: Vec::new(), entries_read: 0, most, global: PaxRecords::default() }
    }

    /// The number of headers so far.
    pub(super) fn entries_read(&self) -> u64 {
        self.entries_read
    }

    /// The next entry; `None` at the end marker. The content of the previous one must have been read.
    pub(super) fn next(&mut self) -> Result<Option<ArchiveEntry>, ArchiveError> {
        let mut announced = ExtendedHeaders::default();
        while let Some(header) = self.header()? {
            let refuse = |why| ArchiveError::refused(&header.path_bytes(), why);
            self.entries_read += 1;
            if self.entries_read > self.most {
                return Err(refuse(EntryRejection::TooMany(self.most)));
            }
            match header.as_old().linkflag {
                [b'x'] => {
                    let body = self.extension(&header)?;
                    let local = announced.local.get_or_insert_default();
                    local.add(&body, EXTENSION).map_err(refuse)?;
                }
                [b'g'] => {
                    let body = self.extension(&header)?;
                    self.global.add(&body, GLOBAL).map_err(refuse)?;
                }
                [b'L'] => announced.name = Some(self.text(&header)?),
                [b'K'] => announced.target = Some(self.text(&header)?),
                // A volume label is not a file.
                [b'V'] => {}
                _ => return self.entry(&header, announced).map(Some),
            }
        }
        match announced {
            ExtendedHeaders { local: None, name: None, target: None } => Ok(None),
            _ => Err(ArchiveError::refused(b"", EntryRejection::Extension)),
        }
    }

    fn entry(&mut self, header: &tar::Header, announced: ExtendedHeaders) -> Result<ArchiveEntry, ArchiveError> {
        let local = announced.local.unwrap_or_default();
        // Moved out while the description borrows them.
        let global = std::mem::take(&mut self.global);
        let description = EntryHeaders {
            header,
            global: &global,
            local: &local,
            long_name: announced.name.as_deref(),
            long_target: announced.target.as_deref(),
        };
        let raw = description.raw_name();
        self.last.clone_from(&raw);
        let refuse = |why| ArchiveError::refused(&raw, why);
        let sparse = match header.as_old().linkflag {
            [b'S'] => Some(self.old_map(&description)),
            [0 | b'0'] if local.starting_with("GNU.sparse.").next().is_some() => Some(self.map(&description)),
            _ => None,
        };
        let entry = sparse.transpose().map_err(|failure| failure.named(&raw))?;
        let entry = description.entry(entry).map_err(refuse);
        self.global = global;
        entry
    }

    /// The next header; `None` at the end.
    fn header(&mut self) -> Result<Option<tar::Header>, ArchiveError> {
        let start = self.offset;
        let mut block = [0; BLOCK];
        let got = self.fill(&mut block)?;
        if got == 0 && self.form == ArchiveForm::Layer {
            return Ok(None);
        }
        if got < BLOCK {
            return Err(if start == 0 { not_a_tar(block.get(..got)) } else { ArchiveError::CutShort(None) });
        }
        if header::is_header(&block) {
            return Ok(Some(tar::Header::from_byte_slice(&block).clone()));
        }
        if !header::is_zero(&block) {
            return Err(if start == 0 { not_a_tar(Some(&block)) } else { self.damaged(start) });
        }
        if start == 0 && self.form == ArchiveForm::Root {
            // Disk images begin with zeros, too.
            return Err(ArchiveError::NotATar(Some("it begins with zeros, like an archive without entries")));
        }
        match self.fill(&mut block)? {
            0 => Ok(None),
            BLOCK if header::is_zero(&block) => Ok(None),
            BLOCK => Err(self.damaged(start)),
            _ => Err(ArchiveError::CutShort(None)),
        }
    }

    fn damaged(&self, at: u64) -> ArchiveError {
        ArchiveError::Damaged { at, entry: shown(&self.last) }
    }

    fn truncated_error(&self) -> ArchiveError {
        ArchiveError::CutShort(Some(shown(&self.last)))
    }

    /// Reads a block, or the rest of the archive.
    fn fill(&mut self, block: &mut Block) -> Result<usize, ArchiveError> {
        let mut got = 0;
        while let Some(rest) = block.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match self.archive.read(rest) {
                Ok(0) => break,
                Ok(read) => got += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ArchiveError::Read(error)),
            }
        }
        self.offset = self.offset.saturating_add(got as u64);
        Ok(got)
    }

    fn block(&mut self) -> Result<Block, ArchiveError> {
        let mut block = [0; BLOCK];
        if self.fill(&mut block)? == BLOCK { Ok(block) } else { Err(self.truncated_error()) }
    }

    /// Passes on the next bytes in chunks, without copying.
    fn pieces<E: From<ArchiveError>>(
        &mut self,
        mut left: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while left > 0 {
            let piece = match self.archive.fill_buf() {
                Ok(piece) => piece,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(ArchiveError::Content { entry: shown(&self.last), source }.into()),
            };
            let length = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match piece.get(..length) {
                Some([]) | None => return Err(self.truncated_error().into()),
                Some(piece) => take(piece)?,
            }
            self.archive.consume(length);
            self.offset = self.offset.saturating_add(length as u64);
            left -= length as u64;
        }
        Ok(())
    }

    /// Writes the next bytes of an entry to an offset of its file.
    pub(super) fn content(&mut self, size: u64, file: &File, at: u64, name: &[u8]) -> Result<(), ArchiveError> {
        let mut at = at;
        self.pieces(size, |piece| {
            file.write_all_at(piece, at).map_err(|error| ArchiveError::write(name, error))?;
            at += piece.len() as u64;
            Ok(())
        })
    }

    /// Skips content.
    pub(super) fn skip(&mut self, size: u64) -> Result<(), ArchiveError> {
        self.pieces(size, |_| Ok(()))?;
        self.padding(size)
    }

    /// Skips the padding after content.
    pub(super) fn padding(&mut self, size: u64) -> Result<(), ArchiveError> {
        let block = BLOCK as u64;
        self.pieces((block - size % block) % block, |_| Ok(()))
    }

    /// Reads the content of an extended header.
    fn extension(&mut self, header: &tar::Header) -> Result<Vec<u8>, ArchiveError> {
        let refuse = || ArchiveError::refused(&header.path_bytes(), EntryRejection::Extension);
        let size = header::unsigned(&header.as_old().size).ok_or_else(refuse)?;
        if size > EXTENSION as u64 {
            return Err(refuse());
        }
        self.last = header.path_bytes().into_owned();
        let mut body = Vec::new();
        self.pieces(size, |piece| {
            body.extend_from_slice(piece);
            Ok::<_, ArchiveError>(())
        })?;
        self.padding(size)?;
        Ok(body)
    }

    /// A GNU long name or target, terminated by NUL.
    fn text(&mut self, header: &tar::Header) -> Result<Vec<u8>, ArchiveError> {
        let mut text = self.extension(header)?;
        if text.last() == Some(&0) {
            text.pop();
        }
        Ok(text)
    }

    /// The sparse map in GNU headers.
    fn old_map(&mut self, description: &EntryHeaders<'_>) -> Result<SparseMap, SparseMapError> {
        let header = description.header.as_gnu().ok_or(EntryRejection::SparseFormat)?;
        let stored = description.stored()?;
        let size = header::unsigned(&header.realsize).ok_or(EntryRejection::Number("size"))?;
        let mut map = SparseMap::default();
        add_old(&mut map, &header.sparse)?;
        let mut extended = header.isextended != [0];
        while extended {
            let mut block = tar::GnuExtSparseHeader::new();
            *block.as_mut_bytes() = self.block()?;
            add_old(&mut map, &block.sparse)?;
            extended = block.isextended != [0];
        }
        Ok(map.complete(size, stored)?)
    }

    /// The sparse map before the content (pax 1.0): a count, then pairs, one number per line.
    fn map(&mut self, description: &EntryHeaders<'_>) -> Result<SparseMap, SparseMapError> {
        let get = |key| description.local.get(key);
        let version = (get("GNU.sparse.major"), get("GNU.sparse.minor"));
        if version != (Some(&b"1"[..]), Some(&b"0"[..])) {
            return Err(EntryRejection::SparseFormat.into());
        }
        let size = get("GNU.sparse.realsize").and_then(pax::decimal).ok_or(EntryRejection::Number("size"))?;
        let mut left = description.stored()?;
        let mut lines = Vec::new();
        let mut number = || -> Result<u64, SparseMapError> {
            loop {
                if let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = lines.drain(..=end).collect();
                    return line.strip_suffix(b"\n").and_then(pax::decimal).ok_or(EntryRejection::SparseMap.into());
                }
                // A number has at most twenty digits.
                if lines.len() > 20 {
                    return Err(EntryRejection::SparseMap.into());
                }
                left = left.checked_sub(BLOCK as u64).ok_or(EntryRejection::SparseMap)?;
                lines.extend_from_slice(&self.block()?);
            }
        };
        let mut map = SparseMap::default();
        for _ in 0..number()? {
            map.push(number()?, number()?)?;
        }
        Ok(map.complete(size, left)?)
    }
}

/// Adds the segments of one header, up to the first empty one.
fn add_old(map: &mut SparseMap, pieces: &[tar::GnuSparseHeader]) -> Result<(), EntryRejection> {
    for piece in pieces.iter().take_while(|piece| !piece.is_empty()) {
        let number = |field| header::unsigned(field).ok_or(EntryRejection::SparseMap);
        map.push(number(&piece.offset)?, number(&piece.numbytes)?)?;
    }
    Ok(())
}

fn not_a_tar(start: Option<&[u8]>) -> ArchiveError {
    ArchiveError::NotATar(start.and_then(header::hint))
}

/// Why a sparse map could not be read.
enum SparseMapError {
    Refused(EntryRejection),
    Archive(ArchiveError),
}

// === impl SparseMapError ===

impl SparseMapError {
    fn named(self, name: &[u8]) -> ArchiveError {
        match self {
            Self::Refused(why) => ArchiveError::refused(name, why),
            Self::Archive(error) => error,
        }
    }
}

impl From<EntryRejection> for SparseMapError {
    fn from(why: EntryRejection) -> Self {
        Self::Refused(why)
    }
}

impl From<ArchiveError> for SparseMapError {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}
