//! The work itself: one thread decompresses, one digests what comes out, and one writes the files.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, ScopedJoinHandle};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::CONTENT;
use super::chunks::{Chunk, Pieces, Pool};
use super::program::Order;
use super::report::{Report, Reporter, Totals};
use super::stream::Stream;
use crate::archive::{self, ArchiveError, Limits};
use crate::digest::{Digest, Hasher};

/// After how many bytes the next progress is told.
const STEP: u64 = 1 << 20;

/// Why there is no tree.
pub(super) enum Failure {
    /// Because of the archive.
    Archive(ArchiveError),
    /// Because of something here.
    Here(String),
}

/// Unpacks what comes from a stream into a directory, and says what came of it.
pub(super) fn work(order: Order, input: File, into: &OwnedFd, reporter: &mut Reporter) -> Result<(), Failure> {
    let stream = Stream::new(input, order.compression, order.limits).map_err(here("decompress"))?;
    let (diff_id, unpacked) = unpacked(order, stream, into, reporter)?;
    let told = here("report");
    for path in unpacked.made {
        reporter.say(&Report::Made(path)).map_err(&told)?;
    }
    let archive::Unpacked { bytes, entries, skipped, made: _ } = unpacked;
    reporter.say(&Report::Done(Totals { diff_id, bytes, entries, skipped })).map_err(told)
}

fn unpacked(
    order: Order,
    stream: Stream,
    into: &OwnedFd,
    reporter: &mut Reporter,
) -> Result<(Digest, archive::Unpacked), Failure> {
    let (to_write, pieces) = channel();
    let (to_digest, chunks) = channel();
    std::thread::scope(|scope| {
        let start = here("start a thread");
        let digest = Builder::new().spawn_scoped(scope, || digest(chunks)).map_err(&start)?;
        let tree = Builder::new().spawn_scoped(scope, || tree(order, pieces, into)).map_err(&start)?;
        let read = read(stream, to_write, to_digest, reporter);
        // The entry at which it fails is in what the tree says, so that counts first.
        let unpacked = ended(tree)?.map_err(Failure::Archive)?;
        read.map_err(here("report"))?;
        Ok((ended(digest)?, unpacked))
    })
}

/// Reads the stream for both others, until one of them needs no more.
fn read(
    mut stream: Stream,
    to_write: Sender<io::Result<Arc<Chunk>>>,
    to_digest: Sender<Arc<Chunk>>,
    reporter: &mut Reporter,
) -> io::Result<()> {
    let pool = Pool::new();
    let mut told = 0;
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
        if stream.unpacked() - told >= STEP {
            told = stream.unpacked();
            reporter.progress(told)?;
        }
    }
}

fn digest(chunks: Receiver<Arc<Chunk>>) -> Digest {
    let mut hasher = Hasher::default();
    for chunk in chunks {
        // Digesting does not fail.
        let _digested = hasher.write_all(chunk.bytes());
    }
    hasher.digest()
}

fn tree(
    order: Order,
    pieces: Receiver<io::Result<Arc<Chunk>>>,
    into: &OwnedFd,
) -> Result<archive::Unpacked, ArchiveError> {
    let mut pieces = Pieces::new(pieces);
    let Some(form) = order.form else { return file(pieces, into, order.limits) };
    let unpacked = archive::unpack(&mut pieces, into, form, order.limits)?;
    // Behind the end there is nothing to unpack, but it counts for the digest.
    io::copy(&mut pieces, &mut io::sink()).map_err(ArchiveError::Read)?;
    Ok(unpacked)
}

/// Writes all that comes out to one file.
fn file(pieces: Pieces, into: &OwnedFd, limits: Limits) -> Result<archive::Unpacked, ArchiveError> {
    let failed = |source| ArchiveError::Write { entry: CONTENT.into(), source };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(into, CONTENT, flags, Mode::from_raw_mode(0o600), ResolveFlags::BENEATH);
    let mut file = File::from(file.map_err(|errno| failed(errno.into()))?);
    let (mut pieces, mut bytes) = (pieces.take(limits.bytes.saturating_add(1)), 0);
    loop {
        let piece = pieces.fill_buf().map_err(ArchiveError::Read)?;
        if piece.is_empty() {
            return Ok(archive::Unpacked { bytes, entries: 1, ..archive::Unpacked::default() });
        }
        let length = piece.len();
        bytes += length as u64;
        if bytes > limits.bytes {
            let why = archive::Refusal::TooLarge(limits.bytes);
            return Err(ArchiveError::Refused { entry: CONTENT.into(), why });
        }
        file.write_all(piece).map_err(failed)?;
        pieces.consume(length);
    }
}

fn ended<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, Failure> {
    thread.join().map_err(|_| Failure::Here("a thread ended early".into()))
}

fn here(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Here(format!("{what}: {error}"))
}

// === impl Failure ===

impl Failure {
    pub(super) fn report(self) -> Report {
        match self {
            Self::Archive(error) if error.is_full() => Report::Full(error.to_string()),
            Self::Archive(error @ ArchiveError::Write { .. }) => Report::Failed(error.to_string()),
            Self::Archive(error) => Report::Refused(error.to_string()),
            Self::Here(text) => Report::Failed(text),
        }
    }
}
