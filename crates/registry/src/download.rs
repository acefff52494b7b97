//! A blob as it comes: what breaks off goes on where it was.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use crate::endpoint::Opened;
use crate::error::RegistryError;
use crate::pace::{LeastRate, Pace};
use crate::patience::Patience;
use crate::registry::Places;

/// Pieces that wait to be read.
const WAITING: usize = 16;
/// How often a blob may break off without having come further.
const TRIES: u32 = 6;
/// So much has to have come for that.
const FURTHER: u64 = 64 << 10;

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) digest: String,
    pub(crate) size: u64,
}

/// The reading end.
pub(crate) struct Download {
    pieces: mpsc::Receiver<Result<Bytes, RegistryError>>,
    piece: Bytes,
    left: u64,
}

// === impl Download ===

impl Download {
    /// Of what has been opened at a byte, and the task that feeds it.
    pub(crate) fn new(
        places: Arc<Places>,
        wanted: Wanted,
        from: u64,
        opened: Opened,
        least: LeastRate,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (feed, pieces) = mpsc::channel(WAITING);
        let left = wanted.size.saturating_sub(from);
        (Self { pieces, piece: Bytes::new(), left }, pump(places, wanted, from, opened, Pace::new(least), feed))
    }
}

impl Read for Download {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || into.is_empty() {
            return Ok(0);
        }
        if self.piece.is_empty() {
            self.piece = match self.pieces.blocking_recv() {
                Some(piece) => piece.map_err(io::Error::other)?,
                // The task broke, for it says so when it ends otherwise.
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let length = self.piece.len().min(into.len());
        self.piece.copy_to_slice(into.get_mut(..length).unwrap_or_default());
        self.left = self.left.saturating_sub(length as u64);
        Ok(length)
    }
}

/// Moves pieces until all of it has come, nobody wants it any more, or it comes no further.
async fn pump(
    places: Arc<Places>,
    wanted: Wanted,
    from: u64,
    mut opened: Opened,
    mut pace: Pace,
    feed: mpsc::Sender<Result<Bytes, RegistryError>>,
) {
    let mut at = from;
    let mut begun = from;
    let mut patience = Patience::tries(TRIES);
    while at < wanted.size {
        let asked = places.asked(&wanted.digest);
        let begun_to_wait = Instant::now();
        let cause = match opened.next().await {
            Some(Ok(piece)) if piece.len() as u64 > wanted.size - at => {
                let said = format!("more than the {} bytes that it should have", wanted.size);
                let _gone = feed.send(Err(asked.nonsense(&said))).await;
                return;
            }
            Some(Ok(piece)) => {
                at += piece.len() as u64;
                if let Err(too_slow) = pace.came(piece.len() as u64, begun_to_wait.elapsed()) {
                    let _gone = feed.send(Err(asked.too_slow(too_slow))).await;
                    return;
                }
                if feed.send(Ok(piece)).await.is_err() {
                    return;
                }
                continue;
            }
            Some(Err(error)) => asked.broke(&error),
            None => asked.ended(at, wanted.size),
        };
        if at - begun >= FURTHER {
            patience = Patience::tries(TRIES);
        }
        begun = at;
        let reopened = match patience.failed(None) {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                places.open_blob(&wanted.digest, at).await
            }
            None => Err(cause),
        };
        match reopened {
            Ok(reopened) => opened = reopened,
            Err(error) => {
                let _gone = feed.send(Err(error)).await;
                return;
            }
        }
    }
}
