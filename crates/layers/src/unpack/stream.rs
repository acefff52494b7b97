//! The stream that comes out of what is compressed, and its bounds.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Compression;
use crate::archive::Limits;

/// How much is read of what is compressed at once.
const BUFFER: usize = 256 << 10;
/// How many times as large as what is compressed its content may be, once that is not small any more.
const RATIO: u64 = 1000;
const SMALL: u64 = 256 << 20;
/// What an entry may have besides its content: headers, and what fills its last block.
const BESIDE: u64 = 4096;
/// The largest window of zstd, as a power of two: the memory that a stream can ask for.
const WINDOW: u32 = 27;

/// A stream that is decompressed as it is read.
pub(crate) struct Stream {
    content: Box<dyn Read>,
    compression: Compression,
    packed: Arc<AtomicU64>,
    unpacked: u64,
    most: u64,
}

/// The compressed bytes, counted.
struct Packed {
    input: File,
    count: Arc<AtomicU64>,
}

// === impl Stream ===

impl Stream {
    pub(crate) fn new(input: File, compression: Compression, limits: Limits) -> io::Result<Self> {
        let packed = Arc::new(AtomicU64::new(0));
        let source = BufReader::with_capacity(BUFFER, Packed { input, count: Arc::clone(&packed) });
        let content: Box<dyn Read> = match compression {
            Compression::None => Box::new(source),
            // Both take several streams in a row for one, and refuse whatever else follows.
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

    /// How much has come out of it.
    pub(super) fn unpacked(&self) -> u64 {
        self.unpacked
    }

    fn bounded(&self) -> io::Result<()> {
        let packed = self.packed.load(Ordering::Relaxed);
        if self.unpacked > SMALL && self.unpacked > packed.saturating_mul(RATIO) {
            return Err(io::Error::other(format!(
                "it is refused: it is over {RATIO} times as large as it is compressed"
            )));
        }
        if self.unpacked > self.most {
            return Err(io::Error::other(format!("it is refused: there is more than {} bytes in all", self.most)));
        }
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match (self.content.read(into), self.compression) {
            (Err(error), Compression::Gzip | Compression::Zstd) if error.kind() != io::ErrorKind::Interrupted => {
                Err(io::Error::other(format!("what is compressed is damaged or cut short: {error}")))
            }
            (outcome, _) => outcome,
        }?;
        self.unpacked = self.unpacked.saturating_add(read as u64);
        self.bounded()?;
        Ok(read)
    }
}

// === impl Packed ===

impl Read for Packed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
