//! HTTP client for registries: retries failed requests and resumes interrupted downloads.

use std::{
    error::Error,
    fmt,
    sync::OnceLock,
    time::{Duration, Instant},
};

use bytes::Bytes;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_RANGE, ETAG, HeaderValue, IF_RANGE, RANGE},
};
use tokio::{sync::mpsc::Sender, task::spawn_blocking, time::sleep};

use super::{reader::DownloadChunk, settings::InstallTimeouts};

const USER_AGENT: &str = concat!("sandbox-agent/", env!("CARGO_PKG_VERSION"));
/// Maximum size of package metadata.
const MAX_METADATA: usize = 64 * 1024 * 1024;
/// Maximum size of a package.
const MAX_PACKAGE: u64 = 2 * 1024 * 1024 * 1024;
/// Minimum throughput: bytes per interval.
const MIN_BYTES: u64 = 60 * 1024;
const INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of interruptions of a download.
const MAX_INTERRUPTIONS: u32 = 100;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct RegistryRequest {
    pub(super) url: Url,
    /// Authorization header.
    pub(super) authorization: Option<HeaderValue>,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RegistryFetchError {
    /// A retry may succeed.
    Retryable(String),
    /// A retry will fail too.
    Permanent(String),
    /// Not found (404 or 410).
    NotFound,
    /// The reader of the download has stopped.
    ReaderGone,
}

pub(super) struct RegistryClient {
    timeouts: InstallTimeouts,
    certificates: Option<Vec<u8>>,
    loopback: OnceLock<TrustedClient>,
    remote: OnceLock<TrustedClient>,
}

/// A client, and whether it has root certificates.
#[derive(Clone)]
struct TrustedClient {
    client: Client,
    has_certificates: bool,
}

/// Measures throughput.
#[derive(Default)]
struct Throughput {
    bytes: u64,
    waited: Duration,
}

/// State of a download.
#[derive(Default)]
struct DownloadState {
    bytes: u64,
    total: Option<u64>,
    tag: Option<HeaderValue>,
}

// === impl RegistryFetchError ===

impl fmt::Display for RegistryFetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retryable(why) | Self::Permanent(why) => f.write_str(why),
            Self::NotFound => f.write_str("not found"),
            Self::ReaderGone => f.write_str("the download was cancelled"),
        }
    }
}

// === impl RegistryClient ===

impl RegistryClient {
    /// With additional root certificates in PEM format.
    pub(super) fn new(timeouts: InstallTimeouts, certificates: Option<Vec<u8>>) -> Self {
        Self { timeouts, certificates, loopback: OnceLock::new(), remote: OnceLock::new() }
    }

    /// Fetches a small response.
    pub(super) async fn text(&self, request: &RegistryRequest) -> Result<Vec<u8>, RegistryFetchError> {
        let client = self.client(&request.url).await?;
        let mut failures = 0;
        loop {
            let error = match self.fetch(&client, request).await {
                Err(RegistryFetchError::Retryable(why)) => why,
                outcome => return outcome,
            };
            failures += 1;
            self.pause(failures, error).await?;
        }
    }

    /// Downloads a large response in chunks, and reports progress.
    pub(super) async fn download(
        &self,
        request: &RegistryRequest,
        chunks: Sender<DownloadChunk>,
        report: &(dyn Fn(u64, Option<u64>) + Send + Sync),
    ) -> Result<(), RegistryFetchError> {
        let client = self.client(&request.url).await?;
        let mut download = DownloadState::default();
        let mut failures = 0;
        for _ in 0..MAX_INTERRUPTIONS {
            let before = download.bytes;
            let error = match self.download_rest(&client, request, &mut download, &chunks, report).await {
                Ok(()) => return chunks.send(DownloadChunk::End).await.map_err(|_| RegistryFetchError::ReaderGone),
                Err(RegistryFetchError::Retryable(why)) => why,
                Err(error) => return Err(error),
            };
            failures = if download.bytes > before { 1 } else { failures + 1 };
            self.pause(failures, error).await?;
        }
        Err(RegistryFetchError::Permanent(format!("the download was cut {MAX_INTERRUPTIONS} times")))
    }

    async fn fetch(&self, client: &Client, request: &RegistryRequest) -> Result<Vec<u8>, RegistryFetchError> {
        let mut response = self.send(client, request, None).await?;
        let mut text = Vec::new();
        let mut throughput = Throughput::default();
        while let Some(chunk) = throughput.next(&mut response).await? {
            text.extend_from_slice(&chunk);
            if text.len() > MAX_METADATA {
                return Err(RegistryFetchError::Permanent("the answer does not end".to_owned()));
            }
        }
        Ok(text)
    }

