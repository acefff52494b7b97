//! The journal of a sandbox: a file to which what happened is appended, one fact after the other.
//!
//! Nothing waits for a disk. What was appended survives the death of every process, because the kernel has it; a power
//! cut takes the sandbox as well, and then the checksums tell where the file ends. For the same reason every byte of it
//! may be damaged: reading ends at the first record that is not the next fact, and what follows is as if never written.

mod format;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use carrel_protocol::cbor;
use rustix::fs::{AtFlags, Mode, OFlags};

use self::format::Facts;
use crate::messages::Fact;

/// The name of the file.
const NAME: &str = "journal";
/// Every so many facts, the place of one is remembered.
const STRIDE: u64 = 64;
/// About how many bytes are read at one time.
const BATCH: usize = 64 * 1024;

/// A journal that can be appended to. There is one at a time: whoever has the sandbox's lock.
#[derive(Debug)]
pub struct Journal {
    file: File,
    end: u64,
    last: u64,
    /// Where the facts 1, 1 + [`STRIDE`], 1 + 2 · [`STRIDE`] and so on begin.
    places: Vec<u64>,
    /// Whether there may be something behind the end.
    unclean: bool,
}

/// Everything that a journal tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The incarnation of the sandbox.
    pub incarnation: String,
    /// What happened, in its order: the sequences rise from 1, without a gap.
    pub facts: Vec<Fact>,
    /// Whether something follows that is no fact: one that was cut short, or damage.
    pub torn: bool,
    /// Whether more follows than was to be kept in memory.
    pub cut: bool,
}

