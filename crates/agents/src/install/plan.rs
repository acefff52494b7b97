//! Carries out one install.

use std::{path::Path, sync::Arc};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{
    AgentPlatform, InstallError, InstallPhase, InstallProgress, InstallRequest, InstallSettings, InstalledProgram,
    PackagePin, PackageUnpackError,
    client::{RegistryClient, RegistryFetchError},
    directory::{InstallDirectory, InstallRecord, InstalledFile, StagingDirectory, blocking},
    discovery, layout,
    npm::{self, NpmConfig},
    reader::{DownloadHashes, DownloadReader, MAX_BUFFERED},
    source::{self, PackageFormat, PackageSource},
    unpack::{self, UnpackedFile},
};
use crate::agent::AgentId;

/// Receives progress.
pub(super) type ProgressReporter = Arc<dyn Fn(InstallProgress) + Send + Sync>;

/// What to install.
#[derive(Clone, Debug)]
pub(super) struct InstallPlan {
    pub(super) agent: AgentId,
    pub(super) version: String,
    pub(super) platform: AgentPlatform,
    /// Pinned hashes of this version.
    pub(super) pin: Option<PackagePin>,
    reinstall: bool,
    /// Whether any installed version is sufficient.
    is_any: bool,
}

/// A downloaded and unpacked package.
struct UnpackedPackage {
    files: Vec<UnpackedFile>,
    hashes: DownloadHashes,
}

/// Installs, unless another process just did.
pub(super) async fn run(
    settings: &InstallSettings,
    plan: InstallPlan,
    report: ProgressReporter,
) -> Result<InstalledProgram, InstallError> {
    let agent = plan.agent;
    let phase = {
        let report = Arc::clone(&report);
        move |phase| report(InstallProgress { phase, ..InstallProgress::default() })
    };
    let directory = InstallDirectory::new(settings, agent);
    phase(InstallPhase::Waiting);
    let _lock = directory.lock(settings.timeouts.lock, &phase).await?;
    let installed_meanwhile = {
        let (plan, directory, phase) = (plan.clone(), directory.clone(), phase.clone());
        blocking(agent, move || plan.installed_meanwhile(&directory, &phase)).await??
    };
    if let Some(installed) = installed_meanwhile {
        return Ok(installed);
    }
    phase(InstallPhase::Resolving);
    let (mut npm, certificates) = {
        let (variable, home) = (Arc::clone(settings.variable()), settings.home.clone());
        let read = move || {
            let npm = NpmConfig::read(&variable, home.as_ref());
            let certificates = npm.certificates();
            (npm, certificates)
        };
        blocking(agent, read).await?
    };
    if settings.registry.is_none() {
        let path = (settings.variable())("PATH").unwrap_or_default();
        npm.query_npm(discovery::in_path("npm", &path)).await;
    }
    let http = RegistryClient::new(settings.timeouts, certificates);
    let mut tried = Vec::new();
    let sources = match source::registry(&http, &npm, settings.registry.as_deref(), &plan).await {
        Ok(sources) => sources,
        Err(error) => {
            let (package, version) = plan.package();
            let registry = match &settings.registry {
                Some(given) => npm::address(given),
                None => npm.registry(&package),
            };
            let registry = registry.map_or_else(|| "the registry".to_owned(), |registry| source::redacted(&registry));
            tried.push((format!("{package}@{version} of {registry}"), error.to_string()));
            Vec::new()
        }
    };
    for source in sources.into_iter().chain(source::vendor(&plan, &settings.downloads)) {
        let staging = {
            let directory = directory.clone();
            blocking(agent, move || directory.create_staging()).await??
        };
        let error = match fetch(&http, &source, &plan, &staging, &report).await {
            Ok(Ok(unpacked)) => return finish(directory, plan, &source, unpacked, staging, phase).await,
            error => error,
        };
        blocking(agent, move || drop(staging)).await?;
        if let Err(error) = error? {
            tried.push((source.name(), error.to_string()));
        }
    }
    Err(InstallError::Unavailable { agent, version: plan.version, tried })
}