    /// Downloads the rest, until it is interrupted.
    async fn download_rest(
        &self,
        client: &Client,
        request: &RegistryRequest,
        download: &mut DownloadState,
        chunks: &Sender<DownloadChunk>,
        report: &(dyn Fn(u64, Option<u64>) + Send + Sync),
    ) -> Result<(), RegistryFetchError> {
        let mut response = self.send(client, request, Some(download)).await?;
        // A server without range requests starts over; what we have is skipped.
        let mut known = download.resumes(&response)?;
        if download.total.is_some_and(|total| total > MAX_PACKAGE) {
            return Err(too_large());
        }
        let mut throughput = Throughput::default();
        while let Some(mut chunk) = throughput.next(&mut response).await? {
            let passed = usize::try_from(known).unwrap_or(usize::MAX).min(chunk.len());
            known -= passed as u64;
            let chunk = chunk.split_off(passed);
            if chunk.is_empty() {
                continue;
            }
            download.bytes += chunk.len() as u64;
            if download.bytes > MAX_PACKAGE {
                return Err(too_large());
            }
            chunks.send(DownloadChunk::Bytes(chunk)).await.map_err(|_| RegistryFetchError::ReaderGone)?;
            report(download.bytes, download.total);
        }
        match download.total {
            Some(total) if download.bytes < total => {
                Err(RegistryFetchError::Retryable("the download was cut".to_owned()))
            }
            _ => Ok(()),
        }
    }

    async fn send(
        &self,
        client: &Client,
        request: &RegistryRequest,
        download: Option<&DownloadState>,
    ) -> Result<Response, RegistryFetchError> {
        let mut builder = client.get(request.url.clone());
        match download {
            None => builder = builder.header(ACCEPT, "application/json"),
            Some(DownloadState { bytes: 0, .. }) => {}
            Some(DownloadState { bytes, tag, .. }) => {
                builder = builder.header(RANGE, format!("bytes={bytes}-"));
                if let Some(tag) = tag {
                    builder = builder.header(IF_RANGE, tag.clone());
                }
            }
        }
        if let Some(authorization) = &request.authorization {
            builder = builder.header(AUTHORIZATION, authorization.clone());
        }
        let response = builder.send().await.map_err(fetch_error)?;
        let status = response.status();
        match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            StatusCode::NOT_FOUND | StatusCode::GONE => Err(RegistryFetchError::NotFound),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(RegistryFetchError::Permanent(format!("{status}: set the login of the registry in ~/.npmrc")))
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                Err(RegistryFetchError::Retryable(status.to_string()))
            }
            _ if status.is_server_error() => Err(RegistryFetchError::Retryable(status.to_string())),
            _ => Err(RegistryFetchError::Permanent(status.to_string())),
        }
    }

    async fn pause(&self, failures: u32, why: String) -> Result<(), RegistryFetchError> {
        if failures >= self.timeouts.attempts {
            return Err(RegistryFetchError::Permanent(why));
        }
        sleep(
            self.timeouts
                .retry_delay
                .saturating_mul(1 << failures.saturating_sub(1).min(6))
                .min(Duration::from_secs(10)),
        )
        .await;
        Ok(())
    }

    /// The system's certificates are many, so each client is built once.
    async fn client(&self, url: &Url) -> Result<Client, RegistryFetchError> {
        // The proxy of the environment cannot reach our loopback.
        let is_loopback = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        let cell = if is_loopback { &self.loopback } else { &self.remote };
        let trusted = match cell.get() {
            Some(trusted) => trusted.clone(),
            None => {
                let (timeouts, certificates) = (self.timeouts, self.certificates.clone());
                let built = spawn_blocking(move || build(timeouts, certificates.as_deref(), is_loopback)).await;
                let built = built.map_err(|error| RegistryFetchError::Permanent(error.to_string()))??;
                cell.get_or_init(|| built).clone()
            }
        };
        if url.scheme() == "https" && !trusted.has_certificates {
            return Err(RegistryFetchError::Permanent(format!("no certificates are known here; {CERTIFICATES}")));
        }
        Ok(trusted.client)
    }
}

