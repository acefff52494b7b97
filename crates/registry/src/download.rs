//! Downloads a blob, and resumes after a broken connection.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use crate::backoff::RetryBackoff;
use crate::endpoint::BlobStream;
use crate::error::RegistryError;
use crate::registry::Endpoints;
use crate::throughput::{MinThroughput, ThroughputMeter};

/// Chunks that are buffered for the reader.
const BUFFERED_CHUNKS: usize = 16;
/// How often a download may fail in a row without progress.
const MAX_ATTEMPTS: u32 = 6;
/// What counts as progress.
const PROGRESS_BYTES: u64 = 64 << 10;

/// The blob to download.
#[derive(Clone, Debug)]
pub(crate) struct BlobRequest {
    pub(crate) digest: String,
    pub(crate) size: u64,
}

/// The reading side of a download.
pub(crate) struct BlobDownload {
    chunks: mpsc::Receiver<Result<Bytes, RegistryError>>,
    chunk: Bytes,
    left: u64,
}

// === impl BlobDownload ===

impl BlobDownload {
    /// Continues from an open stream. The returned task feeds the reader.
    pub(crate) fn new(
        endpoints: Arc<Endpoints>,
        blob: BlobRequest,
        from: u64,
        opened: BlobStream,
        minimum: MinThroughput,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (feed, chunks) = mpsc::channel(BUFFERED_CHUNKS);
        let left = blob.size.saturating_sub(from);
        (
            Self { chunks, chunk: Bytes::new(), left },
            pump(endpoints, blob, from, opened, ThroughputMeter::new(minimum), feed),
        )
    }
}

impl Read for BlobDownload {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || into.is_empty() {
            return Ok(0);
        }
        if self.chunk.is_empty() {
            self.chunk = match self.chunks.blocking_recv() {
                Some(chunk) => chunk.map_err(io::Error::other)?,
                // The task panicked: it reports every other failure through the channel.
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let length = self.chunk.len().min(into.len());
        self.chunk.copy_to_slice(into.get_mut(..length).unwrap_or_default());
        self.left = self.left.saturating_sub(length as u64);
        Ok(length)
    }
}

/// Feeds chunks until the blob is complete, the reader is dropped, or the attempts are used up.
async fn pump(
    endpoints: Arc<Endpoints>,
    blob: BlobRequest,
    from: u64,
    mut opened: BlobStream,
    mut meter: ThroughputMeter,
    feed: mpsc::Sender<Result<Bytes, RegistryError>>,
) {
    let mut at = from;
    let mut attempt_start = from;
    let mut backoff = RetryBackoff::attempts(MAX_ATTEMPTS);
    while at < blob.size {
        let context = endpoints.context(&blob.digest);
        let wait_started = Instant::now();
        let cause = match opened.next().await {
            Some(Ok(chunk)) if chunk.len() as u64 > blob.size - at => {
                let message = format!("more than the expected {} bytes", blob.size);
                let _closed = feed.send(Err(context.invalid(&message))).await;
                return;
            }
            Some(Ok(chunk)) => {
                at += chunk.len() as u64;
                if let Err(too_slow) = meter.record(chunk.len() as u64, wait_started.elapsed()) {
                    let _closed = feed.send(Err(context.too_slow(too_slow))).await;
                    return;
                }
                if feed.send(Ok(chunk)).await.is_err() {
                    return;
                }
                continue;
            }
            Some(Err(error)) => context.client_error(&error),
            None => context.truncated(at, blob.size),
        };
        if at - attempt_start >= PROGRESS_BYTES {
            backoff = RetryBackoff::attempts(MAX_ATTEMPTS);
        }
        attempt_start = at;
        let reopened = match backoff.next_delay(None) {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                endpoints.open_blob(&blob.digest, at).await
            }
            None => Err(cause),
        };
        match reopened {
            Ok(reopened) => opened = reopened,
            Err(error) => {
                let _closed = feed.send(Err(error)).await;
                return;
            }
        }
    }
}
