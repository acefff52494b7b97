//! The journal of a sandbox: an append-only file of facts.
//!
//! It is not fsynced. Appended facts survive the death of every process, because they are in the page cache; a power
//! cut also kills the sandbox, and then the checksums mark the end of the file. For the same reason every byte may be
//! damaged: reading stops at the first record that is not the next fact, and ignores the rest.

mod format;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use carrel_protocol::cbor;
use rustix::fs::{AtFlags, Mode, OFlags};

use self::format::FactReader;
use crate::messages::Fact;

/// The file name.
const NAME: &str = "journal";
/// The interval of facts whose offsets are remembered.
const STRIDE: u64 = 64;
/// The approximate number of bytes per read.
const BATCH: usize = 64 * 1024;

/// A writable journal. There is only one at a time, held by the owner of the sandbox's lock.
#[derive(Debug)]
pub struct Journal {
    file: File,
    end: u64,
    last: u64,
    /// The offsets of facts 1, 1 + [`STRIDE`], 1 + 2 · [`STRIDE`] and so on.
    places: Vec<u64>,
    /// Whether there may be a torn record at the end.
    unclean: bool,
}

/// The content of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedJournal {
    /// The incarnation of the sandbox.
    pub incarnation: String,
    /// The facts in order: sequences start at 1, without gaps.
    pub facts: Vec<Fact>,
    /// Whether the file has a torn or damaged tail.
    pub torn: bool,
    /// Whether the memory budget truncated the facts.
    pub cut: bool,
}

