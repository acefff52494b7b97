//! Finds and installs the programs of agents.
//!
//! A program comes from the package registry that npm is configured with, or from its vendor, in the version whose
//! hashes are in [`PackagePin`]. Another version is accepted with the hash that its registry reports, which its record
//! shows. Concurrent callers share one download.

mod client;
mod directory;
mod discovery;
mod error;
mod layout;
mod npm;
mod pins;
mod plan;
mod platform;
mod progress;
mod progress_bar;
mod reader;
mod settings;
mod source;
mod unpack;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

use self::{directory::InstallDirectory, discovery::VersionCache, plan::InstallPlan};
pub use self::{
    discovery::InstalledProgram,
    error::InstallError,
    pins::PackagePin,
    platform::{AgentPlatform, CpuArch, Libc},
    progress::{InstallPhase, InstallProgress},
    progress_bar::InstallProgressBar,
    settings::{InstallSettings, InstallTimeouts, VendorDownloads},
    unpack::PackageUnpackError,
};
use crate::agent::AgentId;

/// Maximum length of a version.
const MAX_VERSION: usize = 64;

/// Finds and installs agents.
#[derive(Clone)]
pub struct Installer(Arc<InstallerInner>);

/// Receives every step of every install as it begins.
pub type Observer = Arc<dyn Fn(AgentId, InstallProgress) + Send + Sync>;

struct InstallerInner {
    settings: InstallSettings,
    observer: Option<Observer>,
    versions: VersionCache,
    jobs: Mutex<HashMap<AgentId, (InstallRequest, InstallWatch)>>,
}

/// Parameters of an install.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InstallRequest {
    reinstall: bool,
    version: Option<String>,
}

/// A running install, for all callers that wait for it.
type InstallWatch = watch::Receiver<InstallState>;

enum InstallState {
    Running(InstallProgress),
    Finished(Result<InstalledProgram, InstallError>),
}

// === impl Installer ===

impl Installer {
    /// With these settings.
    pub fn new(settings: InstallSettings) -> Self {
        Self::with(settings, None)
    }

    pub fn observed(settings: InstallSettings, observer: Observer) -> Self {
        Self::with(settings, Some(observer))
    }

    fn with(settings: InstallSettings, observer: Option<Observer>) -> Self {
        Self(Arc::new(InstallerInner { settings, observer, versions: VersionCache::default(), jobs: Mutex::default() }))
    }

    /// The program of an agent: our own install, or else the one in `PATH`. Starts no process.
    pub fn find(&self, agent: AgentId) -> Option<InstalledProgram> {
        if agent == AgentId::Mock {
            return Some(InstalledProgram {
                path: PathBuf::new(),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            });
        }
        self.0.own(agent).or_else(|| {
            let path = (self.0.settings.variable())("PATH")?;
            Some(InstalledProgram { path: discovery::in_path(agent.as_str(), &path)?, version: None })
        })
    }

    /// The version of a program. One that was not installed here is run once to find out, for five seconds at most.
    pub async fn version(&self, installed: &InstalledProgram) -> Option<String> {
        match &installed.version {
            Some(version) => Some(version.clone()),
            None => self.0.versions.of(&installed.path).await,
        }
    }

    /// Installs an agent if it is missing, in this version if one is given. The install continues even if the caller is
    /// cancelled.
    pub async fn install(
        &self,
        agent: AgentId,
        reinstall: bool,
        version: Option<&str>,
        mut progress: impl FnMut(InstallProgress),
    ) -> Result<InstalledProgram, InstallError> {
        let version = version.map(parse_version).transpose()?;
        if let Some(found) = self.find(agent).filter(|_| !reinstall || agent == AgentId::Mock)
            && (agent == AgentId::Mock || version.is_none() || self.version(&found).await == version)
        {
            return Ok(found);
        }
        if self.0.settings.preinstalled {
            return Err(InstallError::Forbidden(agent));
        }
        let mut job = self.join(agent, InstallRequest { reinstall, version }).await?;
        loop {
            match &*job.borrow_and_update() {
                InstallState::Running(now) => progress(*now),
                InstallState::Finished(outcome) => return outcome.clone(),
            }
            job.changed().await.map_err(|_| InstallError::Interrupted(agent))?;
        }
    }

    /// Joins a running install with the same parameters, or starts one after another install of this agent has
    /// finished.
    async fn join(&self, agent: AgentId, request: InstallRequest) -> Result<InstallWatch, InstallError> {
        loop {
            let mut other = {
                let mut jobs = self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner);
                match jobs.get(&agent).filter(|(_, job)| job.has_changed().is_ok()) {
                    Some((same, job)) if *same == request => return Ok(job.clone()),
                    Some((_, job)) => job.clone(),
                    None => {
                        let (report, job) = watch::channel(InstallState::Running(InstallProgress::default()));
                        self.0.clone().start(InstallPlan::new(agent, &request, &self.0.settings)?, report);
                        jobs.insert(agent, (request, job.clone()));
                        return Ok(job);
                    }
                }
            };
            // Whether it succeeded does not matter here.
            let _over = other.wait_for(|state| matches!(state, InstallState::Finished(_))).await;
        }
    }
}

// === impl InstallerInner ===

impl InstallerInner {
    fn start(self: Arc<Self>, plan: InstallPlan, report: watch::Sender<InstallState>) {
        tokio::spawn(async move {
            let agent = plan.agent;
            let report = Arc::new(report);
            let progress = {
                let (report, observer) = (Arc::clone(&report), self.observer.clone());
                move |progress| {
                    report.send_replace(InstallState::Running(progress));
                    if let Some(observer) = &observer {
                        observer(agent, progress);
                    }
                }
            };
            let outcome = plan::run(&self.settings, plan, Arc::new(progress)).await;
            self.jobs.lock().unwrap_or_else(PoisonError::into_inner).remove(&agent);
            report.send_replace(InstallState::Finished(outcome));
        });
    }

    /// The program in our own directory: an install, or a program that was put there by hand.
    fn own(&self, agent: AgentId) -> Option<InstalledProgram> {
        let installs = InstallDirectory::new(&self.settings, agent);
        match installs.current() {
            Some(directory) => {
                let record = installs.record(&directory)?;
                Some(InstalledProgram { path: directory.join(layout::program(agent)), version: Some(record.version) })
            }
            None => {
                let path = installs.link();
                discovery::is_program(&path).then_some(InstalledProgram { path, version: None })
            }
        }
    }
}

/// Checks and normalizes a version.
fn parse_version(text: &str) -> Result<String, InstallError> {
    let version = text.trim().trim_start_matches('v');
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '+');
    let is_sound = version.starts_with(|first: char| first.is_ascii_digit())
        && version.len() <= MAX_VERSION
        && version.chars().all(is_plain)
        && !version.contains("..");
    if is_sound { Ok(version.to_owned()) } else { Err(InstallError::Version(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_never_a_path() {
        for (text, version) in [("2.1.325", "2.1.325"), ("v0.1.0-alpha.2", "0.1.0-alpha.2"), (" 1.0+b ", "1.0+b")] {
            assert_eq!(parse_version(text).unwrap(), version);
        }
        for text in ["", "latest", "1/../2", "1..2", "1 2", "1%2f", &"1".repeat(65)] {
            assert!(parse_version(text).is_err(), "{text}");
        }
    }
}
