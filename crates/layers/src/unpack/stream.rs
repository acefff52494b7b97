//! The decompressed stream, and its limits.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Compression;
use crate::archive::ArchiveLimits;

/// The read size of compressed input.
const BUFFER: usize = 256 << 10;
/// The highest compression ratio of a stream larger than `SMALL`.
const RATIO: u64 = 1000;
const SMALL: u64 = 256 << 20;
/// The overhead of an entry: headers and padding.
const BESIDE: u64 = 4096;
/// The largest window of zstd, as a power of two, which bounds memory.
const WINDOW: u32 = 27;

/// Decompresses while it is read.
pub(crate) struct DecompressedStream {
    content: Box<dyn Read>,
    compression: Compression,
    packed: Arc<AtomicU64>,
    unpacked: u64,
    most: u64,
}

/// Counts compressed bytes.
struct CountingReader {
    input: File,
    count: Arc<AtomicU64>,
}

// === impl DecompressedStream ===

impl DecompressedStream {
    pub(crate) fn new(input: File, compression: Compression, limits: ArchiveLimits) -> io::Result<Self> {
        let packed = Arc::new(AtomicU64::new(0));
        let source = BufReader::with_capacity(BUFFER, CountingReader { input, count: Arc::clone(&packed) });
        let content: Box<dyn Read> = match compression {
            Compression::None => Box::new(source),
            // Both decoders accept concatenated streams and reject other trailing bytes.
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(source)),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
                decoder.window_log_max(WINDOW)?;
                Box::new(decoder)
            }
        };
        let most = limits.entries.saturating_mul(BESIDE).saturating_add(limits.bytes);
        Ok(Self { content, compression, packed, unpacked: 0, most })
    }

    /// Uncompressed bytes so far.
    pub(super) fn unpacked(&self) -> u64 {
        self.unpacked
    }

    fn bounded(&self) -> io::Result<()> {
        let packed = self.packed.load(Ordering::Relaxed);
        if self.unpacked > SMALL && self.unpacked > packed.saturating_mul(RATIO) {
            return Err(io::Error::other(format!("rejected: the compression ratio is over {RATIO}")));
        }
        if self.unpacked > self.most {
            return Err(io::Error::other(format!("rejected: more than {} bytes in total", self.most)));
        }
        Ok(())
    }
}

impl Read for DecompressedStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match (self.content.read(into), self.compression) {
            (Err(error), Compression::Gzip | Compression::Zstd) if error.kind() != io::ErrorKind::Interrupted => {
                Err(io::Error::other(format!("the compressed data is damaged or truncated: {error}")))
            }
            (outcome, _) => outcome,
        }?;
        self.unpacked = self.unpacked.saturating_add(read as u64);
        self.bounded()?;
        Ok(read)
    }
}

// === impl CountingReader ===

impl Read for CountingReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
