//! A download as a reader sees it: pieces that come from a task, hashed as they pass.

use std::io::{self, Read};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use sha2::{Digest, Sha256, Sha512};
use tokio::sync::mpsc::Receiver;

/// So many pieces wait for the reader.
pub(super) const WAITING: usize = 32;

/// A piece of a download. One that stops without an end was cut.
pub(super) enum Piece {
    Bytes(Bytes),
    End,
}

/// A download, read on a thread of its own.
pub(super) struct Stream {
    pieces: Receiver<Piece>,
    rest: Bytes,
    is_over: bool,
    sha256: Sha256,
    sha512: Sha512,
}

/// What the whole of a download hashes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hashes {
    /// In hexadecimal digits.
    pub(super) sha256: String,
    /// As registries write it.
    pub(super) integrity: String,
}

// === impl Stream ===

impl Stream {
    pub(super) fn new(pieces: Receiver<Piece>) -> Self {
        Self { pieces, rest: Bytes::new(), is_over: false, sha256: Sha256::new(), sha512: Sha512::new() }
    }

    /// Reads what is left, and tells what all of it was.
    pub(super) fn finish(mut self) -> io::Result<Hashes> {
        io::copy(&mut self, &mut io::sink())?;
        let integrity = format!("sha512-{}", STANDARD.encode(self.sha512.finalize()));
        Ok(Hashes { sha256: hex(&self.sha256.finalize()), integrity })
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && !self.is_over {
            match self.pieces.blocking_recv() {
                Some(Piece::Bytes(bytes)) => {
                    self.sha256.update(&bytes);
                    self.sha512.update(&bytes);
                    self.rest = bytes;
                }
                Some(Piece::End) => self.is_over = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let read = self.rest.len().min(into.len());
        let piece = self.rest.split_to(read);
        if let Some(into) = into.get_mut(..read) {
            into.copy_from_slice(&piece);
        }
        Ok(read)
    }
}

/// Bytes as digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
