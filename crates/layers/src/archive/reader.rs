//! Reading an archive: block by block, with bounds on all that is kept in memory.

use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::FileExt;

use super::Form;
use super::entry::{Description, Entry};
use super::error::{ArchiveError, Refusal, shown};
use super::header::{self, BLOCK, Block};
use super::pax::{self, Records};
use super::sparse::Map;

/// The most that one extended header may have: enough for every attribute that a file can have.
const EXTENSION: usize = 1 << 20;
/// The most that the global ones may have together.
const GLOBAL: usize = 64 << 10;

/// The entries of an archive, one after the other.
pub(super) struct Entries<R> {
    archive: R,
    form: Form,
    offset: u64,
    /// The name of the entry before.
    last: Vec<u8>,
    seen: u64,
    most: u64,
    global: Records,
}

/// What extended headers have said about the entry that is to come.
#[derive(Default)]
struct Announced {
    local: Option<Records>,
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

// === impl Entries ===

impl<R: BufRead> Entries<R> {
    pub(super) fn new(archive: R, form: Form, most: u64) -> Self {
        Self { archive, form, offset: 0, last: Vec::new(), seen: 0, most, global: Records::default() }
    }

    /// How many headers there were.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// The next entry, or none at the end mark. The content of the one before has to be read.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let mut announced = Announced::default();
        while let Some(header) = self.header()? {
            let refuse = |why| ArchiveError::refused(&header.path_bytes(), why);
            self.seen += 1;
            if self.seen > self.most {
                return Err(refuse(Refusal::TooMany(self.most)));
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
                // The label of an archive is no file.
                [b'V'] => {}
                _ => return self.entry(&header, announced).map(Some),
            }
        }
        match announced {
            Announced { local: None, name: None, target: None } => Ok(None),
            _ => Err(ArchiveError::refused(b"", Refusal::Extension)),
        }
    }

    fn entry(&mut self, header: &tar::Header, announced: Announced) -> Result<Entry, ArchiveError> {
        let local = announced.local.unwrap_or_default();
        // Taken out for as long as the description borrows them.
        let global = std::mem::take(&mut self.global);
        let description = Description {
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

    /// The next header, or none at the end.
    fn header(&mut self) -> Result<Option<tar::Header>, ArchiveError> {
        let start = self.offset;
        let mut block = [0; BLOCK];
        let got = self.fill(&mut block)?;
        if got == 0 && self.form == Form::Layer {
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
        if start == 0 && self.form == Form::Root {
            // Images of disks begin with zeros, too.
            return Err(ArchiveError::NotATar(Some("it begins with zeros, as an archive without any entry does")));
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

    fn cut_short(&self) -> ArchiveError {
        ArchiveError::CutShort(Some(shown(&self.last)))
    }

    /// Reads a block, or what is left of the archive.
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
        if self.fill(&mut block)? == BLOCK { Ok(block) } else { Err(self.cut_short()) }
    }

    /// Hands on the next bytes, piece by piece as they are in memory.
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
                Some([]) | None => return Err(self.cut_short().into()),
                Some(piece) => take(piece)?,
            }
            self.archive.consume(length);
            self.offset = self.offset.saturating_add(length as u64);
            left -= length as u64;
        }
        Ok(())
    }

    /// Writes the next bytes of an entry to a place in its file.
    pub(super) fn content(&mut self, size: u64, file: &File, at: u64, name: &[u8]) -> Result<(), ArchiveError> {
        let mut at = at;
        self.pieces(size, |piece| {
            file.write_all_at(piece, at).map_err(|error| ArchiveError::write(name, error))?;
            at += piece.len() as u64;
            Ok(())
        })
    }

    /// Passes over a content.
    pub(super) fn skip(&mut self, size: u64) -> Result<(), ArchiveError> {
        self.pieces(size, |_| Ok(()))?;
        self.padding(size)
    }

    /// Passes over what fills the last block of a content.
    pub(super) fn padding(&mut self, size: u64) -> Result<(), ArchiveError> {
        let block = BLOCK as u64;
        self.pieces((block - size % block) % block, |_| Ok(()))
    }

    /// The content of an extended header.
    fn extension(&mut self, header: &tar::Header) -> Result<Vec<u8>, ArchiveError> {
        let refuse = || ArchiveError::refused(&header.path_bytes(), Refusal::Extension);
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

    /// A long name or target, which ends with a zero byte.
    fn text(&mut self, header: &tar::Header) -> Result<Vec<u8>, ArchiveError> {
        let mut text = self.extension(header)?;
        if text.last() == Some(&0) {
            text.pop();
        }
        Ok(text)
    }

    /// The map of a sparse file as GNU tar writes it into headers.
    fn old_map(&mut self, description: &Description<'_>) -> Result<Map, MapFailure> {
        let header = description.header.as_gnu().ok_or(Refusal::SparseFormat)?;
        let stored = description.stored()?;
        let size = header::unsigned(&header.realsize).ok_or(Refusal::Number("size"))?;
        let mut map = Map::default();
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

    /// The map of a sparse file that stands before its content: a count, then pairs, a number in each line.
    fn map(&mut self, description: &Description<'_>) -> Result<Map, MapFailure> {
        let get = |key| description.local.get(key);
        let version = (get("GNU.sparse.major"), get("GNU.sparse.minor"));
        if version != (Some(&b"1"[..]), Some(&b"0"[..])) {
            return Err(Refusal::SparseFormat.into());
        }
        let size = get("GNU.sparse.realsize").and_then(pax::decimal).ok_or(Refusal::Number("size"))?;
        let mut left = description.stored()?;
        let mut lines = Vec::new();
        let mut number = || -> Result<u64, MapFailure> {
            loop {
                if let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = lines.drain(..=end).collect();
                    return line.strip_suffix(b"\n").and_then(pax::decimal).ok_or(Refusal::SparseMap.into());
                }
                // Twenty digits are the longest line; what is longer is none.
                if lines.len() > 20 {
                    return Err(Refusal::SparseMap.into());
                }
                left = left.checked_sub(BLOCK as u64).ok_or(Refusal::SparseMap)?;
                lines.extend_from_slice(&self.block()?);
            }
        };
        let mut map = Map::default();
        for _ in 0..number()? {
            map.push(number()?, number()?)?;
        }
        Ok(map.complete(size, left)?)
    }
}

/// Adds the pieces of one header, up to the first that is empty.
fn add_old(map: &mut Map, pieces: &[tar::GnuSparseHeader]) -> Result<(), Refusal> {
    for piece in pieces.iter().take_while(|piece| !piece.is_empty()) {
        let number = |field| header::unsigned(field).ok_or(Refusal::SparseMap);
        map.push(number(&piece.offset)?, number(&piece.numbytes)?)?;
    }
    Ok(())
}

fn not_a_tar(start: Option<&[u8]>) -> ArchiveError {
    ArchiveError::NotATar(start.and_then(header::hint))
}

/// A map that cannot be had: it is refused, or the archive fails.
enum MapFailure {
    Refused(Refusal),
    Archive(ArchiveError),
}

// === impl MapFailure ===

impl MapFailure {
    fn named(self, name: &[u8]) -> ArchiveError {
        match self {
            Self::Refused(why) => ArchiveError::refused(name, why),
            Self::Archive(error) => error,
        }
    }
}

impl From<Refusal> for MapFailure {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}

impl From<ArchiveError> for MapFailure {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}
