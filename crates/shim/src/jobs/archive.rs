//! Finished jobs that are not in memory: in two unlinked files, which are freed with this process.
//!
//! One has a record per job, in order; the other is a hash table from ids to records. Memory usage does not grow with
//! the number of jobs.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use carrel_protocol::cbor::{self, Wire};
use carrel_protocol::minicbor::Encoder;
use carrel_shim_client::messages::JobCommand;
use rustix::fs::{AtFlags, Mode, OFlags};

use super::archived::ArchivedJob;

/// The temporary name of a file before it is unlinked.
const UNFINISHED: &str = ".archive.new";
/// The initial number of slots of the table.
const SLOTS: u64 = 4096;
/// The size of a slot: the hash of an id, which is not 0, and the offset of its record.
const SLOT: usize = 16;
/// The size of a record's head: its length, whether the job was pruned, and the disk usage of its outputs.
const HEAD: usize = 4 + 1 + 8;
/// The maximum size of a valid record.
const LARGEST: usize = 4 * 1024 * 1024;

/// Finished jobs.
#[derive(Debug, Default)]
pub(super) struct Archive {
    files: Option<ArchiveFiles>,
    hashers: [RandomState; 2],
    kept: usize,
    forgotten: usize,
    /// The commands of pruned jobs that could not be written.
    unwritten: HashMap<String, u64>,
}

#[derive(Debug)]
struct ArchiveFiles {
    records: File,
    end: u64,
    table: File,
    slots: u64,
    used: u64,
}

/// A record that was read.
#[derive(Debug)]
pub(super) struct ArchivedRecord {
    pub(super) offset: u64,
    /// The offset of the next one.
    pub(super) next: u64,
    pub(super) forgotten: bool,
    pub(super) job: ArchivedJob,
}

#[derive(Clone, Copy, Debug)]
struct RecordHead {
    length: usize,
    forgotten: bool,
    charged: u64,
}

/// Creates an unlinked file beside the outputs of jobs.
fn create_unlinked(logs: &OwnedFd) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(logs, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    rustix::fs::unlinkat(logs, UNFINISHED, AtFlags::empty())?;
    Ok(file.into())
}

// === impl Archive ===

impl Archive {
    /// The number of kept jobs, and of pruned ones.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.kept, self.forgotten)
    }

    /// A hash of a command without the size of its terminal.
    pub(super) fn command_hash(&self, command: &JobCommand) -> u64 {
        let [one, _] = &self.hashers;
        let JobCommand { program, args, env, cwd, user, tty, stdin, timeout_ms, keep_bytes, rlimits, .. } = command;
        let limits: Vec<_> = rlimits.iter().map(|limit| (&limit.resource, limit.soft, limit.hard)).collect();
        one.hash_one((program, args, env, cwd, user, tty, stdin, timeout_ms, keep_bytes, limits))
    }

    /// Writes a job. On failure nothing has changed.
    pub(super) fn push(&mut self, logs: &OwnedFd, job: &ArchivedJob, forgotten: bool) -> io::Result<()> {
        let hash = self.hash(&job.info.job);
        let files = match &mut self.files {
            Some(files) => files,
            None => self.files.insert(ArchiveFiles::new(logs)?),
        };
        files.push(logs, hash, job, forgotten)?;
        if forgotten {
            self.forgotten += 1;
        } else {
            self.kept += 1;
        }
        Ok(())
    }

    /// Remembers a pruned job whose record cannot be written.
    pub(super) fn remember(&mut self, id: String, trace: u64) {
        self.unwritten.insert(id, trace);
        self.forgotten += 1;
    }

    /// The record of a job. An unreadable one counts as missing.
    pub(super) fn find(&self, id: &str) -> Option<ArchivedRecord> {
        let files = self.files.as_ref()?;
        files.find(self.hash(id), id)
    }

    /// The command hash of a pruned job.
    pub(super) fn unwritten(&self, id: &str) -> Option<u64> {
        self.unwritten.get(id).copied()
    }

    /// The first record from an offset on whose job is kept, and uses at least so much disk space.
    pub(super) fn next(&self, mut offset: u64, charged: u64) -> Option<ArchivedRecord> {
        let files = self.files.as_ref()?;
        loop {
            let head = files.head(offset)?;
            if !head.forgotten && head.charged >= charged {
                return files.read(offset);
            }
            offset += (HEAD + head.length) as u64;
        }
    }

    /// Marks the job of a record as pruned. Returns whether that could be written.
    pub(super) fn mark_pruned(&mut self, offset: u64) -> bool {
        let Some(files) = &self.files else { return false };
        let marked = files.records.write_all_at(&[1], offset + 4).is_ok();
        if marked {
            self.kept -= 1;
            self.forgotten += 1;
        }
        marked
    }

    /// A hash with random keys, never 0.
    fn hash(&self, id: &str) -> u64 {
        let [_, other] = &self.hashers;
        other.hash_one(id) | 1
    }
}

