//! HTTP client for registries: retries failed requests and resumes interrupted downloads.

use std::{
    error::Error,
    fmt,
    sync::OnceLock,
    time::{Duration, Instant},
};

use bytes::Bytes;
use carrel_download::{
    DownloadError, DownloadPolicy, MinThroughput, OpenError, ReaderGone, ResumePoint, RetryBackoff, ThroughputMeter,
    Transfer,
};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue},
};
use tokio::{sync::mpsc::Sender, task::spawn_blocking, time::sleep};

use super::{reader::DownloadChunk, settings::InstallTimeouts};

const USER_AGENT: &str = concat!("sandbox-agent/", env!("CARGO_PKG_VERSION"));
/// Maximum size of package metadata.
const MAX_METADATA: usize = 64 * 1024 * 1024;
/// Maximum size of a package.
const MAX_PACKAGE: u64 = 2 * 1024 * 1024 * 1024;
const MIN_THROUGHPUT: MinThroughput = MinThroughput { bytes: 60 * 1024, within: Duration::from_secs(60) };
/// Maximum number of interruptions of a download.
const MAX_INTERRUPTIONS: u32 = 100;

#[derive(Clone, Debug)]
pub(super) struct RegistryRequest {
    pub(super) url: Url,
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

/// A package on its way to its reader.
struct PackageTransfer<'c> {
    client: &'c Client,
    request: &'c RegistryRequest,
    chunks: &'c Sender<DownloadChunk>,
    report: &'c (dyn Fn(u64, Option<u64>) + Send + Sync),
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
        let mut backoff = self.backoff();
        loop {
            let why = match fetch(&client, request).await {
                Err(RegistryFetchError::Retryable(why)) => why,
                outcome => return outcome,
            };
            match backoff.next_delay(None) {
                Some(delay) => sleep(delay).await,
                None => return Err(RegistryFetchError::Permanent(why)),
            }
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
        let policy = DownloadPolicy {
            max_size: MAX_PACKAGE,
            minimum: MIN_THROUGHPUT,
            backoff: self.backoff(),
            progress: 1,
            max_interruptions: MAX_INTERRUPTIONS,
        };
        let mut transfer = PackageTransfer { client: &client, request, chunks: &chunks, report };
        let outcome = carrel_download::download(&mut transfer, &mut ResumePoint::default(), None, &policy).await;
        outcome.map_err(download_error)?;
        chunks.send(DownloadChunk::End).await.map_err(|_| RegistryFetchError::ReaderGone)
    }

    fn backoff(&self) -> RetryBackoff {
        RetryBackoff::attempts(self.timeouts.attempts).first_delay(self.timeouts.retry_delay)
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

// === impl PackageTransfer ===

impl Transfer for PackageTransfer<'_> {
    type Error = RegistryFetchError;

    async fn open(&mut self, rest: &ResumePoint) -> Result<Response, OpenError<RegistryFetchError>> {
        send(self.client, self.request, rest.headers()).await.map_err(|error| match error {
            RegistryFetchError::Retryable(_) => OpenError::Retryable(error),
            _ => OpenError::Permanent(error),
        })
    }

    async fn write(&mut self, chunk: Bytes, point: &ResumePoint) -> Result<(), ReaderGone> {
        self.chunks.send(DownloadChunk::Bytes(chunk)).await.map_err(|_| ReaderGone)?;
        (self.report)(point.received(), point.total());
        Ok(())
    }
}

/// Why a download failed, when it is not retried any more.
fn download_error(error: DownloadError<RegistryFetchError>) -> RegistryFetchError {
    let permanent = RegistryFetchError::Permanent;
    match error {
        DownloadError::Open(RegistryFetchError::Retryable(why)) => permanent(why),
        DownloadError::Open(error) => error,
        DownloadError::Connection(error) => permanent(fetch_error(error).to_string()),
        DownloadError::Truncated => permanent("the download was cut off too often".to_owned()),
        DownloadError::TooLarge => permanent("the package is larger than 2 GiB".to_owned()),
        DownloadError::TooSlow(slow) => permanent(format!("too slow: {slow}")),
        DownloadError::Resume(error) => permanent(error.to_string()),
        DownloadError::ReaderGone => RegistryFetchError::ReaderGone,
    }
}

/// Fetches a small response once.
async fn fetch(client: &Client, request: &RegistryRequest) -> Result<Vec<u8>, RegistryFetchError> {
    let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
    let mut response = send(client, request, accept).await?;
    let mut text = Vec::new();
    let mut meter = ThroughputMeter::new(MIN_THROUGHPUT);
    loop {
        let since = Instant::now();
        let Some(chunk) = response.chunk().await.map_err(fetch_error)? else { return Ok(text) };
        let measured = meter.record(chunk.len() as u64, since.elapsed());
        measured.map_err(|slow| RegistryFetchError::Permanent(format!("too slow: {slow}")))?;
        text.extend_from_slice(&chunk);
        if text.len() > MAX_METADATA {
            return Err(RegistryFetchError::Permanent("the response is too large".to_owned()));
        }
    }
}

async fn send(client: &Client, request: &RegistryRequest, headers: HeaderMap) -> Result<Response, RegistryFetchError> {
    let mut builder = client.get(request.url.clone()).headers(headers);
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