/// Why a journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be created.
    #[error("failed to create the journal: {0}")]
    Create(#[source] io::Error),
    /// The file could not be opened.
    #[error("failed to open the journal: {0}")]
    Open(#[source] io::Error),
    /// The file could not be read.
    #[error("failed to read the journal: {0}")]
    Read(#[from] io::Error),
    /// A fact could not be appended.
    #[error("failed to append to the journal: {0}")]
    Append(#[source] io::Error),
    /// A torn record could not be truncated.
    #[error("failed to truncate a torn record of the journal: {0}")]
    Repair(#[source] io::Error),
    /// The incarnation is empty or too long.
    #[error("incarnation must have 1 to 255 bytes")]
    Incarnation,
    /// The file is not a journal, or its head is damaged.
    #[error("file is not a journal")]
    NoJournal,
    /// A newer release wrote it.
    #[error("journal has format {found}, which this release does not support")]
    Format {
        /// Its format.
        found: u8,
    },
    /// The fact is too large.
    #[error("fact of {bytes} bytes exceeds the maximum of {max}", max = Journal::MAX_FACT)]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The fact could not be encoded.
    #[error("failed to encode the fact: {0}")]
    Encode(#[from] cbor::CborEncodeError),
    /// A fact that was readable is now damaged.
    #[error("fact {sequence} of the journal is damaged")]
    Damaged { sequence: u64 },
}

/// A part of a file, read without moving the file offset.
struct FilePart<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

// === impl Journal ===

impl Journal {
    /// The maximum encoded size of a fact. Longer commands have to be truncated.
    pub const MAX_FACT: usize = format::MAX_BODY;
    /// The maximum size of a finished journal that is read: its content is untrusted.
    pub const LARGEST: u64 = 32 * 1024 * 1024;
    /// The approximate memory limit of [`load`](Self::load).
    pub const LOADED: usize = 64 * 1024 * 1024;

    /// Creates the journal of a sandbox in its directory; fails if one exists.
    pub fn create(directory: impl AsFd, incarnation: &str) -> Result<Self, JournalError> {
        let head = format::head(incarnation)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, NAME, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|errno| JournalError::Create(errno.into()))?);
        if let Err(error) = file.write_all_at(&head, 0) {
            let _made_just_now = rustix::fs::unlinkat(&directory, NAME, AtFlags::empty());
            return Err(JournalError::Create(error));
        }
        Ok(Self { file, end: head.len() as u64, last: 0, places: Vec::new(), unclean: false })
    }

    /// Opens it for appending. A torn tail is truncated.
    pub fn open(directory: impl AsFd) -> Result<Self, JournalError> {
        Self::open_with(directory, drop)
    }

    /// Like [`Self::open`], and calls back for every fact, in one pass.
    pub fn open_with(directory: impl AsFd, mut on_fact: impl FnMut(Fact)) -> Result<Self, JournalError> {
        let file = open(directory, OFlags::RDWR)?;
        let mut places = Vec::new();
        let (_, mut facts) = FactReader::of(whole(&file)?)?;
        let mut begin = facts.end();
        while let Some(fact) = facts.next()? {
            if (fact.sequence - 1) % STRIDE == 0 {
                places.push(begin);
            }
            begin = facts.end();
            on_fact(fact);
        }
        let (end, last, torn) = (facts.end(), facts.last(), facts.torn());
        drop(facts);
        let mut journal = Self { file, end, last, places, unclean: torn };
        journal.clean()?;
        Ok(journal)
    }

    /// Reads it from the beginning without changing it.
    pub fn load(directory: impl AsFd) -> Result<LoadedJournal, JournalError> {
        Self::load_within(directory, Self::LOADED)
    }

    /// Like [`Self::load`], within a memory budget.
    pub fn load_within(directory: impl AsFd, most: usize) -> Result<LoadedJournal, JournalError> {
        let file = open(directory, OFlags::RDONLY)?;
        let (incarnation, mut records) = FactReader::of(whole(&file)?)?;
        let (mut facts, mut taken) = (Vec::new(), 0);
        while let Some(fact) = records.next()? {
            taken += fact.weight();
            if taken > most {
                return Ok(LoadedJournal { incarnation, facts, torn: false, cut: true });
            }
            facts.push(fact);
        }
        Ok(LoadedJournal { incarnation, facts, torn: records.torn(), cut: false })
    }

    /// Appends a fact and returns its sequence. On failure nothing has changed.
    pub fn append(&mut self, fact: Fact) -> Result<u64, JournalError> {
        let sequence = self.last + 1;
        let record = format::record(&Fact { sequence, ..fact })?;
        self.clean()?;
        self.unclean = true;
        if let Err(error) = self.file.write_all_at(&record, self.end) {
            // If this fails too, the next append retries it first; readers see a torn tail.
            let _cut_off = self.clean();
            return Err(JournalError::Append(error));
        }
        self.unclean = false;
        if self.last.is_multiple_of(STRIDE) {
            self.places.push(self.end);
        }
        self.end += record.len() as u64;
        self.last = sequence;
        Ok(sequence)
    }

    /// Flushes everything to disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// The sequence of the last fact; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The facts from a sequence on: at most so many, and about 64 KiB.
    pub fn read(&self, from: u64, most: usize) -> Result<Vec<Fact>, JournalError> {
        let mut found = Vec::new();
        let from = from.max(1);
        let stride = (from - 1) / STRIDE;
        let place = usize::try_from(stride).ok().and_then(|stride| self.places.get(stride));
        let (Some(&place), true) = (place, from <= self.last && most > 0) else { return Ok(found) };
        let mut facts = FactReader::resumed(part(&self.file, place, self.end), place, stride * STRIDE);
        let mut bytes = 0;
        while facts.last() < self.last && found.len() < most && bytes < BATCH as u64 {
            let begin = facts.end();
            let sequence = facts.last() + 1;
            let fact = facts.next()?.ok_or(JournalError::Damaged { sequence })?;
            if sequence >= from {
                found.push(fact);
                bytes += facts.end() - begin;
            }
        }
        Ok(found)
    }

    /// Truncates the tail.
    fn clean(&mut self) -> Result<(), JournalError> {
        if self.unclean {
            self.file.set_len(self.end).map_err(JournalError::Repair)?;
            self.unclean = false;
        }
        Ok(())
    }
}

/// Opens an untrusted file: symlinks are not followed, nothing blocks, and only regular files are accepted.
fn open(directory: impl AsFd, flags: OFlags) -> Result<File, JournalError> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, NAME, flags, Mode::empty());
    let file = File::from(file.map_err(|errno| JournalError::Open(errno.into()))?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(JournalError::NoJournal) }
}

/// A file with its current length.
fn whole(file: &File) -> io::Result<BufReader<FilePart<'_>>> {
    Ok(part(file, 0, file.metadata()?.len()))
}

fn part(file: &File, at: u64, end: u64) -> BufReader<FilePart<'_>> {
    BufReader::with_capacity(BATCH, FilePart { file, at, end })
}

// === impl Fact ===

impl Fact {
    /// Its approximate memory usage.
    pub(crate) fn weight(&self) -> usize {
        /// The allocation overhead of the smallest text.
        const ALLOCATED: usize = 32;
        let outcome = self.outcome.iter().flat_map(|outcome| [&outcome.failure, &outcome.errno_name, &outcome.message]);
        let texts = [&self.job, &self.message].into_iter().chain(outcome).flatten();
        let texts = texts.map(|text| text.len() + ALLOCATED).sum::<usize>();
        let words = self.command.iter().flatten().map(|word| size_of::<String>() + ALLOCATED + word.len());
        size_of::<Self>() + texts + words.sum::<usize>()
    }
}

// === impl FilePart ===

impl Read for FilePart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let room = left.min(buffer.len());
        let read = self.file.read_at(buffer.get_mut(..room).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
