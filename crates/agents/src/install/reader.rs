//! A blocking reader of a download, which hashes what it reads.

use std::io::{self, Read};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use sha2::{Digest, Sha256, Sha512};
use tokio::sync::mpsc::Receiver;

/// How many chunks are buffered.
pub(super) const MAX_BUFFERED: usize = 32;

/// A chunk of a download. Without `End` it was interrupted.
pub(super) enum DownloadChunk {
    Bytes(Bytes),
    End,
}

/// Reads a download on a blocking thread.
pub(super) struct DownloadReader {
    chunks: Receiver<DownloadChunk>,
    rest: Bytes,
    ended: bool,
    sha256: Sha256,
    sha512: Sha512,
}

/// Hashes of a whole download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DownloadHashes {
    /// SHA-256 in hexadecimal.
    pub(super) sha256: String,
    /// SHA-512 in the format of registries.
    pub(super) integrity: String,
}

// === impl DownloadReader ===

impl DownloadReader {
    pub(super) fn new(chunks: Receiver<DownloadChunk>) -> Self {
        Self { chunks, rest: Bytes::new(), ended: false, sha256: Sha256::new(), sha512: Sha512::new() }
    }

    /// Reads the rest, and returns the hashes.
    pub(super) fn finish(mut self) -> io::Result<DownloadHashes> {
        io::copy(&mut self, &mut io::sink())?;
        let integrity = format!("sha512-{}", STANDARD.encode(self.sha512.finalize()));
        Ok(DownloadHashes { sha256: hex(&self.sha256.finalize()), integrity })
    }
}

impl Read for DownloadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && !self.ended {
            match self.chunks.blocking_recv() {
                Some(DownloadChunk::Bytes(bytes)) => {
                    self.sha256.update(&bytes);
                    self.sha512.update(&bytes);
                    self.rest = bytes;
                }
                Some(DownloadChunk::End) => self.ended = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let read = self.rest.len().min(buffer.len());
        let chunk = self.rest.split_to(read);
        if let Some(buffer) = buffer.get_mut(..read) {
            buffer.copy_from_slice(&chunk);
        }
        Ok(read)
    }
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
