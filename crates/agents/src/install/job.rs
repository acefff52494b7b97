//! One install, from the wish to the program.

use std::{path::Path, sync::Arc};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{
    Asked, InstallError, Installed, Phase, Pin, Platform, Progress, Settings, UnpackError, found,
    http::{Http, Trouble},
    layout,
    npm::{self, Npm},
    place::{Place, Record, RecordedFile, Staging, blocking},
    source::{self, Shape, Source},
    stream::{Hashes, Stream, WAITING},
    unpack::{self, Written},
};
use crate::agent::AgentId;

/// Whom an install tells how far it is.
pub(super) type Tell = Arc<dyn Fn(Progress) + Send + Sync>;

/// What is to be installed.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) agent: AgentId,
    pub(super) version: String,
    pub(super) platform: Platform,
    /// What is known of this version.
    pub(super) pin: Option<Pin>,
    reinstall: bool,
    /// Whether another version that is there will do.
    is_any: bool,
}

/// What was downloaded.
struct Unpacked {
    files: Vec<Written>,
    hashes: Hashes,
}

/// Installs, unless another process just has.
pub(super) async fn run(settings: &Settings, wish: Wish, tell: Tell) -> Result<Installed, InstallError> {
    let agent = wish.agent;
    let phase = {
        let tell = Arc::clone(&tell);
        move |phase| tell(Progress { phase, ..Progress::default() })
    };
    let place = Place::new(settings, agent);
    phase(Phase::Waiting);
    let _lock = place.lock(settings.patience.lock, &phase).await?;
    let here = {
        let (wish, place, phase) = (wish.clone(), place.clone(), phase.clone());
        blocking(agent, move || wish.here(&place, &phase)).await??
    };
    if let Some(installed) = here {
        return Ok(installed);
    }
    phase(Phase::Asking);
    let (mut npm, certificates) = {
        let (variable, home) = (Arc::clone(settings.variable()), settings.home.clone());
        let read = move || {
            let npm = Npm::read(&variable, home.as_ref());
            let certificates = npm.certificates();
            (npm, certificates)
        };
        blocking(agent, read).await?
    };
    if settings.registry.is_none() {
        let path = (settings.variable())("PATH").unwrap_or_default();
        npm.ask(found::in_path("npm", &path)).await;
    }
    let http = Http::new(settings.patience, certificates);
    let mut tried = Vec::new();
    let sources = match source::registry(&http, &npm, settings.registry.as_deref(), &wish).await {
        Ok(sources) => sources,
        Err(trouble) => {
            let (package, version) = wish.package();
            let registry = match &settings.registry {
                Some(given) => npm::address(given),
                None => npm.registry(&package),
            };
            let registry = registry.map_or_else(|| "the registry".to_owned(), |registry| source::named(&registry));
            tried.push((format!("{package}@{version} of {registry}"), trouble.to_string()));
            Vec::new()
        }
    };
    for source in sources.into_iter().chain(source::makers(&wish, &settings.downloads)) {
        let staging = {
            let place = place.clone();
            blocking(agent, move || place.stage()).await??
        };
        let trouble = match fetch(&http, &source, &wish, &staging, &tell).await {
            Ok(Ok(unpacked)) => return finish(place, wish, &source, unpacked, staging, phase).await,
            trouble => trouble,
        };
        blocking(agent, move || drop(staging)).await?;
        if let Err(trouble) = trouble? {
            tried.push((source.name(), trouble.to_string()));
        }
    }
    Err(InstallError::Unavailable { agent, version: wish.version, tried })
}

/// Downloads and unpacks at once. What cannot be had is had elsewhere; what is wrong ends the install.
async fn fetch(
    http: &Http,
    source: &Source,
    wish: &Wish,
    staging: &Staging,
    tell: &Tell,
) -> Result<Result<Unpacked, Trouble>, InstallError> {
    let (pieces, coming) = mpsc::channel(WAITING);
    let (wanted, shape, into) = (source.wanted(wish), source.shape.clone(), staging.0.clone());
    let program = layout::program(wish.agent);
    let unpacking = spawn_blocking(move || -> Result<Unpacked, UnpackError> {
        let mut stream = Stream::new(coming);
        let files = match shape {
            Shape::Program => unpack::program(&mut stream, program, &into),
            _ => unpack::archive(&mut stream, &wanted, &into, unpack::LARGEST),
        }?;
        Ok(Unpacked { files, hashes: stream.finish().map_err(UnpackError::Read)? })
    });
    let progress = |bytes, total| tell(Progress { phase: Phase::Downloading, bytes, total });
    progress(0, None);
    let downloaded = http.download(&source.ask, pieces, &progress).await;
    let unpacked = unpacking.await.map_err(|_| InstallError::Interrupted(wish.agent))?;
    match (downloaded, unpacked) {
        (Err(trouble), _) if trouble != Trouble::Unread => Ok(Err(trouble)),
        (_, Err(error)) => Err(InstallError::Package { origin: source.name(), error: Arc::new(error) }),
        (_, Ok(unpacked)) => {
            tell(Progress { phase: Phase::Checking, ..Progress::default() });
            check(source, wish, &unpacked)?;
            Ok(Ok(unpacked))
        }
    }
}

