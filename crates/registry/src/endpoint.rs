//! A registry, or one of its mirrors, as the place of one image: what is asked of it there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrel_layers::{LARGEST_MANIFEST, media};
use oci_client::client::{BlobResponse, SizedStream};
use oci_client::errors::OciDistributionError;
use oci_client::{Reference, RegistryOperation};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use tokio::sync::Mutex;
use tokio_stream::{Stream, StreamExt};

use crate::Name;
use crate::credentials::{Credentials, Login};
use crate::error::{Asked, RegistryError};
use crate::line::Line;
use crate::patience::Patience;
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
    tries: u32,
    line: Mutex<Option<Arc<Line>>>,
}

/// A manifest or an index as it came.
pub(crate) struct Answer {
    pub(crate) media_type: String,
    pub(crate) bytes: Vec<u8>,
}

/// The content of a blob as it comes.
pub(crate) struct Opened {
    stream: SizedStream,
    /// What comes before what was asked for.
    skip: u64,
}

/// What is left to be tried.
pub(crate) struct Tries {
    patience: Patience,
    calls: Patience,
    renewed: bool,
}

// === impl Endpoint ===

impl Endpoint {
    /// The registry that the name says.
    pub(crate) fn own(name: &Name, settings: &Settings, credentials: &Credentials) -> Result<Self, RegistryError> {
        let said = settings.of(name.registry());
        let login = credentials.login(name)?;
        let reference = name.reference().clone();
        Ok(Self { reference, insecure: said.insecure, ca: said.ca, login, tries: TRIES, line: Mutex::default() })
    }

    /// A mirror of it.
    pub(crate) fn mirror(
        name: &Name,
        mirror: &Mirror,
        settings: &Settings,
        credentials: &Credentials,
    ) -> Result<Self, RegistryError> {
        let name = mirror.name(name);
        let said = settings.of(&mirror.registry);
        let login = credentials.login(&name)?;
        let insecure = mirror.insecure.or(said.insecure);
        let reference = name.reference().clone();
        Ok(Self { reference, insecure, ca: said.ca, login, tries: TRIES_OF_MIRROR, line: Mutex::default() })
    }

    pub(crate) fn registry(&self) -> &str {
        self.reference.registry()
    }

    pub(crate) fn tries(&self) -> Tries {
        let calls = Patience::tries(self.tries.min(CALLS));
        Tries { patience: Patience::tries(self.tries), calls, renewed: false }
    }

