//! One image at a registry or a mirror of it: requests for manifests and blobs.

mod authorize;
mod push;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use carrel_download::{ResumePoint, RetryBackoff};
use carrel_layers::{MAX_MANIFEST_SIZE, media};
use oci_client::{Reference, RegistryOperation};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::ImageName;
use crate::authorization::AuthChallenge;
use crate::config::{RegistriesConfig, RegistryMirror};
use crate::credentials::{RegistryCredentials, RegistryLogin};
use crate::egress::EgressPolicy;
use crate::error::{LoginState, RegistryError, RequestContext};
use crate::http::{self, HttpRequest};
use crate::transport::RegistryTransport;

/// Attempts at a registry, for transient errors.
const MAX_ATTEMPTS: u32 = 6;
/// Attempts at a mirror: fewer, because the registry is the fallback.
const MIRROR_ATTEMPTS: u32 = 2;
/// Attempts to connect: fewer, so that a misspelt host fails soon.
const CONNECT_ATTEMPTS: u32 = 3;
/// The part of an error response that is read.
const MAX_ERROR_BODY: u64 = 64 << 10;

/// A registry or mirror that may have an image.
pub(crate) struct Endpoint {
    /// The image's name at this endpoint.
    reference: Reference,
    insecure: Option<bool>,
    ca: Option<PathBuf>,
    login: RegistryLogin,
    egress: EgressPolicy,
    attempts: u32,
    transport: Mutex<Option<Arc<RegistryTransport>>>,
    /// Whether a login is withheld: see [`RegistryTransport::is_plaintext`].
    withheld: AtomicBool,
}

/// A manifest or an index as the server sent it.
pub(crate) struct ManifestResponse {
    pub(crate) media_type: String,
    pub(crate) bytes: Vec<u8>,
}

/// Attempts left for one operation.
pub(crate) struct RetryState {
    backoff: RetryBackoff,
    connects: RetryBackoff,
    /// Whether a rejected token was renewed already.
    renewed: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestMediaType {
    media_type: Option<String>,
}

// === impl Endpoint ===

impl Endpoint {
    /// The registry in the image's name.
    pub(crate) fn own(
        name: &ImageName,
        settings: &RegistriesConfig,
        credentials: &RegistryCredentials,
        egress: &EgressPolicy,
    ) -> Result<Self, RegistryError> {
        let insecure = settings.of(name.registry()).insecure;
        Self::new(name, insecure, settings, credentials, egress, MAX_ATTEMPTS)
    }

    /// A configured mirror of the registry.
    pub(crate) fn mirror(
        name: &ImageName,
        mirror: &RegistryMirror,
        settings: &RegistriesConfig,
        credentials: &RegistryCredentials,
        egress: &EgressPolicy,
    ) -> Result<Self, RegistryError> {
        let insecure = mirror.insecure.or(settings.of(&mirror.registry).insecure);
        Self::new(&mirror.name(name), insecure, settings, credentials, egress, MIRROR_ATTEMPTS)
    }

    fn new(
        name: &ImageName,
        insecure: Option<bool>,
        settings: &RegistriesConfig,
        credentials: &RegistryCredentials,
        egress: &EgressPolicy,
        attempts: u32,
    ) -> Result<Self, RegistryError> {
        let (ca, login) = (settings.of(name.registry()).ca, credentials.login(name)?);
        let (transport, withheld) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self {
            reference: name.reference().clone(),
            insecure,
            ca,
            login,
            egress: egress.clone(),
            attempts,
            transport,
            withheld,
        })
    }

    pub(crate) fn retry_state(&self) -> RetryState {
        let connects = RetryBackoff::attempts(self.attempts.min(CONNECT_ATTEMPTS));
        RetryState { backoff: RetryBackoff::attempts(self.attempts), connects, renewed: false }
    }

    /// After a failure: waits for the next attempt, or returns the error if none is left.
    pub(crate) async fn wait_to_retry(
        &self,
        retries: &mut RetryState,
        error: RegistryError,
    ) -> Result<(), RegistryError> {
        let wait = match &error {
            RegistryError::Unreachable { .. } => retries.connects.next_delay(None),
            error if error.is_transient() => retries.backoff.next_delay(error.retry_after()),
            _ => None,
        };
        match wait {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            None => Err(error),
        }
    }

