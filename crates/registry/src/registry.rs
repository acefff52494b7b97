//! An image in a registry: the registry itself, and its mirrors, which are tried first.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use bytes::Bytes;
use carrel_download::{MinThroughput, ResumePoint};
use carrel_layers::{Descriptor, Digest, ImageSource, ImageTarget, Manifest, Platform, SourceError};
use oci_client::errors::OciDistributionError;
use reqwest::Response;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::ImageName;
use crate::config::RegistriesConfig;
use crate::credentials::RegistryCredentials;
use crate::download::{BlobDownload, BlobRequest};
use crate::egress::EgressPolicy;
use crate::endpoint::{Endpoint, ManifestResponse};
use crate::error::{RegistryError, RequestContext};
use crate::runtime::RegistryRuntime;

/// The size of an upload chunk.
const CHUNK: usize = 4 << 20;

/// One image in a registry.
pub struct Registry {
    name: ImageName,
    runtime: RegistryRuntime,
    endpoints: Arc<Endpoints>,
    minimum: MinThroughput,
    /// Repositories of the same registry to mount blobs from.
    mount_repositories: Vec<ImageName>,
}

/// The registry and its mirrors.
pub(crate) struct Endpoints {
    mirrors: Vec<Endpoint>,
    own: Endpoint,
    /// The index of the endpoint that answered last, with the mirrors first; it is tried first.
    best: AtomicUsize,
}

// === impl Registry ===

impl Registry {
    /// Describes an image. No request is sent yet.
    pub fn new(
        name: ImageName,
        settings: &RegistriesConfig,
        credentials: &RegistryCredentials,
    ) -> Result<Self, RegistryError> {
        Self::within(EgressPolicy::Unrestricted, name, settings, credentials)
    }

    /// Like [`Self::new`], for a caller without privileges.
    ///
    /// Requests are anonymous. Hosts in the configuration are allowed wherever they are; others only at public
    /// addresses, also after redirects: neither this machine nor its private networks. Errors do not contain messages
    /// of the server.
    pub fn public_only(name: ImageName, settings: &RegistriesConfig) -> Result<Self, RegistryError> {
        Self::within(EgressPolicy::public(settings), name, settings, &RegistryCredentials::none())
    }

    fn within(
        egress: EgressPolicy,
        name: ImageName,
        settings: &RegistriesConfig,
        credentials: &RegistryCredentials,
    ) -> Result<Self, RegistryError> {
        let own = Endpoint::own(&name, settings, credentials, &egress)?;
        let mirrors = settings.of(name.registry()).mirrors;
        let mirrors = mirrors.iter().map(|mirror| Endpoint::mirror(&name, mirror, settings, credentials, &egress));
        let mirrors = mirrors.collect::<Result<Vec<_>, _>>()?;
        let runtime = RegistryRuntime::start().map_err(|error| RegistryError::Setup(error.to_string()))?;
        let endpoints = Arc::new(Endpoints { mirrors, own, best: AtomicUsize::new(0) });
        Ok(Self { name, runtime, endpoints, minimum: MinThroughput::default(), mount_repositories: Vec::new() })
    }

    /// Sets the throughput below which a download is aborted. The default is 300 KiB in 5 minutes.
    #[must_use]
    pub fn min_throughput(self, bytes: u64, within: Duration) -> Self {
        Self { minimum: MinThroughput { bytes, within }, ..self }
    }

    /// Names another repository of the same registry to mount blobs from instead of uploading them.
    #[must_use]
    pub fn mount_from(mut self, other: ImageName) -> Self {
        if other.registry() == self.name.registry() && other.repository() != self.name.repository() {
            self.mount_repositories.push(other);
        }
        self
    }

    /// The manifest or index that the name points to.
    fn root_manifest(&self) -> Result<Manifest, SourceError> {
        let endpoints = Arc::clone(&self.endpoints);
        let answer = self.run(async move { endpoints.manifest(None).await })?;
        let found = Digest::of(&answer.bytes);
        let digest = self.name.digest().unwrap_or(found);
        let ManifestResponse { media_type, bytes } = answer;
        Ok(Manifest { media_type, bytes, digest })
    }

    fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, RegistryError>> + Send + 'static,
    ) -> Result<T, SourceError> {
        let outcome = self.runtime.block_on(task);
        outcome
            .unwrap_or_else(|| Err(RegistryError::Setup("the request task failed".into())))
            .map_err(SourceError::other)
    }

    /// Uploads a blob in one attempt. The outer error is that of reading the content.
    fn send(&self, descriptor: &Descriptor, mut content: impl Read) -> io::Result<Result<(), RegistryError>> {
        let (digest, size) = (descriptor.digest.to_string(), descriptor.size);
        let (feed, chunks) = mpsc::channel::<io::Result<Bytes>>(1);
        let (sender, result) = std_mpsc::sync_channel(1);
        let endpoints = Arc::clone(&self.endpoints);
        self.runtime.spawn(async move {
            let (ready, which) = (Arc::clone(&endpoints), digest.clone());
            let chunks = ReceiverStream::new(chunks).then(move |chunk| {
                let (ready, which) = (Arc::clone(&ready), which.clone());
                async move {
                    // If this fails, the registry rejects the chunk and its error is reported.
                    let _ready = ready.own.ready(&which).await;
                    chunk.map_err(OciDistributionError::from)
                }
            });
            let _closed = sender.send(endpoints.own.upload(&digest, size, chunks).await);
        });
        let unread = loop {
            let next = chunk(&mut content);
            let last = next.as_ref().map_or(true, |chunk| chunk.len() < CHUNK);
            let unread = next.as_ref().err().map(|error| io::Error::new(error.kind(), error.to_string()));
            if feed.blocking_send(next).is_err() || last {
                break unread;
            }
        };
        drop(feed);
        let sent = result.recv().unwrap_or_else(|_| Err(RegistryError::Setup("the request task failed".into())));
        unread.map_or(Ok(sent), Err)
    }
}

