//! An image in a registry: the registry itself, and the mirrors that are asked before it.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use bytes::Bytes;
use carrel_layers::{Descriptor, Digest, Manifest, Platform, Source, SourceError, Target};
use oci_client::errors::OciDistributionError;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::Name;
use crate::credentials::Credentials;
use crate::download::{Download, Wanted};
use crate::endpoint::{Answer, Endpoint, Opened};
use crate::error::{Asked, RegistryError};
use crate::pace::LeastRate;
use crate::reach::Reach;
use crate::runtime::Threads;
use crate::settings::Settings;

/// What is sent in one request.
const PIECE: usize = 4 << 20;

/// Where one image is.
pub struct Registry {
    name: Name,
    threads: Threads,
    places: Arc<Places>,
    least: LeastRate,
    /// What may already have what is sent.
    beside: Vec<Name>,
}

/// The registry and its mirrors.
pub(crate) struct Places {
    mirrors: Vec<Endpoint>,
    own: Endpoint,
    /// Which gave the last answer, counted from the first mirror on. It is asked first.
    best: AtomicUsize,
}

// === impl Registry ===

impl Registry {
    /// The place of an image. Nothing is asked yet.
    pub fn new(name: Name, settings: &Settings, credentials: &Credentials) -> Result<Self, RegistryError> {
        Self::within(Reach::Anybody, name, settings, credentials)
    }

    /// The place of an image that is asked for in the name of somebody who may have what everybody may.
    ///
    /// There is no login. Hosts that the settings name are asked wherever they are, and others only at public addresses:
    /// neither this host nor a network that it is in, wherever a registry sends us. What is told of a failure has no words
    /// of who was asked.
    pub fn public_only(name: Name, settings: &Settings) -> Result<Self, RegistryError> {
        Self::within(Reach::public(settings), name, settings, &Credentials::none())
    }

    fn within(reach: Reach, name: Name, settings: &Settings, credentials: &Credentials) -> Result<Self, RegistryError> {
        let own = Endpoint::own(&name, settings, credentials, &reach)?;
        let mirrors = settings.of(name.registry()).mirrors;
        let mirrors = mirrors.iter().map(|mirror| Endpoint::mirror(&name, mirror, settings, credentials, &reach));
        let mirrors = mirrors.collect::<Result<Vec<_>, _>>()?;
        let threads = Threads::start().map_err(|error| RegistryError::Setup(error.to_string()))?;
        let places = Arc::new(Places { mirrors, own, best: AtomicUsize::new(0) });
        Ok(Self { name, threads, places, least: LeastRate::default(), beside: Vec::new() })
    }

    /// A download of which fewer bytes come in such a time is given up. If nothing is said: 300 KiB in 5 minutes.
    #[must_use]
    pub fn least_rate(self, bytes: u64, within: Duration) -> Self {
        Self { least: LeastRate { bytes, within }, ..self }
    }

    /// Of what is sent here, some may be in this other repository: if it is one of the same registry, what it has is not
    /// sent again.
    #[must_use]
    pub fn beside(mut self, other: Name) -> Self {
        if other.registry() == self.name.registry() && other.repository() != self.name.repository() {
            self.beside.push(other);
        }
        self
    }

    /// What the name stands for now.
    fn first(&self) -> Result<Manifest, SourceError> {
        let places = Arc::clone(&self.places);
        let answer = self.ask(async move { places.manifest(None).await })?;
        let found = Digest::of(&answer.bytes);
        let digest = self.name.digest().unwrap_or(found);
        let Answer { media_type, bytes } = answer;
        Ok(Manifest { media_type, bytes, digest })
    }

    fn ask<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, RegistryError>> + Send + 'static,
    ) -> Result<T, SourceError> {
        let outcome = self.threads.outcome(task);
        outcome.unwrap_or_else(|| Err(RegistryError::Setup("the client gave up".into()))).map_err(SourceError::other)
    }

    /// Sends a blob, once, and says what the registry made of it.
    fn send(&self, descriptor: &Descriptor, mut content: impl Read) -> io::Result<Result<(), RegistryError>> {
        let (digest, size) = (descriptor.digest.to_string(), descriptor.size);
        let (feed, pieces) = mpsc::channel::<io::Result<Bytes>>(1);
        let (tell, told) = std_mpsc::sync_channel(1);
        let places = Arc::clone(&self.places);
        self.threads.spawn(async move {
            let (ready, which) = (Arc::clone(&places), digest.clone());
            let pieces = ReceiverStream::new(pieces).then(move |piece| {
                let (ready, which) = (Arc::clone(&ready), which.clone());
                async move {
                    // If it is not, the registry says so when it gets the piece.
                    let _ready = ready.own.ready(&which).await;
                    piece.map_err(OciDistributionError::from)
                }
            });
            let _gone = tell.send(places.own.upload(&digest, size, pieces).await);
        });
        let unread = loop {
            let next = piece(&mut content);
            let last = next.as_ref().map_or(true, |piece| piece.len() < PIECE);
            let unread = next.as_ref().err().map(|error| io::Error::new(error.kind(), error.to_string()));
            if feed.blocking_send(next).is_err() || last {
                break unread;
            }
        };
        drop(feed);
        let sent = told.recv().unwrap_or_else(|_| Err(RegistryError::Setup("the client gave up".into())));
        unread.map_or(Ok(sent), Err)
    }
}

