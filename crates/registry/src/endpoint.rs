//! A registry, or one of its mirrors, as the place of one image: what is asked of it there.

mod pass;
mod send;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use carrel_layers::{LARGEST_MANIFEST, media};
use oci_client::{Reference, RegistryOperation};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RANGE, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::Name;
use crate::credentials::{Credentials, Login};
use crate::error::{Asked, Known, RegistryError};
use crate::http::{self, Request};
use crate::line::Line;
use crate::pass::Challenge;
use crate::patience::Patience;
use crate::reach::Reach;
use crate::settings::{Mirror, Settings};

/// How often a registry is asked in all, when it may do better the next time.
const TRIES: u32 = 6;
/// A mirror is asked twice: there is somebody else to ask.
const TRIES_OF_MIRROR: u32 = 2;
/// How often one calls where nobody answers. A name that was misspelt is to be told soon.
const CALLS: u32 = 3;
/// As much of what a registry says of an error is read.
const LONGEST_COMPLAINT: u64 = 64 << 10;

/// Where an image is.
pub(crate) struct Endpoint {
    /// What it is called there.
    reference: Reference,
    insecure: Option<bool>,
    ca: Option<PathBuf>,
    login: Login,
    reach: Reach,
    tries: u32,
    line: Mutex<Option<Arc<Line>>>,
    /// Whether the login is kept to ourselves: see [`Line::in_clear`].
    withheld: AtomicBool,
}

/// A manifest or an index as it came.
pub(crate) struct Answer {
    pub(crate) media_type: String,
    pub(crate) bytes: Vec<u8>,
}

/// The content of a blob as it comes.
pub(crate) struct Opened {
    response: Response,
    /// What comes before what was asked for.
    skip: u64,
}

/// What is left to be tried.
pub(crate) struct Tries {
    patience: Patience,
    calls: Patience,
    /// Whether what is shown was asked for anew.
    renewed: bool,
}

/// What a manifest says that it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Itself {
    media_type: Option<String>,
}

// === impl Endpoint ===

impl Endpoint {
    /// The registry that the name says.
    pub(crate) fn own(
        name: &Name,
        settings: &Settings,
        credentials: &Credentials,
        reach: &Reach,
    ) -> Result<Self, RegistryError> {
        let insecure = settings.of(name.registry()).insecure;
        Self::new(name, insecure, settings, credentials, reach, TRIES)
    }

    /// A mirror of it.
    pub(crate) fn mirror(
        name: &Name,
        mirror: &Mirror,
        settings: &Settings,
        credentials: &Credentials,
        reach: &Reach,
    ) -> Result<Self, RegistryError> {
        let insecure = mirror.insecure.or(settings.of(&mirror.registry).insecure);
        Self::new(&mirror.name(name), insecure, settings, credentials, reach, TRIES_OF_MIRROR)
    }

