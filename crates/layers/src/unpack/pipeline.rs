//! The work itself: one thread decompresses, one hashes, and one writes the files.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, ScopedJoinHandle};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::CONTENT;
use super::chunks::{ChunkPool, ChunkReader, StreamChunk};
use super::process::UnpackArguments;
use super::report::{ReportSender, UnpackReport, UnpackTotals};
use super::stream::DecompressedStream;
use crate::archive::{self, ArchiveError, ArchiveLimits};
use crate::digest::{Digest, Hasher};

/// The interval of progress reports, in bytes.
const STEP: u64 = 1 << 20;

/// Why unpacking failed.
pub(super) enum UnpackFailure {
    /// The archive is not valid, or could not be written.
    Archive(ArchiveError),
    /// Something else failed in this process.
    Here(String),
}

/// Unpacks a stream into a directory and reports the result.
pub(super) fn work(
    order: UnpackArguments,
    input: File,
    into: &OwnedFd,
    reporter: &mut ReportSender,
) -> Result<(), UnpackFailure> {
    let stream = DecompressedStream::new(input, order.compression, order.limits).map_err(here("decompress"))?;
    let (diff_id, unpacked) = unpacked(order, stream, into, reporter)?;
    let failed = here("report");
    for path in unpacked.made {
        reporter.send(&UnpackReport::Made(path)).map_err(&failed)?;
    }
    let archive::ArchiveTotals { bytes, entries, skipped, made: _ } = unpacked;
    reporter.send(&UnpackReport::Done(UnpackTotals { diff_id, bytes, entries, skipped })).map_err(failed)
}

fn unpacked(
    order: UnpackArguments,
    stream: DecompressedStream,
    into: &OwnedFd,
    reporter: &mut ReportSender,
) -> Result<(Digest, archive::ArchiveTotals), UnpackFailure> {
    let (to_write, pieces) = channel();
    let (to_digest, chunks) = channel();
    std::thread::scope(|scope| {
        let start = here("start a thread");
        let digest = Builder::new().spawn_scoped(scope, || digest(chunks)).map_err(&start)?;
        let tree = Builder::new().spawn_scoped(scope, || tree(order, pieces, into)).map_err(&start)?;
        let read = read(stream, to_write, to_digest, reporter);
        // The tree's error names the entry, so it takes precedence.
        let unpacked = ended(tree)?.map_err(UnpackFailure::Archive)?;
        read.map_err(here("report"))?;
        Ok((ended(digest)?, unpacked))
    })
}

/// Reads the stream for the two other threads, until one of them stops.
fn read(
    mut stream: DecompressedStream,
    to_write: Sender<io::Result<Arc<StreamChunk>>>,
    to_digest: Sender<Arc<StreamChunk>>,
    reporter: &mut ReportSender,
) -> io::Result<()> {
    let pool = ChunkPool::new();
    let mut reported = 0;
    loop {
        match pool.fill(&mut stream) {
            Ok(Some(chunk)) => {
                if to_digest.send(Arc::clone(&chunk)).is_err() || to_write.send(Ok(chunk)).is_err() {
                    return Ok(());
                }
            }
            Ok(None) => return Ok(()),
            Err(error) => {
                let _ended = to_write.send(Err(error));
                return Ok(());
            }
        }
        if stream.unpacked() - reported >= STEP {
            reported = stream.unpacked();
            reporter.progress(reported)?;
        }
    }
}

fn digest(chunks: Receiver<Arc<StreamChunk>>) -> Digest {
    let mut hasher = Hasher::default();
    for chunk in chunks {
        // Hashing cannot fail.
        let _digested = hasher.write_all(chunk.bytes());
    }
    hasher.digest()
}

fn tree(
    order: UnpackArguments,
    pieces: Receiver<io::Result<Arc<StreamChunk>>>,
    into: &OwnedFd,
) -> Result<archive::ArchiveTotals, ArchiveError> {
    let mut pieces = ChunkReader::new(pieces);
    let Some(form) = order.form else { return file(pieces, into, order.limits) };
    let unpacked = archive::unpack(&mut pieces, into, form, order.limits)?;
    // Bytes after the end of the archive count for the digest only.
    io::copy(&mut pieces, &mut io::sink()).map_err(ArchiveError::Read)?;
    Ok(unpacked)
}

/// Writes the stream to one file.
fn file(pieces: ChunkReader, into: &OwnedFd, limits: ArchiveLimits) -> Result<archive::ArchiveTotals, ArchiveError> {
    let failed = |source| ArchiveError::Write { entry: CONTENT.into(), source };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(into, CONTENT, flags, Mode::from_raw_mode(0o600), ResolveFlags::BENEATH);
    let mut file = File::from(file.map_err(|errno| failed(errno.into()))?);
    let (mut pieces, mut bytes) = (pieces.take(limits.bytes.saturating_add(1)), 0);
    loop {
        let piece = pieces.fill_buf().map_err(ArchiveError::Read)?;
        if piece.is_empty() {
            return Ok(archive::ArchiveTotals { bytes, entries: 1, ..archive::ArchiveTotals::default() });
        }
        let length = piece.len();
        bytes += length as u64;
        if bytes > limits.bytes {
            let why = archive::EntryRejection::TooLarge(limits.bytes);
            return Err(ArchiveError::Refused { entry: CONTENT.into(), why });
        }
        file.write_all(piece).map_err(failed)?;
        pieces.consume(length);
    }
}

fn ended<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, UnpackFailure> {
    thread.join().map_err(|_| UnpackFailure::Here("a thread ended early".into()))
}

fn here(what: &'static str) -> impl Fn(io::Error) -> UnpackFailure {
    move |error| UnpackFailure::Here(format!("{what}: {error}"))
}

// === impl UnpackFailure ===

impl UnpackFailure {
    pub(super) fn report(self) -> UnpackReport {
        match self {
            Self::Archive(error) if error.is_full() => UnpackReport::Full(error.to_string()),
            Self::Archive(error @ ArchiveError::Write { .. }) => UnpackReport::Failed(error.to_string()),
            Self::Archive(error) => UnpackReport::Refused(error.to_string()),
            Self::Here(text) => UnpackReport::Failed(text),
        }
    }
}