/// Why a journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be made.
    #[error("the journal cannot be made: {0}")]
    Create(#[source] io::Error),
    /// The file could not be opened.
    #[error("the journal cannot be opened: {0}")]
    Open(#[source] io::Error),
    /// The file could not be read.
    #[error("the journal cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A fact could not be written.
    #[error("nothing can be appended to the journal: {0}")]
    Append(#[source] io::Error),
    /// What is left of a fact could not be taken away.
    #[error("the journal has a torn end that cannot be cut off: {0}")]
    Repair(#[source] io::Error),
    /// An incarnation has 1 to 255 bytes.
    #[error("an incarnation has 1 to 255 bytes")]
    Incarnation,
    /// The file is no journal, or not from its beginning.
    #[error("the file is not a journal")]
    NoJournal,
    /// A newer release wrote it.
    #[error("the journal has format {found}, which this release does not know")]
    Format {
        /// Its format.
        found: u8,
    },
    /// The fact is too large to be kept.
    #[error("a fact of {bytes} bytes is larger than the {max} that are kept", max = Journal::MAX_FACT)]
    TooLarge {
        /// Its bytes.
        bytes: usize,
    },
    /// The fact could not be put into bytes.
    #[error("the fact cannot be encoded: {0}")]
    Encode(#[from] cbor::CborEncodeError),
    /// A fact that was there is there no longer.
    #[error("fact {sequence} of the journal is damaged")]
    Damaged {
        /// Its sequence.
        sequence: u64,
    },
}

/// A part of a file, read without moving anybody's place in it.
struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

// === impl Journal ===

impl Journal {
    /// The most bytes that a fact may have, encoded. A command that is longer than that has to be shortened.
    pub const MAX_FACT: usize = format::MAX_BODY;
    /// The most bytes of a journal that are worth reading, once nobody appends to it any more: it may be anybody's work.
    pub const LARGEST: u64 = 32 * 1024 * 1024;
    /// About how much memory is taken by what [`load`](Self::load) returns.
    pub const LOADED: usize = 64 * 1024 * 1024;

    /// Makes the journal of a sandbox in its directory, where none must be.
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

    /// Opens it to go on where it ends. A torn end is cut off.
    pub fn open(directory: impl AsFd) -> Result<Self, JournalError> {
        Self::open_with(directory, drop)
    }

    /// The same, and tells every fact that is in it, in one pass.
    pub fn open_with(directory: impl AsFd, mut told: impl FnMut(Fact)) -> Result<Self, JournalError> {
        let file = open(directory, OFlags::RDWR)?;
        let mut places = Vec::new();
        let (_, mut facts) = Facts::of(whole(&file)?)?;
        let mut begin = facts.end();
        while let Some(fact) = facts.next()? {
            if (fact.sequence - 1) % STRIDE == 0 {
                places.push(begin);
            }
            begin = facts.end();
            told(fact);
        }
        let (end, last, torn) = (facts.end(), facts.last(), facts.torn());
        drop(facts);
        let mut journal = Self { file, end, last, places, unclean: torn };
        journal.clean()?;
        Ok(journal)
    }

    /// Reads it from its beginning and changes nothing.
    pub fn load(directory: impl AsFd) -> Result<Loaded, JournalError> {
        Self::load_within(directory, Self::LOADED)
    }

    /// The same, until so many bytes of memory are taken.
    pub fn load_within(directory: impl AsFd, most: usize) -> Result<Loaded, JournalError> {
        let file = open(directory, OFlags::RDONLY)?;
        let (incarnation, mut records) = Facts::of(whole(&file)?)?;
        let (mut facts, mut taken) = (Vec::new(), 0);
        while let Some(fact) = records.next()? {
            taken += fact.weight();
            if taken > most {
                return Ok(Loaded { incarnation, facts, torn: false, cut: true });
            }
            facts.push(fact);
        }
        Ok(Loaded { incarnation, facts, torn: records.torn(), cut: false })
    }

    /// Appends a fact, gives it its sequence and returns that. If it fails, nothing has changed.
    pub fn append(&mut self, fact: Fact) -> Result<u64, JournalError> {
        let sequence = self.last + 1;
        let record = format::record(&Fact { sequence, ..fact })?;
        self.clean()?;
        self.unclean = true;
        if let Err(error) = self.file.write_all_at(&record, self.end) {
            // If even this fails, the next one who appends tries it again first; who reads sees a torn end.
            let _cut_off = self.clean();
            return Err(JournalError::Append(error));
        }
        self.unclean = false;
        if self.last % STRIDE == 0 {
            self.places.push(self.end);
        }
        self.end += record.len() as u64;
        self.last = sequence;
        Ok(sequence)
    }

    /// Waits until everything that was appended is on the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// The sequence of the last fact; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The facts from a sequence on: at most so many, and no more once they make 64 KiB.
    pub fn read(&self, from: u64, most: usize) -> Result<Vec<Fact>, JournalError> {
        let mut found = Vec::new();
        let from = from.max(1);
        let stride = (from - 1) / STRIDE;
        let place = usize::try_from(stride).ok().and_then(|stride| self.places.get(stride));
        let (Some(&place), true) = (place, from <= self.last && most > 0) else { return Ok(found) };
        let mut facts = Facts::resumed(part(&self.file, place, self.end), place, stride * STRIDE);
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

    /// Takes away what is behind the end.
    fn clean(&mut self) -> Result<(), JournalError> {
        if self.unclean {
            self.file.set_len(self.end).map_err(JournalError::Repair)?;
            self.unclean = false;
        }
        Ok(())
    }
}

/// Opens a file that may be anything: nothing is followed, nothing is waited for, and only a plain one is taken.
fn open(directory: impl AsFd, flags: OFlags) -> Result<File, JournalError> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, NAME, flags, Mode::empty());
    let file = File::from(file.map_err(|errno| JournalError::Open(errno.into()))?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(JournalError::NoJournal) }
}

/// A file as long as it is now.
fn whole(file: &File) -> io::Result<BufReader<Part<'_>>> {
    Ok(part(file, 0, file.metadata()?.len()))
}

fn part(file: &File, at: u64, end: u64) -> BufReader<Part<'_>> {
    BufReader::with_capacity(BATCH, Part { file, at, end })
}

// === impl Fact ===

impl Fact {
    /// About how much memory it takes.
    pub(crate) fn weight(&self) -> usize {
        /// What the heap adds to the smallest text.
        const ALLOCATED: usize = 32;
        let outcome = self.outcome.iter().flat_map(|outcome| [&outcome.failure, &outcome.errno_name, &outcome.message]);
        let texts = [&self.job, &self.message].into_iter().chain(outcome).flatten();
        let texts = texts.map(|text| text.len() + ALLOCATED).sum::<usize>();
        let words = self.command.iter().flatten().map(|word| size_of::<String>() + ALLOCATED + word.len());
        size_of::<Self>() + texts + words.sum::<usize>()
    }
}

// === impl Part ===

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let room = left.min(buffer.len());
        let read = self.file.read_at(buffer.get_mut(..room).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