/// Compares what came with everything that is known about it.
fn check(source: &Source, wish: &Wish, unpacked: &Unpacked) -> Result<(), InstallError> {
    let mismatch = |what: &str, expected: &str, found: &str| InstallError::Mismatch {
        origin: source.name(),
        what: what.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    };
    let hashes = &unpacked.hashes;
    if !source.integrity.is_empty() && !source.integrity.contains(&hashes.integrity) {
        return Err(mismatch("the package", &source.integrity.join(" or "), &hashes.integrity));
    }
    let Some(pin) = &wish.pin else { return Ok(()) };
    if source.shape == Shape::Package && pin.package != hashes.sha256 {
        return Err(mismatch("the package", &pin.package, &hashes.sha256));
    }
    for file in &unpacked.files {
        match pin.file(file.place) {
            Some(known) if known == file.sha256 => {}
            known => return Err(mismatch(file.place, known.unwrap_or("absent"), &file.sha256)),
        }
    }
    Ok(())
}

/// Puts what was downloaded in its place.
async fn finish(
    place: Place,
    wish: Wish,
    source: &Source,
    unpacked: Unpacked,
    staging: Staging,
    phase: impl Fn(Phase) + Send + 'static,
) -> Result<Installed, InstallError> {
    let file = |file: Written| RecordedFile { path: file.place.to_owned(), sha256: file.sha256, size: file.size };
    let agent = wish.agent;
    let record = Record {
        agent,
        version: wish.version.clone(),
        platform: wish.platform.to_string(),
        source: source.name(),
        sha256: unpacked.hashes.sha256,
        pinned: wish.pin.is_some(),
        installed_at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
        files: unpacked.files.into_iter().map(file).collect(),
    };
    let put = move || Ok(wish.installed(&place.finish(staging, &record, &phase)?));
    blocking(agent, put).await?
}

// === impl Wish ===

impl Wish {
    /// The version that is asked for, and else the pinned one.
    pub(super) fn new(agent: AgentId, asked: &Asked, settings: &Settings) -> Result<Self, InstallError> {
        let nowhere = |platform: String| InstallError::Platform { agent, platform };
        let here = || format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
        let platform = settings.platform.ok_or_else(|| nowhere(here()))?;
        let pin = settings.pins.iter().find(|pin| pin.is_for(agent, platform));
        let version = asked.version.as_ref().or(pin.map(|pin| &pin.version));
        let version = version.ok_or_else(|| nowhere(platform.to_string()))?.clone();
        let pin = pin.filter(|pin| pin.version == version).cloned();
        Ok(Self { agent, version, platform, pin, reinstall: asked.reinstall, is_any: asked.version.is_none() })
    }

    /// The name of the package, and its version in the registry.
    pub(super) fn package(&self) -> (String, String) {
        layout::package(self.agent, self.platform, &self.version)
    }

    /// What another process has installed in the meantime, if it will do. To be called under the lock.
    fn here(&self, place: &Place, tell: &dyn Fn(Phase)) -> Result<Option<Installed>, InstallError> {
        place.sweep();
        if self.reinstall {
            return Ok(None);
        }
        if let Some(installed) = self.present(place) {
            return Ok(Some(installed));
        }
        // One that was whole, and ended before it was linked.
        let Some(directory) = place.whole(&self.version) else { return Ok(None) };
        place.link_to(&directory, tell)?;
        Ok(Some(self.installed(&directory)))
    }

    fn present(&self, place: &Place) -> Option<Installed> {
        let directory = place.current()?;
        let version = place.record(&directory)?.version;
        let will_do = self.is_any || version == self.version;
        will_do.then(|| Installed { path: directory.join(layout::program(self.agent)), version: Some(version) })
    }

    fn installed(&self, directory: &Path) -> Installed {
        Installed { path: directory.join(layout::program(self.agent)), version: Some(self.version.clone()) }
    }
}