    /// After a failure: comes back when it is to be tried again.
    pub(crate) async fn again(&self, tries: &mut Tries, error: RegistryError) -> Result<(), RegistryError> {
        // What was given to us to show may be too old by now. It is asked for once more.
        if error.refuses() && !tries.renewed && !self.login.is_anonymous() {
            tries.renewed = true;
            *self.line.lock().await = None;
            return Ok(());
        }
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
        let mut tries = self.tries();
        loop {
            match self.manifest_once(digest).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.again(&mut tries, error).await?,
            }
        }
    }

    async fn manifest_once(&self, digest: Option<&str>) -> Result<Answer, RegistryError> {
        let reference = match digest {
            Some(digest) => self.reference.clone_with_digest(digest.to_owned()),
            None => self.reference.clone(),
        };
        let what = reference.to_string();
        let asked = self.asked(&what);
        let line = self.line().await?;
        let auth = self.login.auth();
        let token =
            line.client.auth(&reference, &auth, RegistryOperation::Pull).await.map_err(|error| asked.failed(error))?;
        let which = reference.digest().or(reference.tag()).unwrap_or("latest");
        let host = reference.resolve_registry();
        let url = format!("{}://{host}/v2/{}/manifests/{which}", line.scheme, reference.repository());
        let get = || line.http.get(&url).header(ACCEPT, media::MANIFESTS.join(", "));
        let first = token.iter().fold(get(), |request, token| request.bearer_auth(token));
        let mut response = first.send().await.map_err(|error| asked.broke(&error))?;
        if let (StatusCode::UNAUTHORIZED, None, Some((user, password))) =
            (response.status(), &token, self.login.password())
        {
            response = get().basic_auth(user, Some(password)).send().await.map_err(|error| asked.broke(&error))?;
        }
        if response.status() != StatusCode::OK {
            let (code, wait) = (response.status().as_u16(), wait(response.headers()));
            let body = body(response, LONGEST_COMPLAINT, asked).await.unwrap_or_default();
            return Err(asked.answered(code, &String::from_utf8_lossy(&body), wait));
        }
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default().trim().to_owned();
        Ok(Answer { media_type, bytes: body(response, LARGEST_MANIFEST, asked).await? })
    }

    /// The content of a blob from a byte on. What comes is not checked here.
    pub(crate) async fn open_blob(&self, digest: &str, from: u64) -> Result<Opened, RegistryError> {
        let mut tries = self.tries();
        loop {
            let line = self.line().await?;
            // A part even if it is all: what comes is then not digested on the way, which the store does anyway.
            match line.client.pull_blob_stream_partial(&self.reference, digest, from, None).await {
                Ok(BlobResponse::Partial(stream)) => return Ok(Opened { stream, skip: 0 }),
                Ok(BlobResponse::Full(stream)) => return Ok(Opened { stream, skip: from }),
                Err(error) => self.again(&mut tries, self.asked(digest).failed(error)).await?,
            }
        }
    }

    /// Whether a blob is there.
    pub(crate) async fn has(&self, digest: &str) -> Result<bool, RegistryError> {
        let mut tries = self.tries();
        loop {
            match self.line().await?.client.blob_exists(&self.reference, digest).await {
                Ok(has) => return Ok(has),
                Err(error) => self.again(&mut tries, self.asked(digest).failed(error)).await?,
            }
        }
    }

    /// Has a blob of another repository of the same registry appear in this one; whether it did.
    pub(crate) async fn mount(&self, from: &Name, digest: &str) -> Result<bool, RegistryError> {
        let line = self.line().await?;
        // A registry may answer by asking for the content. That, and whatever else it says, means: send it.
        Ok(line.client.mount_blob(&self.reference, from.reference(), digest).await.is_ok())
    }

    /// Sends a blob, once.
    pub(crate) async fn upload(
        &self,
        digest: &str,
        size: u64,
        pieces: impl Stream<Item = Result<Bytes, OciDistributionError>> + Send + 'static,
    ) -> Result<(), RegistryError> {
        let line = self.line().await?;
        let sent = line.client.push_blob_stream(&self.reference, pieces, digest, Some(size)).await;
        sent.map(drop).map_err(|error| self.asked(digest).failed(error))
    }

    /// Sends a manifest, to be what the name means.
    pub(crate) async fn send_manifest(&self, media_type: &str, bytes: Bytes) -> Result<(), RegistryError> {
        let mut reference = self.reference.clone();
        if let Some(tag) = self.reference.tag() {
            // Of a name with both the tag is what can be given.
            let (registry, repository) = (reference.registry().to_owned(), reference.repository().to_owned());
            reference = Reference::with_tag(registry, repository, tag.to_owned());
        }
        let what = reference.to_string();
        let content_type = HeaderValue::from_str(media_type);
        let content_type = content_type.map_err(|_| self.asked(&what).nonsense("a media type that is none"))?;
        let mut tries = self.tries();
        loop {
            let line = self.line().await?;
            match line.client.push_manifest_raw(&reference, bytes.clone(), content_type.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) => self.again(&mut tries, self.asked(&what).failed(error)).await?,
            }
        }
    }

    /// The connection, which is opened when it is first needed.
    async fn line(&self) -> Result<Arc<Line>, RegistryError> {
        let mut kept = self.line.lock().await;
        if let Some(line) = &*kept {
            return Ok(Arc::clone(line));
        }
        let host = self.reference.resolve_registry();
        let line = Arc::new(Line::open(host, self.insecure, self.ca.as_deref()).await?);
        line.client.store_auth_if_needed(host, &self.login.auth()).await;
        *kept = Some(Arc::clone(&line));
        Ok(line)
    }

    pub(crate) fn asked<'a>(&'a self, what: &'a str) -> Asked<'a> {
        Asked { registry: self.registry(), what, anonymous: self.login.is_anonymous() }
    }
}

/// All of an answer, if it is not too long.
async fn body(mut response: Response, longest: u64, asked: Asked<'_>) -> Result<Vec<u8>, RegistryError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| asked.broke(&error))? {
        body.extend_from_slice(&piece);
        if body.len() as u64 > longest {
            return Err(asked.nonsense(&format!("more than {longest} bytes")));
        }
    }
    Ok(body)
}

/// How long a registry asks to wait, in seconds; a date, which it may say instead, is not read.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

// === impl Opened ===

impl Opened {
    /// The next piece.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        loop {
            let mut piece = match self.stream.next().await? {
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
