//! Downloads that continue where the connection broke: ranges, minimum throughput, backoff.

#![forbid(unsafe_code)]

mod backoff;
mod resume;
mod throughput;

use std::time::Instant;

use bytes::Bytes;
use reqwest::Response;

pub use self::backoff::RetryBackoff;
pub use self::resume::{ResumeError, ResumePoint};
pub use self::throughput::{BelowMinThroughput, MinThroughput, ThroughputMeter};

/// The two ends of a download: requests for it, and its reader.
pub trait Transfer: Send {
    /// Why a request failed.
    type Error: Send;

    /// Sends a request for the rest, with [`ResumePoint::headers`]. The response has status 200 or 206.
    fn open(&mut self, rest: &ResumePoint) -> impl Future<Output = Result<Response, OpenError<Self::Error>>> + Send;

    /// Hands a chunk over. `Err` if the reader is gone.
    fn write(&mut self, chunk: Bytes, point: &ResumePoint) -> impl Future<Output = Result<(), ReaderGone>> + Send;
}

/// A request that failed.
#[derive(Debug)]
pub enum OpenError<E> {
    /// A retry may succeed.
    Retryable(E),
    /// A retry fails too.
    Permanent(E),
}

/// The reader of a download is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderGone;

/// The bounds of a download.
#[derive(Clone, Copy, Debug)]
pub struct DownloadPolicy {
    /// The maximum size, also if the server names none.
    pub max_size: u64,
    pub minimum: MinThroughput,
    /// Attempts in a row without progress, and the delays between them.
    pub backoff: RetryBackoff,
    /// What counts as progress.
    pub progress: u64,
    /// How often the connection may break.
    pub max_interruptions: u32,
}

/// Why a download failed.
#[derive(Debug)]
pub enum DownloadError<E> {
    /// A request failed, for the last time.
    Open(E),
    /// The connection broke, for the last time.
    Connection(reqwest::Error),
    /// The body ended too early, for the last time.
    Truncated,
    /// A response did not continue the download.
    Resume(ResumeError),
    /// The content is larger than it may be.
    TooLarge,
    TooSlow(BelowMinThroughput),
    ReaderGone,
}

/// Downloads the rest; the first response may be open already.
pub async fn download<T: Transfer>(
    transfer: &mut T,
    point: &mut ResumePoint,
    mut opened: Option<Response>,
    policy: &DownloadPolicy,
) -> Result<(), DownloadError<T::Error>> {
    let mut meter = ThroughputMeter::new(policy.minimum);
    let (mut backoff, mut interruptions) = (policy.backoff, 0);
    loop {
        let before = point.received();
        let cause = match attempt(transfer, point, opened.take(), policy, &mut meter).await {
            Ok(()) => return Ok(()),
            Err(Interruption::Retryable(cause)) => cause,
            Err(Interruption::Permanent(error)) => return Err(error),
        };
        if point.received() - before >= policy.progress {
            backoff = policy.backoff;
        }
        interruptions += 1;
        match backoff.next_delay(None) {
            Some(delay) if interruptions < policy.max_interruptions => tokio::time::sleep(delay).await,
            _ => return Err(cause),
        }
    }
}

/// How an attempt ended.
enum Interruption<E> {
    Retryable(DownloadError<E>),
    Permanent(DownloadError<E>),
}

async fn attempt<T: Transfer>(
    transfer: &mut T,
    point: &mut ResumePoint,
    opened: Option<Response>,
    policy: &DownloadPolicy,
    meter: &mut ThroughputMeter,
) -> Result<(), Interruption<T::Error>> {
    let permanent = Interruption::<T::Error>::Permanent;
    let response = match opened {
        Some(response) => response,
        None => transfer.open(point).await.map_err(|error| match error {
            OpenError::Retryable(error) => Interruption::Retryable(DownloadError::Open(error)),
            OpenError::Permanent(error) => permanent(DownloadError::Open(error)),
        })?,
    };
    let mut body = point.open(response).map_err(|error| permanent(DownloadError::Resume(error)))?;
    if point.total().is_some_and(|total| total > policy.max_size) {
        return Err(permanent(DownloadError::TooLarge));
    }
    let max_size = point.total().unwrap_or(policy.max_size);
    loop {
        let since = Instant::now();
        let chunk = body.chunk().await.map_err(|error| Interruption::Retryable(DownloadError::Connection(error)))?;
        let Some((length, chunk)) = chunk else { break };
        // Also what was received before counts: a server that starts over must not be slow about it.
        let measured = meter.record(length, since.elapsed());
        measured.map_err(|slow| permanent(DownloadError::TooSlow(slow)))?;
        if chunk.is_empty() {
            continue;
        }
        point.add(chunk.len() as u64);
        if point.received() > max_size {
            return Err(permanent(DownloadError::TooLarge));
        }
        transfer.write(chunk, point).await.map_err(|ReaderGone| permanent(DownloadError::ReaderGone))?;
    }
    match point.total() {
        Some(total) if point.received() < total => Err(Interruption::Retryable(DownloadError::Truncated)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