impl Source for Registry {
    fn manifest(&self, platform: &Platform) -> Result<Manifest, SourceError> {
        carrel_layers::resolve(self.first()?, platform, |next| {
            let (places, digest) = (Arc::clone(&self.places), next.digest.to_string());
            Ok(self.ask(async move { places.manifest(Some(&digest)).await })?.bytes)
        })
    }

    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError> {
        if from >= descriptor.size {
            return Ok(Box::new(io::empty()));
        }
        let wanted = Wanted { digest: descriptor.digest.to_string(), size: descriptor.size };
        let (places, digest) = (Arc::clone(&self.places), wanted.digest.clone());
        let opened = self.ask(async move { places.open_blob(&digest, from).await })?;
        let (download, task) = Download::new(Arc::clone(&self.places), wanted, from, opened, self.least);
        self.threads.spawn(task);
        Ok(Box::new(download))
    }
}

impl Target for Registry {
    fn has(&self, descriptor: &Descriptor) -> Result<bool, SourceError> {
        let (places, digest) = (Arc::clone(&self.places), descriptor.digest.to_string());
        self.ask(async move { places.own.has(&digest).await })
    }

    fn blob(
        &self,
        descriptor: &Descriptor,
        open: &dyn Fn() -> io::Result<Box<dyn Read + Send>>,
    ) -> Result<(), SourceError> {
        for other in &self.beside {
            let (places, other, digest) = (Arc::clone(&self.places), other.clone(), descriptor.digest.to_string());
            if self.ask(async move { places.own.mount(&other, &digest).await })? {
                return Ok(());
            }
        }
        let mut tries = self.places.own.tries();
        loop {
            let Err(error) = self.send(descriptor, open()?)? else { return Ok(()) };
            let places = Arc::clone(&self.places);
            tries = self.ask(async move { places.own.send_again(&mut tries, error).await.map(|()| tries) })?;
        }
    }

    fn manifest(&self, media_type: &str, bytes: &[u8]) -> Result<(), SourceError> {
        let (places, media_type) = (Arc::clone(&self.places), media_type.to_owned());
        let bytes = Bytes::copy_from_slice(bytes);
        self.ask(async move { places.own.send_manifest(&media_type, bytes).await })
    }
}

/// The next piece, which is shorter than others only if it is the last.
fn piece(content: &mut impl Read) -> io::Result<Bytes> {
    let mut piece = Vec::new();
    content.take(PIECE as u64).read_to_end(&mut piece)?;
    Ok(piece.into())
}

// === impl Places ===

impl Places {
    pub(crate) async fn manifest(&self, digest: Option<&str>) -> Result<Answer, RegistryError> {
        let mut failures = Vec::new();
        for (place, endpoint) in self.in_turn() {
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

    pub(crate) async fn open_blob(&self, digest: &str, from: u64) -> Result<Opened, RegistryError> {
        let mut failures = Vec::new();
        for (place, endpoint) in self.in_turn() {
            match endpoint.open_blob(digest, from).await {
                Ok(opened) => return Ok(opened),
                Err(error) => failures.push((place, error)),
            }
        }
        Err(self.failed(failures))
    }

    pub(crate) fn asked<'a>(&'a self, what: &'a str) -> Asked<'a> {
        self.own.asked(what)
    }

    /// The best first, then the others as they come.
    fn in_turn(&self) -> impl Iterator<Item = (usize, &Endpoint)> {
        let best = self.best.load(Ordering::Relaxed);
        let all = || self.mirrors.iter().chain([&self.own]).enumerate();
        all().filter(move |(place, _)| *place == best).chain(all().filter(move |(place, _)| *place != best))
    }

    /// What is said when all have failed: what the registry itself says, and what its mirrors do.
    fn failed(&self, failures: Vec<(usize, RegistryError)>) -> RegistryError {
        let (own, mirrors): (Vec<_>, Vec<_>) =
            failures.into_iter().partition(|(place, _)| *place == self.mirrors.len());
        let mirrors: Vec<_> = mirrors.into_iter().map(|(_, error)| error.to_string()).collect();
        match own.into_iter().next() {
            Some((_, own)) if mirrors.is_empty() => own,
            Some((_, own)) => RegistryError::Everywhere { own: Box::new(own), mirrors: mirrors.join("; ") },
            None => RegistryError::Setup("nobody was asked".into()),
        }
    }
}
