//! One install, from the wish to the program.

use std::{path::Path, sync::Arc};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{
    Asked, InstallError, Installed, Phase, Pin, Platform, Progress, Settings, UnpackError, found,
    http::{Http, Trouble},
    layout,
    npm::Npm,
    place::{Place, Record, RecordedFile, Staging, record},
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
    let phase = |phase| tell(Progress { phase, ..Progress::default() });
    let place = Place::new(&settings.bin, wish.agent);
    phase(Phase::Waiting);
    let _lock = place.lock(&phase).await?;
    place.sweep();
    if !wish.reinstall {
        if let Some(installed) = wish.present(&place) {
            return Ok(installed);
        }
        // One that was whole, and ended before it was linked.
        if let Some(directory) = place.whole(&wish.version) {
            place.link_to(&directory, &phase)?;
            return Ok(wish.installed(&directory));
        }
    }
    phase(Phase::Asking);
    let mut npm = Npm::read(settings.variable(), settings.home.as_ref());
    if settings.registry.is_none() {
        let path = (settings.variable())("PATH").unwrap_or_default();
        npm.ask(found::in_path("npm", &path)).await;
    }
    let certificates = npm.certificates().and_then(|path| std::fs::read(path).ok());
    let http = Http::new(settings.patience, certificates);
    let mut tried = Vec::new();
    let (package, version) = wish.package();
    let sources = match source::registry(&http, &npm, settings.registry.as_deref(), &wish).await {
        Ok(sources) => sources,
        Err(trouble) => {
            let registry = npm.registry(&package).as_ref().map(source::named);
            let registry = settings.registry.clone().or(registry).unwrap_or_else(|| "the registry".to_owned());
            tried.push((format!("{package}@{version} of {registry}"), trouble.to_string()));
            Vec::new()
        }
    };
    for source in sources.into_iter().chain(source::makers(&wish, &settings.downloads)) {
        let staging = place.stage()?;
        match fetch(&http, &source, &wish, &staging, &tell).await? {
            Ok(unpacked) => return finish(settings, wish, &source, unpacked, staging, tell).await,
            Err(trouble) => tried.push((source.name(), trouble.to_string())),
        }
    }
    Err(InstallError::Unavailable { agent: wish.agent, version: wish.version, tried })
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
    settings: &Settings,
    wish: Wish,
    source: &Source,
    unpacked: Unpacked,
    staging: Staging,
    tell: Tell,
) -> Result<Installed, InstallError> {
    let file = |file: Written| RecordedFile { path: file.place.to_owned(), sha256: file.sha256, size: file.size };
    let record = Record {
        agent: wish.agent,
        version: wish.version.clone(),
        platform: wish.platform.to_string(),
        source: source.name(),
        sha256: unpacked.hashes.sha256,
        pinned: wish.pin.is_some(),
        installed_at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
        files: unpacked.files.into_iter().map(file).collect(),
    };
    let bin = settings.bin.clone();
    let agent = wish.agent;
    let placed = spawn_blocking(move || {
        let phase = |phase| tell(Progress { phase, ..Progress::default() });
        let directory = Place::new(&bin, agent).finish(staging, &record, &phase)?;
        Ok(wish.installed(&directory))
    });
    placed.await.map_err(|_| InstallError::Interrupted(agent))?
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

    /// What another process has installed in the meantime, if it will do.
    fn present(&self, place: &Place<'_>) -> Option<Installed> {
        let directory = place.current()?;
        let version = record(&directory)?.version;
        let will_do = self.is_any || version == self.version;
        will_do.then(|| Installed { path: directory.join(layout::program(self.agent)), version: Some(version) })
    }

    fn installed(&self, directory: &Path) -> Installed {
        Installed { path: directory.join(layout::program(self.agent)), version: Some(self.version.clone()) }
    }
}
