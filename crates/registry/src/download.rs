//! Downloads a blob, and resumes after a broken connection.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use carrel_download::{
    DownloadError, DownloadPolicy, MinThroughput, OpenError, ReaderGone, ResumePoint, RetryBackoff, Transfer,
};
use reqwest::Response;
use tokio::sync::mpsc;

use crate::error::RegistryError;
use crate::registry::Endpoints;

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

/// The download between the registry and the reader.
struct BlobTransfer {
    endpoints: Arc<Endpoints>,
    blob: BlobRequest,
    feed: mpsc::Sender<Result<Bytes, RegistryError>>,
}

// === impl BlobDownload ===

impl BlobDownload {
    /// Continues from an open stream. The returned task feeds the reader.
    pub(crate) fn new(
        endpoints: Arc<Endpoints>,
        blob: BlobRequest,
        from: u64,
        opened: Response,
        minimum: MinThroughput,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (feed, chunks) = mpsc::channel(BUFFERED_CHUNKS);
        let left = blob.size.saturating_sub(from);
        (
            Self { chunks, chunk: Bytes::new(), left },
            pump(BlobTransfer { endpoints, blob, feed }, from, opened, minimum),
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
async fn pump(mut transfer: BlobTransfer, from: u64, opened: Response, minimum: MinThroughput) {
    let size = transfer.blob.size;
    let policy = DownloadPolicy {
        max_size: size,
        minimum,
        backoff: RetryBackoff::attempts(MAX_ATTEMPTS),
        progress: PROGRESS_BYTES,
        max_interruptions: u32::MAX,
    };
    let mut point = ResumePoint::immutable(from, size);
    let outcome = carrel_download::download(&mut transfer, &mut point, Some(opened), &policy).await;
    let context = transfer.endpoints.context(&transfer.blob.digest);
    let error = match outcome {
        Ok(()) | Err(DownloadError::ReaderGone) => return,
        Err(DownloadError::Open(error)) => error,
        Err(DownloadError::Connection(error)) => context.client_error(&error),
        Err(DownloadError::Truncated) => context.truncated(point.received(), size),
        Err(DownloadError::TooLarge) => context.invalid(&format!("more than the expected {size} bytes")),
        Err(DownloadError::TooSlow(slow)) => context.too_slow(slow),
        Err(DownloadError::Resume(error)) => context.invalid(&error.to_string()),
    };
    let _closed = transfer.feed.send(Err(error)).await;
}

// === impl BlobTransfer ===

impl Transfer for BlobTransfer {
    type Error = RegistryError;

    async fn open(&mut self, rest: &ResumePoint) -> Result<Response, OpenError<RegistryError>> {
        // The endpoints retry by themselves.
        self.endpoints.open_blob(&self.blob.digest, rest).await.map_err(OpenError::Permanent)
    }

    async fn write(&mut self, chunk: Bytes, _point: &ResumePoint) -> Result<(), ReaderGone> {
        self.feed.send(Ok(chunk)).await.map_err(|_| ReaderGone)
    }
}
