//! The format of a journal: a head, then one record per fact.
//!
//! ```text
//! head    "carrelJ\n" | format: u8 | length: u8 | incarnation | checksum: u32
//! record  length of the body: u32 | checksum: u32 | body
//! ```
//!
//! Numbers are big-endian. A checksum is the CRC-32 of all other bytes of its head or record, and a body is a [`Fact`]
//! in CBOR.

use std::io::{self, Read};

use carrel_protocol::cbor::{self, Wire};
use carrel_protocol::minicbor::Encoder;

use super::JournalError;
use crate::messages::Fact;

const MAGIC: &[u8; 8] = b"carrelJ\n";
/// The only format.
const FORMAT: u8 = 1;
/// The maximum body of a record.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// A reader of facts, starting at the head or at any record.
#[derive(Debug)]
pub(super) struct FactReader<R> {
    bytes: R,
    buffer: Vec<u8>,
    end: u64,
    last: u64,
    torn: bool,
}

pub(super) fn head(incarnation: &str) -> Result<Vec<u8>, JournalError> {
    let length = match u8::try_from(incarnation.len()) {
        Ok(length @ 1..) => length,
        _ => return Err(JournalError::Incarnation),
    };
    let mut head = [MAGIC.as_slice(), &[FORMAT, length], incarnation.as_bytes()].concat();
    let checksum = crc32fast::hash(&head);
    head.extend_from_slice(&checksum.to_be_bytes());
    Ok(head)
}

pub(super) fn record(fact: &Fact) -> Result<Vec<u8>, JournalError> {
    let bytes = cbor::encoded_len(fact)?;
    let length = match u32::try_from(bytes) {
        Ok(length) if bytes <= MAX_BODY => length.to_be_bytes(),
        _ => return Err(JournalError::TooLarge { bytes }),
    };
    let mut body = Encoder::new(Vec::with_capacity(bytes));
    fact.encode(&mut body)?;
    let body = body.into_writer();
    Ok([&length, &checksum(length, &body).to_be_bytes(), body.as_slice()].concat())
}

fn checksum(length: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(body);
    hasher.finalize()
}

// === impl FactReader ===

impl<R: Read> FactReader<R> {
    /// Parses the head, and returns its incarnation and a reader of the facts.
    pub(super) fn of(bytes: R) -> Result<(String, Self), JournalError> {
        let mut facts = Self::resumed(bytes, 0, 0);
        let mut head = facts.take(MAGIC.len() + 2)?.to_vec();
        let length = match head.strip_prefix(MAGIC) {
            Some(&[FORMAT, length]) => usize::from(length),
            Some(&[found, _]) => return Err(JournalError::Format { found }),
            _ => return Err(JournalError::NoJournal),
        };
        let Some((incarnation, checksum)) = facts.take(length + 4)?.split_at_checked(length) else {
            return Err(JournalError::NoJournal);
        };
        head.extend_from_slice(incarnation);
        match std::str::from_utf8(incarnation).map(str::to_owned) {
            Ok(incarnation) if !incarnation.is_empty() && checksum == crc32fast::hash(&head).to_be_bytes() => {
                facts.end = head.len() as u64 + 4;
                Ok((incarnation, facts))
            }
            _ => Err(JournalError::NoJournal),
        }
    }

    /// Continues at an offset, after the fact with that sequence.
    pub(super) fn resumed(bytes: R, end: u64, last: u64) -> Self {
        Self { bytes, buffer: Vec::new(), end, last, torn: false }
    }

    /// The next fact. At anything else, reading ends.
    pub(super) fn next(&mut self) -> io::Result<Option<Fact>> {
        const HEAD: usize = 8;
        if self.torn {
            return Ok(None);
        }
        self.torn = true;
        let (length, stated) = match *self.take(HEAD)? {
            [a, b, c, d, e, f, g, h] => ([a, b, c, d], [e, f, g, h]),
            [] => {
                self.torn = false;
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let size = match usize::try_from(u32::from_be_bytes(length)) {
            Ok(size) if size <= MAX_BODY => size,
            _ => return Ok(None),
        };
        let body = self.take(size)?;
        if body.len() != size || checksum(length, body).to_be_bytes() != stated {
            return Ok(None);
        }
        let fact = cbor::decode_all::<Fact>(body).ok().filter(|fact| fact.sequence == self.last.saturating_add(1));
        if let Some(fact) = &fact {
            (self.last, self.torn) = (fact.sequence, false);
            self.end = self.end.saturating_add((HEAD + size) as u64);
        }
        Ok(fact)
    }

    /// The offset after the last fact.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The sequence of the last fact.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Whether reading ended at a torn or damaged record.
    pub(super) fn torn(&self) -> bool {
        self.torn
    }

    /// Reads so many bytes, or fewer at the end. The buffer grows with the bytes read, not with the declared length.
    fn take(&mut self, count: usize) -> io::Result<&[u8]> {
        self.buffer.clear();
        self.bytes.by_ref().take(count as u64).read_to_end(&mut self.buffer)?;
        Ok(&self.buffer)
    }
}