impl ImageSource for Registry {
    fn manifest(&self, platform: &Platform) -> Result<Manifest, SourceError> {
        carrel_layers::resolve(self.root_manifest()?, platform, |next| {
            let (endpoints, digest) = (Arc::clone(&self.endpoints), next.digest.to_string());
            Ok(self.run(async move { endpoints.manifest(Some(&digest)).await })?.bytes)
        })
    }

    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError> {
        if from >= descriptor.size {
            return Ok(Box::new(io::empty()));
        }
        let blob = BlobRequest { digest: descriptor.digest.to_string(), size: descriptor.size };
        let (endpoints, digest) = (Arc::clone(&self.endpoints), blob.digest.clone());
        let rest = ResumePoint::immutable(from, blob.size);
        let opened = self.run(async move { endpoints.open_blob(&digest, &rest).await })?;
        let (download, task) = BlobDownload::new(Arc::clone(&self.endpoints), blob, from, opened, self.minimum);
        self.runtime.spawn(task);
        Ok(Box::new(download))
    }
}

impl ImageTarget for Registry {
    fn has(&self, descriptor: &Descriptor) -> Result<bool, SourceError> {
        let (endpoints, digest) = (Arc::clone(&self.endpoints), descriptor.digest.to_string());
        self.run(async move { endpoints.own.has(&digest).await })
    }

    fn blob(
        &self,
        descriptor: &Descriptor,
        open: &dyn Fn() -> io::Result<Box<dyn Read + Send>>,
    ) -> Result<(), SourceError> {
        for other in &self.mount_repositories {
            let (endpoints, other, digest) =
                (Arc::clone(&self.endpoints), other.clone(), descriptor.digest.to_string());
            if self.run(async move { endpoints.own.mount(&other, &digest).await })? {
                return Ok(());
            }
        }
        let mut retries = self.endpoints.own.retry_state();
        loop {
            let Err(error) = self.send(descriptor, open()?)? else { return Ok(()) };
            let endpoints = Arc::clone(&self.endpoints);
            retries =
                self.run(async move { endpoints.own.wait_to_resend(&mut retries, error).await.map(|()| retries) })?;
        }
    }

    fn manifest(&self, media_type: &str, bytes: &[u8]) -> Result<(), SourceError> {
        let (endpoints, media_type) = (Arc::clone(&self.endpoints), media_type.to_owned());
        let bytes = Bytes::copy_from_slice(bytes);
        self.run(async move { endpoints.own.send_manifest(&media_type, bytes).await })
    }
}

/// The next chunk; only the last one may be shorter.
fn chunk(content: &mut impl Read) -> io::Result<Bytes> {
    let mut chunk = Vec::new();
    content.take(CHUNK as u64).read_to_end(&mut chunk)?;
    Ok(chunk.into())
}

// === impl Endpoints ===

impl Endpoints {
    pub(crate) async fn manifest(&self, digest: Option<&str>) -> Result<ManifestResponse, RegistryError> {
        let mut failures = Vec::new();
        for (place, endpoint) in self.by_preference() {
            match endpoint.manifest(digest).await {
                Ok(answer) => {
                    self.best.store(place, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => failures.push((place, error)),
            }
        }
        Err(self.failed(failures))
    }

    pub(crate) async fn open_blob(&self, digest: &str, rest: &ResumePoint) -> Result<Response, RegistryError> {
        let mut failures = Vec::new();
        for (place, endpoint) in self.by_preference() {
            match endpoint.open_blob(digest, rest).await {
                Ok(opened) => return Ok(opened),
                Err(error) => failures.push((place, error)),
            }
        }
        Err(self.failed(failures))
    }

    pub(crate) fn context<'a>(&'a self, what: &'a str) -> RequestContext<'a> {
        self.own.context(what)
    }

    /// The endpoint that answered last, then the others in order.
    fn by_preference(&self) -> impl Iterator<Item = (usize, &Endpoint)> {
        let best = self.best.load(Ordering::Relaxed);
        let all = || self.mirrors.iter().chain([&self.own]).enumerate();
        all().filter(move |(place, _)| *place == best).chain(all().filter(move |(place, _)| *place != best))
    }

    /// The error when all endpoints failed.
    fn failed(&self, failures: Vec<(usize, RegistryError)>) -> RegistryError {
        let (own, mirrors): (Vec<_>, Vec<_>) =
            failures.into_iter().partition(|(place, _)| *place == self.mirrors.len());
        let mirrors: Vec<_> = mirrors.into_iter().map(|(_, error)| error.to_string()).collect();
        match own.into_iter().next() {
            Some((_, own)) if mirrors.is_empty() => own,
            Some((_, own)) => RegistryError::AllFailed { own: Box::new(own), mirrors: mirrors.join("; ") },
            None => RegistryError::Setup("no endpoint is configured".into()),
        }
    }
}
