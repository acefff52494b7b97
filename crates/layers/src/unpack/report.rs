//! Reports of the unpack process: a byte for the type, two for the length, then the body.
//!
//! The reader does not trust them: a hostile archive may control the process.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::digest::Digest;

/// The longest report: a path or a message.
const LONGEST: usize = 4096;

/// A message of the unpack process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnpackReport {
    /// Uncompressed bytes so far.
    Progress(u64),
    /// A directory was created without an entry.
    Made(PathBuf),
    /// Success; the last report.
    Done(UnpackTotals),
    /// The archive is not valid; the last report.
    Refused(String),
    /// A system call failed; the last report.
    Failed(String),
    /// The disk is full; the last report.
    Full(String),
}

/// Totals of an unpacked archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnpackTotals {
    pub(super) diff_id: Digest,
    pub(super) bytes: u64,
    pub(super) entries: u64,
    pub(super) skipped: u64,
}

/// Decodes reports from a stream.
#[derive(Debug, Default)]
pub(super) struct ReportDecoder(Vec<u8>);

/// A report that is not valid.
#[derive(Debug)]
pub(super) struct InvalidReport;

pub(super) struct ReportSender {
    channel: UnixStream,
    /// The rest of a report that was sent partially.
    rest: Vec<u8>,
}

// === impl UnpackReport ===

impl UnpackReport {
    fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Progress(bytes) => (b'p', bytes.to_le_bytes().to_vec()),
            Self::Made(path) => (b'm', path.as_os_str().as_bytes().to_vec()),
            Self::Done(totals) => (b'd', totals.encode()),
            Self::Refused(text) => (b'r', text.as_bytes().to_vec()),
            Self::Failed(text) => (b'f', text.as_bytes().to_vec()),
            Self::Full(text) => (b'n', text.as_bytes().to_vec()),
        };
        let body = body.get(..LONGEST).unwrap_or(&body);
        let length = u16::try_from(body.len()).unwrap_or(0).to_le_bytes();
        [&[kind][..], &length, body].concat()
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        match kind {
            b'p' => Some(Self::Progress(u64::from_le_bytes(body.try_into().ok()?))),
            b'm' => relative(body).map(Self::Made),
            b'd' => UnpackTotals::decode(body).map(Self::Done),
            b'r' => Some(Self::Refused(text(body))),
            b'f' => Some(Self::Failed(text(body))),
            b'n' => Some(Self::Full(text(body))),
            _ => None,
        }
    }
}

/// A relative path without `..`.
fn relative(body: &[u8]) -> Option<PathBuf> {
    let path = PathBuf::from(OsString::from_vec(body.to_vec()));
    let plain = |path: &Path| path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    (plain(&path) && !body.contains(&0)).then_some(path)
}

/// A message without control characters.
fn text(body: &[u8]) -> String {
    let shown = |letter: char| if letter.is_control() && letter != '\n' { '\u{fffd}' } else { letter };
    String::from_utf8_lossy(body).chars().map(shown).collect()
}

// === impl UnpackTotals ===

impl UnpackTotals {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.bytes, self.entries, self.skipped].map(u64::to_le_bytes).concat();
        [self.diff_id.hex().as_bytes(), &numbers].concat()
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let (digits, numbers) = body.split_at_checked(64)?;
        let diff_id = Digest::from_hex(std::str::from_utf8(digits).ok()?).ok()?;
        let mut numbers = numbers.chunks(8).map(|number| number.try_into().ok().map(u64::from_le_bytes));
        let mut number = || numbers.next()?;
        let totals = Self { diff_id, bytes: number()?, entries: number()?, skipped: number()? };
        numbers.next().is_none().then_some(totals)
    }
}

// === impl ReportDecoder ===

impl ReportDecoder {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next complete report.
    pub(super) fn next(&mut self) -> Result<Option<UnpackReport>, InvalidReport> {
        let Some(([kind, low, high], rest)) = self.0.split_first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        if length > LONGEST {
            return Err(InvalidReport);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let report = UnpackReport::decode(*kind, body).ok_or(InvalidReport)?;
        self.0.drain(..3 + length);
        Ok(Some(report))
    }
}

// === impl ReportSender ===

impl ReportSender {
    pub(super) fn new(channel: UnixStream) -> Self {
        Self { channel, rest: Vec::new() }
    }

    /// Sends progress, unless the channel is full: unpacking must not wait for it.
    pub(super) fn progress(&mut self, bytes: u64) -> io::Result<()> {
        let started = !self.rest.is_empty();
        if !started {
            self.rest = UnpackReport::Progress(bytes).encode();
        }
        self.channel.set_nonblocking(true)?;
        match self.channel.write(&self.rest) {
            Ok(sent) => drop(self.rest.drain(..sent.min(self.rest.len()))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && started => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.rest.clear(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends a report that must arrive.
    pub(super) fn send(&mut self, report: &UnpackReport) -> io::Result<()> {
        self.channel.set_nonblocking(false)?;
        self.channel.write_all(&std::mem::take(&mut self.rest))?;
        self.channel.write_all(&report.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<UnpackReport> {
        let totals = UnpackTotals { diff_id: Digest::of(b"x"), bytes: 1, entries: u64::MAX, skipped: 3 };
        let made = [PathBuf::new(), PathBuf::from("usr/lib")].map(UnpackReport::Made);
        let ends =
            [UnpackReport::Done(totals), UnpackReport::Refused("why".into()), UnpackReport::Failed(String::new())];
        [UnpackReport::Progress(7)].into_iter().chain(made).chain(ends).collect()
    }

    #[test]
    fn reports_are_decoded_from_any_chunks() {
        let bytes: Vec<u8> = all().iter().flat_map(UnpackReport::encode).collect();
        for size in [1, 2, 7, bytes.len()] {
            let (mut reports, mut received) = (ReportDecoder::default(), Vec::new());
            for piece in bytes.chunks(size) {
                reports.add(piece);
                while let Some(report) = reports.next().unwrap() {
                    received.push(report);
                }
            }
            assert_eq!(received, all());
        }
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_invalid_reports_are_rejected() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut reports = ReportDecoder::default();
            reports.add(bytes);
            while let Ok(Some(_)) = reports.next() {}
        });
        for bad in [&b"m\x02\0.."[..], b"m\x02\0/a", b"p\x01\0x", b"d\0\0", b"?\0\0", b"r\xff\xff"] {
            let mut reports = ReportDecoder::default();
            reports.add(bad);
            assert!(reports.next().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_message_has_no_control_characters() {
        assert_eq!(text(b"a\x1b[2J\nhint: b\xff"), "a\u{fffd}[2J\nhint: b\u{fffd}");
    }
}
