//! An image in a registry: the registry itself, and the mirrors that are asked before it.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as std_mpsc;

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
use crate::runtime::Threads;
use crate::settings::Settings;

/// What is sent in one request.
const PIECE: usize = 4 << 20;

/// Where one image is.
pub struct Registry {
    name: Name,
    threads: Threads,
    places: Arc<Places>,
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
        let own = Endpoint::own(&name, settings, credentials)?;
        let mirrors = settings.of(name.registry()).mirrors;
        let mirrors = mirrors.iter().map(|mirror| Endpoint::mirror(&name, mirror, settings, credentials));
        let mirrors = mirrors.collect::<Result<Vec<_>, _>>()?;
        let threads = Threads::start().map_err(|error| RegistryError::Setup(error.to_string()))?;
        Ok(Self {
            name,
            threads,
            places: Arc::new(Places { mirrors, own, best: AtomicUsize::new(0) }),
            beside: Vec::new(),
        })
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
        let digest = self.name.digest().and_then(|digest| digest.parse().ok()).unwrap_or(found);
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

    /// Sends what fits in one request, and tries again if it has to.
    fn send_whole(&self, descriptor: &Descriptor, piece: Bytes) -> Result<(), SourceError> {
        let (digest, size) = (descriptor.digest.to_string(), descriptor.size);
        let places = Arc::clone(&self.places);
        self.ask(async move {
            let mut tries = places.own.tries();
            loop {
                let pieces = tokio_stream::iter([Ok(piece.clone())]);
                match places.own.upload(&digest, size, pieces).await {
                    Ok(()) => return Ok(()),
                    Err(error) => places.own.again(&mut tries, error).await?,
                }
            }
        })
    }

    /// Sends what has to be read while it is sent.
    fn send_pieces(&self, descriptor: &Descriptor, first: Bytes, mut content: impl Read) -> Result<(), SourceError> {
        let (digest, size) = (descriptor.digest.to_string(), descriptor.size);
        let (feed, pieces) = mpsc::channel::<io::Result<Bytes>>(1);
        let (tell, told) = std_mpsc::sync_channel(1);
        let places = Arc::clone(&self.places);
        self.threads.spawn(async move {
            let pieces = ReceiverStream::new(pieces).map(|piece| piece.map_err(OciDistributionError::from));
            let _gone = tell.send(places.own.upload(&digest, size, pieces).await);
        });
        let mut next = Ok(first);
        loop {
            let last = next.as_ref().map_or(true, |piece| piece.len() < PIECE);
            if feed.blocking_send(next).is_err() || last {
                break;
            }
            next = piece(&mut content);
        }
        drop(feed);
        let sent = told.recv().unwrap_or_else(|_| Err(RegistryError::Setup("the client gave up".into())));
        sent.map_err(SourceError::other)
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
        let (download, task) = Download::new(Arc::clone(&self.places), wanted, from, opened);
        self.threads.spawn(task);
        Ok(Box::new(download))
    }
}

impl Target for Registry {
    fn has(&self, descriptor: &Descriptor) -> Result<bool, SourceError> {
        let (places, digest) = (Arc::clone(&self.places), descriptor.digest.to_string());
        self.ask(async move { places.own.has(&digest).await })
    }

    fn blob(&self, descriptor: &Descriptor, mut content: Box<dyn Read + Send>) -> Result<(), SourceError> {
        for other in &self.beside {
            let (places, other, digest) = (Arc::clone(&self.places), other.clone(), descriptor.digest.to_string());
            if self.ask(async move { places.own.mount(&other, &digest).await })? {
                return Ok(());
            }
        }
        let first = piece(&mut content)?;
        if first.len() as u64 == descriptor.size {
            return self.send_whole(descriptor, first);
        }
        self.send_pieces(descriptor, first, content)
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