    fn new(
        name: &Name,
        insecure: Option<bool>,
        settings: &Settings,
        credentials: &Credentials,
        reach: &Reach,
        tries: u32,
    ) -> Result<Self, RegistryError> {
        let (ca, login) = (settings.of(name.registry()).ca, credentials.login(name)?);
        let (line, withheld) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self {
            reference: name.reference().clone(),
            insecure,
            ca,
            login,
            reach: reach.clone(),
            tries,
            line,
            withheld,
        })
    }

    pub(crate) fn tries(&self) -> Tries {
        let calls = Patience::tries(self.tries.min(CALLS));
        Tries { patience: Patience::tries(self.tries), calls, renewed: false }
    }

    /// After a failure: comes back when it is to be tried again.
    pub(crate) async fn again(&self, tries: &mut Tries, error: RegistryError) -> Result<(), RegistryError> {
        let wait = match &error {
            RegistryError::Unreachable { .. } => tries.calls.failed(None),
            error if error.passes() => tries.patience.failed(error.wait()),
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

    /// A manifest: the one that the name means, or one by its digest.
    pub(crate) async fn manifest(&self, digest: Option<&str>) -> Result<Answer, RegistryError> {
        let reference = match digest {
            Some(digest) => self.reference.clone_with_digest(digest.to_owned()),
            None => self.reference.clone(),
        };
        let what = reference.to_string();
        let which = reference.digest().or(reference.tag()).unwrap_or("latest");
        let mut tries = self.tries();
        loop {
            match self.manifest_once(which, &what).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.again(&mut tries, error).await?,
            }
        }
    }

    async fn manifest_once(&self, which: &str, what: &str) -> Result<Answer, RegistryError> {
        let kinds = HeaderValue::from_str(&media::MANIFESTS.join(", "));
        let kinds = kinds.map_err(|error| RegistryError::Setup(error.to_string()))?;
        let path = format!("manifests/{which}");
        let response = self.ask(Method::GET, &path, (ACCEPT, kinds), RegistryOperation::Pull, what).await?;
        let asked = self.asked(what);
        if response.status() != StatusCode::OK {
            return Err(self.complaint(response, asked).await);
        }
        let said = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let said = said.and_then(|value| value.split(';').next()).unwrap_or_default().trim().to_owned();
        let bytes = http::body(response, LARGEST_MANIFEST).await.map_err(|failure| asked.lost(failure))?;
        Ok(Answer { media_type: media_type(said, &bytes), bytes })
    }

    /// The content of a blob from a byte on. What comes is not checked here.
    pub(crate) async fn open_blob(&self, digest: &str, from: u64) -> Result<Opened, RegistryError> {
        let mut tries = self.tries();
        loop {
            match self.open_once(digest, from).await {
                Ok(opened) => return Ok(opened),
                Err(error) => self.again(&mut tries, error).await?,
            }
        }
    }

    async fn open_once(&self, digest: &str, from: u64) -> Result<Opened, RegistryError> {
        let (path, range) = (format!("blobs/{digest}"), HeaderValue::from_str(&format!("bytes={from}-")));
        let range = range.map_err(|error| RegistryError::Setup(error.to_string()))?;
        let response = self.ask(Method::GET, &path, (RANGE, range), RegistryOperation::Pull, digest).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => Ok(Opened { response, skip: 0 }),
            StatusCode::OK => Ok(Opened { response, skip: from }),
            _ => Err(self.complaint(response, self.asked(digest)).await),
        }
    }

    /// Whether a blob is there.
    pub(crate) async fn has(&self, digest: &str) -> Result<bool, RegistryError> {
        let (path, all) = (format!("blobs/{digest}"), HeaderValue::from_static("*/*"));
        let mut tries = self.tries();
        loop {
            let asking = self.ask(Method::HEAD, &path, (ACCEPT, all.clone()), RegistryOperation::Push, digest);
            let error = match asking.await {
                Ok(response) if response.status() == StatusCode::OK => return Ok(true),
                Ok(response) if response.status() == StatusCode::NOT_FOUND => return Ok(false),
                Ok(response) => self.complaint(response, self.asked(digest)).await,
                Err(error) => error,
            };
            self.again(&mut tries, error).await?;
        }
    }

    /// Asks for something of the image, and shows what the registry wants to see for it.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        header: (HeaderName, HeaderValue),
        operation: RegistryOperation,
        what: &str,
    ) -> Result<Response, RegistryError> {
        let line = self.line().await?;
        let asked = self.asked(what);
        let url = line.base.join(&format!("{}/{path}", self.reference.repository()));
        let url = url.map_err(|error| RegistryError::Setup(error.to_string()))?;
        let pass = self.pass(&line, operation, asked).await?;
        let shown = pass.as_ref().map(|pass| pass.header().clone());
        let headers = HeaderMap::from_iter([header]);
        let mut request = Request { method, headers, shown, ..Request::get(url) };
        let response = line.http.send(&request).await.map_err(|failure| asked.lost(failure))?;
        if response.status() != StatusCode::UNAUTHORIZED || !line.is(response.url()) {
            return Ok(response);
        }
        // It wants to be shown something after all, or what was shown has become too old.
        let Some(challenge) = Challenge::of(response.headers()) else { return Ok(response) };
        match self.renewed(&line, pass.as_ref(), challenge, operation, asked).await? {
            Some(pass) => request.shown = Some(pass.header().clone()),
            None => return Ok(response),
        }
        line.http.send(&request).await.map_err(|failure| asked.lost(failure))
    }

    /// What a registry says of why it does not.
    async fn complaint(&self, response: Response, asked: Asked<'_>) -> RegistryError {
        let (code, wait) = (response.status().as_u16(), wait(response.headers()));
        let body = http::body(response, LONGEST_COMPLAINT).await.unwrap_or_default();
        asked.answered(code, &String::from_utf8_lossy(&body), wait)
    }

    /// The connection, which is opened when it is first needed.
    async fn line(&self) -> Result<Arc<Line>, RegistryError> {
        let mut kept = self.line.lock().await;
        if let Some(line) = &*kept {
            return Ok(Arc::clone(line));
        }
        let host = self.reference.resolve_registry();
        let line = Line::open(host, self.insecure, self.ca.as_deref(), self.reach.clone(), self.asked(host)).await?;
        self.withheld.store(line.in_clear && !self.login.is_anonymous(), Ordering::Relaxed);
        let line = Arc::new(line);
        *kept = Some(Arc::clone(&line));
        Ok(line)
    }

    /// A request on the line as it is: whether the login is withheld is known once that is open.
    pub(crate) fn asked<'a>(&'a self, what: &'a str) -> Asked<'a> {
        let known = match self.withheld.load(Ordering::Relaxed) {
            true => Known::Withheld,
            false if self.login.is_anonymous() => Known::Nobody,
            false => Known::Somebody,
        };
        Asked { registry: self.reference.registry(), what, known, quiet: self.reach.is_public() }
    }
}

/// What a manifest is: what is said of it, or what it says itself where that is nothing in particular.
fn media_type(said: String, bytes: &[u8]) -> String {
    if !matches!(said.as_str(), "" | "application/json" | "application/octet-stream" | "text/plain") {
        return said;
    }
    serde_json::from_slice::<Itself>(bytes).ok().and_then(|itself| itself.media_type).unwrap_or(said)
}

/// How long a registry asks to wait, in seconds; a date, which it may say instead, is not read.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

// === impl Opened ===

impl Opened {
    /// The next piece.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, reqwest::Error>> {
        loop {
            let mut piece = match self.response.chunk().await.transpose()? {
                Ok(piece) => piece,
                Err(error) => return Some(Err(error)),
            };
            let over = usize::try_from(self.skip).unwrap_or(usize::MAX).min(piece.len());
            self.skip -= over as u64;
            let piece = piece.split_off(over);
            if !piece.is_empty() {
                return Some(Ok(piece));
            }
        }
    }
}