/// Downloads and unpacks at once. A failed download tries the next source; a bad package ends the install.
async fn fetch(
    http: &RegistryClient,
    source: &PackageSource,
    plan: &InstallPlan,
    staging: &StagingDirectory,
    report: &ProgressReporter,
) -> Result<Result<UnpackedPackage, RegistryFetchError>, InstallError> {
    let (chunks, receiver) = mpsc::channel(MAX_BUFFERED);
    let (required, format, into) = (source.required(plan), source.format.clone(), staging.0.clone());
    let program = layout::program(plan.agent);
    let unpacking = spawn_blocking(move || -> Result<UnpackedPackage, PackageUnpackError> {
        let mut stream = DownloadReader::new(receiver);
        let files = match format {
            PackageFormat::Program => unpack::program(&mut stream, program, &into),
            _ => unpack::archive(&mut stream, &required, &into, unpack::MAX_UNPACKED),
        }?;
        Ok(UnpackedPackage { files, hashes: stream.finish().map_err(PackageUnpackError::Read)? })
    });
    let progress = |bytes, total| report(InstallProgress { phase: InstallPhase::Downloading, bytes, total });
    progress(0, None);
    let downloaded = http.download(&source.request, chunks, &progress).await;
    let unpacked = unpacking.await.map_err(|_| InstallError::Interrupted(plan.agent))?;
    match (downloaded, unpacked) {
        (Err(error), _) if error != RegistryFetchError::ReaderGone => Ok(Err(error)),
        (_, Err(error)) => Err(InstallError::Package { origin: source.name(), error: Arc::new(error) }),
        (_, Ok(unpacked)) => {
            report(InstallProgress { phase: InstallPhase::Verifying, ..InstallProgress::default() });
            check(source, plan, &unpacked)?;
            Ok(Ok(unpacked))
        }
    }
}

/// Compares the package with all known hashes.
fn check(source: &PackageSource, plan: &InstallPlan, unpacked: &UnpackedPackage) -> Result<(), InstallError> {
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
    let Some(pin) = &plan.pin else { return Ok(()) };
    if source.format == PackageFormat::Registry && pin.package != hashes.sha256 {
        return Err(mismatch("the package", &pin.package, &hashes.sha256));
    }
    for file in &unpacked.files {
        match pin.file(file.path_in_install) {
            Some(known) if known == file.sha256 => {}
            known => return Err(mismatch(file.path_in_install, known.unwrap_or("absent"), &file.sha256)),
        }
    }
    Ok(())
}

/// Moves the package to its final directory.
async fn finish(
    directory: InstallDirectory,
    plan: InstallPlan,
    source: &PackageSource,
    unpacked: UnpackedPackage,
    staging: StagingDirectory,
    phase: impl Fn(InstallPhase) + Send + 'static,
) -> Result<InstalledProgram, InstallError> {
    let file = |file: UnpackedFile| InstalledFile {
        path: file.path_in_install.to_owned(),
        sha256: file.sha256,
        size: file.size,
    };
    let agent = plan.agent;
    let record = InstallRecord {
        agent,
        version: plan.version.clone(),
        platform: plan.platform.to_string(),
        source: source.name(),
        sha256: unpacked.hashes.sha256,
        pinned: plan.pin.is_some(),
        installed_at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
        files: unpacked.files.into_iter().map(file).collect(),
    };
    let put = move || Ok(plan.installed(&directory.finish(staging, &record, &phase)?));
    blocking(agent, put).await?
}

// === impl InstallPlan ===

impl InstallPlan {
    /// The requested version, or else the pinned one.
    pub(super) fn new(
        agent: AgentId,
        request: &InstallRequest,
        settings: &InstallSettings,
    ) -> Result<Self, InstallError> {
        let nowhere = |platform: String| InstallError::Platform { agent, platform };
        let installed_meanwhile = || format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
        let platform = settings.platform.ok_or_else(|| nowhere(installed_meanwhile()))?;
        let pin = settings.pins.iter().find(|pin| pin.is_for(agent, platform));
        let version = request.version.as_ref().or(pin.map(|pin| &pin.version));
        let version = version.ok_or_else(|| nowhere(platform.to_string()))?.clone();
        let pin = pin.filter(|pin| pin.version == version).cloned();
        Ok(Self { agent, version, platform, pin, reinstall: request.reinstall, is_any: request.version.is_none() })
    }

    /// Name and registry version of the package.
    pub(super) fn package(&self) -> (String, String) {
        layout::package(self.agent, self.platform, &self.version)
    }

    /// What another process has installed in the meantime. Call it under the lock.
    fn installed_meanwhile(
        &self,
        installs: &InstallDirectory,
        report: &dyn Fn(InstallPhase),
    ) -> Result<Option<InstalledProgram>, InstallError> {
        installs.remove_leftovers();
        if self.reinstall {
            return Ok(None);
        }
        if let Some(installed) = self.matching_install(installs) {
            return Ok(Some(installed));
        }
        // It was complete, but interrupted before it was linked.
        let Some(directory) = installs.find_complete(&self.version) else { return Ok(None) };
        installs.link_to(&directory, report)?;
        Ok(Some(self.installed(&directory)))
    }

    fn matching_install(&self, installs: &InstallDirectory) -> Option<InstalledProgram> {
        let directory = installs.current()?;
        let version = installs.record(&directory)?.version;
        let will_do = self.is_any || version == self.version;
        will_do.then(|| InstalledProgram { path: directory.join(layout::program(self.agent)), version: Some(version) })
    }

    fn installed(&self, directory: &Path) -> InstalledProgram {
        InstalledProgram { path: directory.join(layout::program(self.agent)), version: Some(self.version.clone()) }
    }
}