// === impl ArchiveFiles ===

impl ArchiveFiles {
    fn new(logs: &OwnedFd) -> io::Result<Self> {
        Ok(Self { records: create_unlinked(logs)?, end: 0, table: table(logs, SLOTS)?, slots: SLOTS, used: 0 })
    }

    fn push(&mut self, logs: &OwnedFd, hash: u64, job: &ArchivedJob, forgotten: bool) -> io::Result<()> {
        let mut body = Encoder::new(Vec::new());
        job.encode(&mut body).map_err(io::Error::other)?;
        let body = body.into_writer();
        let length = u32::try_from(body.len()).ok().filter(|length| *length as usize <= LARGEST);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?.to_be_bytes();
        let charged = job.charged().to_be_bytes();
        let record = [&length[..], &[u8::from(forgotten)], &charged, &body].concat();
        if (self.used + 1) * 2 > self.slots {
            self.grow(logs)?;
        }
        self.records.write_all_at(&record, self.end)?;
        insert(&self.table, self.slots, hash, self.end)?;
        self.used += 1;
        self.end += record.len() as u64;
        Ok(())
    }

    fn grow(&mut self, logs: &OwnedFd) -> io::Result<()> {
        let slots = self.slots * 2;
        let larger = table(logs, slots)?;
        for slot in 0..self.slots {
            let (hash, offset) = slot_at(&self.table, slot)?;
            if hash != 0 {
                insert(&larger, slots, hash, offset)?;
            }
        }
        (self.table, self.slots) = (larger, slots);
        Ok(())
    }

    fn find(&self, hash: u64, id: &str) -> Option<ArchivedRecord> {
        for step in 0..self.slots {
            let (found, offset) = slot_at(&self.table, slot_of(hash, step, self.slots)).ok()?;
            if found == 0 {
                return None;
            }
            if let Some(record) = (found == hash).then(|| self.read(offset)).flatten()
                && record.job.info.job == id
            {
                return Some(record);
            }
        }
        None
    }

    fn head(&self, offset: u64) -> Option<RecordHead> {
        if offset >= self.end {
            return None;
        }
        let mut bytes = [0; HEAD];
        self.records.read_exact_at(&mut bytes, offset).ok()?;
        let (length, rest) = bytes.split_first_chunk()?;
        let (forgotten, charged) = rest.split_first()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok().filter(|length| *length <= LARGEST)?;
        Some(RecordHead { length, forgotten: *forgotten != 0, charged: u64::from_be_bytes(*charged.first_chunk()?) })
    }

    fn read(&self, offset: u64) -> Option<ArchivedRecord> {
        let head = self.head(offset)?;
        let (mut body, begin) = (vec![0; head.length], offset + HEAD as u64);
        self.records.read_exact_at(&mut body, begin).ok()?;
        let job = cbor::decode_all(&body).ok()?;
        Some(ArchivedRecord { offset, next: begin + head.length as u64, forgotten: head.forgotten, job })
    }
}

/// A table with so many empty slots.
fn table(logs: &OwnedFd, slots: u64) -> io::Result<File> {
    let file = create_unlinked(logs)?;
    file.set_len(slots * SLOT as u64)?;
    Ok(file)
}

/// The slot of an entry after so many probes. The lowest bit of a hash is the same for all.
fn slot_of(hash: u64, step: u64, slots: u64) -> u64 {
    (hash >> 1).wrapping_add(step) % slots
}

fn slot_at(table: &File, slot: u64) -> io::Result<(u64, u64)> {
    let mut bytes = [0; SLOT];
    table.read_exact_at(&mut bytes, slot * SLOT as u64)?;
    let (hash, offset) = bytes.split_at(SLOT / 2);
    let number = |half: &[u8]| half.first_chunk().map_or(0, |half| u64::from_be_bytes(*half));
    Ok((number(hash), number(offset)))
}

/// Inserts an entry into the first free slot of its probe sequence.
fn insert(table: &File, slots: u64, hash: u64, offset: u64) -> io::Result<()> {
    for step in 0..slots {
        let slot = slot_of(hash, step, slots);
        if slot_at(table, slot)?.0 == 0 {
            let bytes = [hash.to_be_bytes(), offset.to_be_bytes()].concat();
            return table.write_all_at(&bytes, slot * SLOT as u64);
        }
    }
    Err(io::ErrorKind::StorageFull.into())
}