    /// Gets the manifest of the tag, or one by its digest.
    pub(crate) async fn manifest(&self, digest: Option<&str>) -> Result<ManifestResponse, RegistryError> {
        let reference = match digest {
            Some(digest) => self.reference.clone_with_digest(digest.to_owned()),
            None => self.reference.clone(),
        };
        let what = reference.to_string();
        let which = reference.digest().or(reference.tag()).unwrap_or("latest");
        let mut retries = self.retry_state();
        loop {
            match self.manifest_once(which, &what).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.wait_to_retry(&mut retries, error).await?,
            }
        }
    }

    async fn manifest_once(&self, which: &str, what: &str) -> Result<ManifestResponse, RegistryError> {
        let kinds = HeaderValue::from_str(&media::MANIFESTS.join(", "));
        let kinds = kinds.map_err(|error| RegistryError::Setup(error.to_string()))?;
        let path = format!("manifests/{which}");
        let response = self
            .request(Method::GET, &path, HeaderMap::from_iter([(ACCEPT, kinds)]), RegistryOperation::Pull, what)
            .await?;
        let context = self.context(what);
        if response.status() != StatusCode::OK {
            return Err(self.error_response(response, context).await);
        }
        let message = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let message = message.and_then(|value| value.split(';').next()).unwrap_or_default().trim().to_owned();
        let bytes = http::body(response, MAX_MANIFEST_SIZE).await.map_err(|failure| context.http_error(failure))?;
        Ok(ManifestResponse { media_type: media_type(message, &bytes), bytes })
    }

    /// Requests the rest of a blob. The store verifies the content.
    pub(crate) async fn open_blob(&self, digest: &str, rest: &ResumePoint) -> Result<Response, RegistryError> {
        let mut retries = self.retry_state();
        loop {
            match self.open_once(digest, rest).await {
                Ok(opened) => return Ok(opened),
                Err(error) => self.wait_to_retry(&mut retries, error).await?,
            }
        }
    }

    async fn open_once(&self, digest: &str, rest: &ResumePoint) -> Result<Response, RegistryError> {
        let path = format!("blobs/{digest}");
        let response = self.request(Method::GET, &path, rest.headers(), RegistryOperation::Pull, digest).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT | StatusCode::OK => Ok(response),
            _ => Err(self.error_response(response, self.context(digest)).await),
        }
    }

    /// Whether the repository has a blob.
    pub(crate) async fn has(&self, digest: &str) -> Result<bool, RegistryError> {
        let (path, all) = (format!("blobs/{digest}"), HeaderValue::from_static("*/*"));
        let mut retries = self.retry_state();
        loop {
            let asking = self.request(
                Method::HEAD,
                &path,
                HeaderMap::from_iter([(ACCEPT, all.clone())]),
                RegistryOperation::Push,
                digest,
            );
            let error = match asking.await {
                Ok(response) if response.status() == StatusCode::OK => return Ok(true),
                Ok(response) if response.status() == StatusCode::NOT_FOUND => return Ok(false),
                Ok(response) => self.error_response(response, self.context(digest)).await,
                Err(error) => error,
            };
            self.wait_to_retry(&mut retries, error).await?;
        }
    }

    /// Sends a request with authorization, and once more if the server challenges it.
    async fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        operation: RegistryOperation,
        what: &str,
    ) -> Result<Response, RegistryError> {
        let transport = self.transport().await?;
        let context = self.context(what);
        let url = transport.base.join(&format!("{}/{path}", self.reference.repository()));
        let url = url.map_err(|error| RegistryError::Setup(error.to_string()))?;
        let pass = self.pass(&transport, operation, context).await?;
        let authorization = pass.as_ref().map(|pass| pass.header().clone());
        let mut request = HttpRequest { method, headers, authorization, ..HttpRequest::get(url) };
        let response = transport.http.send(&request).await.map_err(|failure| context.http_error(failure))?;
        if response.status() != StatusCode::UNAUTHORIZED || !transport.is(response.url()) {
            return Ok(response);
        }
        // The token expired, or this request needs one after all.
        let Some(challenge) = AuthChallenge::of(response.headers()) else { return Ok(response) };
        match self.renewed(&transport, pass.as_ref(), challenge, operation, context).await? {
            Some(pass) => request.authorization = Some(pass.header().clone()),
            None => return Ok(response),
        }
        transport.http.send(&request).await.map_err(|failure| context.http_error(failure))
    }

    /// The error of a response with an unexpected status.
    async fn error_response(&self, response: Response, context: RequestContext<'_>) -> RegistryError {
        let (code, wait) = (response.status().as_u16(), retry_after(response.headers()));
        let body = http::body(response, MAX_ERROR_BODY).await.unwrap_or_default();
        context.status_error(code, &String::from_utf8_lossy(&body), wait)
    }

    /// Connects on first use.
    async fn transport(&self) -> Result<Arc<RegistryTransport>, RegistryError> {
        let mut cached = self.transport.lock().await;
        if let Some(transport) = &*cached {
            return Ok(Arc::clone(transport));
        }
        let host = self.reference.resolve_registry();
        let transport =
            RegistryTransport::open(host, self.insecure, self.ca.as_deref(), self.egress.clone(), self.context(host))
                .await?;
        self.withheld.store(transport.is_plaintext && !self.login.is_anonymous(), Ordering::Relaxed);
        let transport = Arc::new(transport);
        *cached = Some(Arc::clone(&transport));
        Ok(transport)
    }

    /// Context for error messages. Whether the login is withheld is only known after connecting.
    pub(crate) fn context<'a>(&'a self, what: &'a str) -> RequestContext<'a> {
        let known = match self.withheld.load(Ordering::Relaxed) {
            true => LoginState::Withheld,
            false if self.login.is_anonymous() => LoginState::Anonymous,
            false => LoginState::Authenticated,
        };
        RequestContext { registry: self.reference.registry(), what, known, hide_details: self.egress.is_public() }
    }
}

/// The media type of the response, or the manifest's own if that one is generic.
fn media_type(message: String, bytes: &[u8]) -> String {
    if !matches!(message.as_str(), "" | "application/json" | "application/octet-stream" | "text/plain") {
        return message;
    }
    serde_json::from_slice::<ManifestMediaType>(bytes).ok().and_then(|manifest| manifest.media_type).unwrap_or(message)
}

/// `Retry-After` in seconds; the date form is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