/// Without certificates it can still use plain HTTP.
fn build(
    timeouts: InstallTimeouts,
    certificates: Option<&[u8]>,
    is_loopback: bool,
) -> Result<TrustedClient, RegistryFetchError> {
    // There is only one provider; it may be installed already.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let failed =
        |error: reqwest::Error| RegistryFetchError::Permanent(format!("{}; {CERTIFICATES}", error_chain(&error)));
    let own = certificates.map(reqwest::Certificate::from_pem_bundle).transpose().map_err(failed)?.unwrap_or_default();
    let builder = || {
        let builder =
            Client::builder().connect_timeout(timeouts.connect).read_timeout(timeouts.read).user_agent(USER_AGENT);
        if is_loopback { builder.no_proxy() } else { builder }
    };
    match builder().tls_certs_merge(own).build() {
        Ok(client) => Ok(TrustedClient { client, has_certificates: true }),
        Err(error) => {
            tracing::debug!(%error, "no root certificates found");
            let client = builder().tls_certs_only([]).build().map_err(failed)?;
            Ok(TrustedClient { client, has_certificates: false })
        }
    }
}

const CERTIFICATES: &str = "are the certificates of the system installed? SSL_CERT_FILE names others";

// === impl Throughput ===

impl Throughput {
    /// The next chunk, if the throughput is sufficient.
    async fn next(&mut self, response: &mut Response) -> Result<Option<Bytes>, RegistryFetchError> {
        let since = Instant::now();
        let chunk = response.chunk().await.map_err(fetch_error)?;
        if let Some(chunk) = &chunk {
            self.record(chunk.len() as u64, since.elapsed())?;
        }
        Ok(chunk)
    }

    fn record(&mut self, bytes: u64, waited: Duration) -> Result<(), RegistryFetchError> {
        self.bytes += bytes;
        self.waited += waited;
        if self.waited >= INTERVAL {
            let Self { bytes, waited } = std::mem::take(self);
            if bytes < MIN_BYTES {
                return Err(RegistryFetchError::Permanent(format!(
                    "too slow: {bytes} bytes in {} s",
                    waited.as_secs()
                )));
            }
        }
        Ok(())
    }
}

// === impl DownloadState ===

impl DownloadState {
    /// How many bytes of this response were received before.
    fn resumes(&mut self, response: &Response) -> Result<u64, RegistryFetchError> {
        let tag = response.headers().get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"));
        if self.bytes > 0 && self.tag.is_some() && tag.is_some() && self.tag.as_ref() != tag {
            return Err(RegistryFetchError::Permanent("it changed while it was downloaded".to_owned()));
        }
        self.tag = tag.cloned().or(self.tag.take());
        let length = response.content_length();
        if response.status() == StatusCode::OK {
            self.total = length.or(self.total);
            return Ok(self.bytes);
        }
        let download_rest = response
            .headers()
            .get(CONTENT_RANGE)
            .and_then(|download_rest| download_rest.to_str().ok())
            .unwrap_or_default();
        if self.bytes == 0 || !download_rest.starts_with(&format!("bytes {}-", self.bytes)) {
            return Err(RegistryFetchError::Permanent(
                "the server answers with another part than the requested one".to_owned(),
            ));
        }
        self.total = length.map(|length| self.bytes.saturating_add(length)).or(self.total);
        Ok(0)
    }
}

fn too_large() -> RegistryFetchError {
    RegistryFetchError::Permanent("the package is larger than 2 GiB".to_owned())
}

fn fetch_error(error: reqwest::Error) -> RegistryFetchError {
    let why = error_chain(&error.without_url());
    // An untrusted certificate stays untrusted.
    if why.contains("certificate") {
        RegistryFetchError::Permanent(format!("{why}; {CERTIFICATES}"))
    } else {
        RegistryFetchError::Retryable(why)
    }
}

/// The error with its causes.
fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let output = inner.to_string();
        if !text.contains(&output) {
            text = format!("{text}: {output}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_download_is_aborted() {
        let second = Duration::from_secs(1);
        let mut steady = Throughput::default();
        assert!((0..600).all(|_| steady.record(1024, second).is_ok()));
        let mut late = Throughput::default();
        late.record(10 * MIN_BYTES, INTERVAL).unwrap();
        assert!((0..59).all(|_| late.record(1000, second).is_ok()));
        assert_eq!(
            late.record(1000, second),
            Err(RegistryFetchError::Permanent("too slow: 60000 bytes in 60 s".to_owned()))
        );
    }
}
