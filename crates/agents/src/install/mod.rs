//! From an agent's name to its program on this machine.
//!
//! A program comes from the package registry that npm knows here, or from its makers, as the one version whose hashes are in
//! [`Pin`]. Another version is taken if its registry vouches for it, and its record says so. Whoever asks for the same
//! install at the same time waits for one download.

mod bar;
mod error;
mod found;
mod http;
mod job;
mod layout;
mod npm;
mod pins;
mod place;
mod platform;
mod progress;
mod settings;
mod source;
mod stream;
mod unpack;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

pub use self::{
    bar::Bar,
    error::InstallError,
    found::Installed,
    pins::Pin,
    platform::{Libc, Machine, Platform},
    progress::{Phase, Progress},
    settings::{Downloads, Patience, Settings},
    unpack::UnpackError,
};
use self::{found::Versions, job::Wish, place::Place};
use crate::agent::AgentId;

/// The longest version.
const LONGEST: usize = 64;

/// Finds agents, and installs them.
#[derive(Clone)]
pub struct Installer(Arc<Inner>);

/// Is told of every step as it begins, by whoever takes it.
pub type Observer = Arc<dyn Fn(AgentId, Progress) + Send + Sync>;

struct Inner {
    settings: Settings,
    observer: Option<Observer>,
    versions: Versions,
    jobs: Mutex<HashMap<AgentId, (Asked, Job)>>,
}

/// What an install was asked for with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    reinstall: bool,
    version: Option<String>,
}

/// An install under way, for everybody who waits for it.
type Job = watch::Receiver<State>;

enum State {
    Under(Progress),
    Over(Result<Installed, InstallError>),
}

// === impl Installer ===

impl Installer {
    /// With these settings.
    pub fn new(settings: Settings) -> Self {
        Self::with(settings, None)
    }

    /// With somebody who is told of every step of every install.
    pub fn observed(settings: Settings, observer: Observer) -> Self {
        Self::with(settings, Some(observer))
    }

    fn with(settings: Settings, observer: Option<Observer>) -> Self {
        Self(Arc::new(Inner { settings, observer, versions: Versions::default(), jobs: Mutex::default() }))
    }

    /// The program of an agent: our own install, and else the one in `PATH`. Starts nothing.
    pub fn find(&self, agent: AgentId) -> Option<Installed> {
        if agent == AgentId::Mock {
            return Some(Installed { path: PathBuf::new(), version: Some(env!("CARGO_PKG_VERSION").to_owned()) });
        }
        self.0.own(agent).or_else(|| {
            let path = (self.0.settings.variable())("PATH")?;
            Some(Installed { path: found::in_path(agent.as_str(), &path)?, version: None })
        })
    }

    /// The version of a program. One that was not installed here is asked, once, and for five seconds at most.
    pub async fn version(&self, installed: &Installed) -> Option<String> {
        match &installed.version {
            Some(version) => Some(version.clone()),
            None => self.0.versions.of(&installed.path).await,
        }
    }

    /// Installs an agent, unless it is there: in this version, if one is given. The install goes on though whoever asked for
    /// it goes away.
    pub async fn install(
        &self,
        agent: AgentId,
        reinstall: bool,
        version: Option<&str>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Installed, InstallError> {
        let version = version.map(number).transpose()?;
        if let Some(found) = self.find(agent).filter(|_| !reinstall || agent == AgentId::Mock) {
            if agent == AgentId::Mock || version.is_none() || self.version(&found).await == version {
                return Ok(found);
            }
        }
        if self.0.settings.preinstalled {
            return Err(InstallError::Forbidden(agent));
        }
        let mut job = self.join(agent, Asked { reinstall, version }).await?;
        loop {
            match &*job.borrow_and_update() {
                State::Under(now) => progress(*now),
                State::Over(outcome) => return outcome.clone(),
            }
            job.changed().await.map_err(|_| InstallError::Interrupted(agent))?;
        }
    }

    /// The install that is asked for: one under way, or a new one once another of this agent is over.
    async fn join(&self, agent: AgentId, asked: Asked) -> Result<Job, InstallError> {
        loop {
            let mut other = {
                let mut jobs = self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner);
                match jobs.get(&agent).filter(|(_, job)| job.has_changed().is_ok()) {
                    Some((same, job)) if *same == asked => return Ok(job.clone()),
                    Some((_, job)) => job.clone(),
                    None => {
                        let (tell, job) = watch::channel(State::Under(Progress::default()));
                        self.0.clone().start(Wish::new(agent, &asked, &self.0.settings)?, tell);
                        jobs.insert(agent, (asked, job.clone()));
                        return Ok(job);
                    }
                }
            };
            // However it ends, it is over.
            let _over = other.wait_for(|state| matches!(state, State::Over(_))).await;
        }
    }
}

// === impl Inner ===

impl Inner {
    fn start(self: Arc<Self>, wish: Wish, tell: watch::Sender<State>) {
        tokio::spawn(async move {
            let agent = wish.agent;
            let tell = Arc::new(tell);
            let told = {
                let (tell, observer) = (Arc::clone(&tell), self.observer.clone());
                move |progress| {
                    tell.send_replace(State::Under(progress));
                    if let Some(observer) = &observer {
                        observer(agent, progress);
                    }
                }
            };
            let outcome = job::run(&self.settings, wish, Arc::new(told)).await;
            self.jobs.lock().unwrap_or_else(PoisonError::into_inner).remove(&agent);
            tell.send_replace(State::Over(outcome));
        });
    }

    /// What is in our own directory: an install of ours, or a program that somebody put there.
    fn own(&self, agent: AgentId) -> Option<Installed> {
        let place = Place::new(&self.settings, agent);
        match place.current() {
            Some(directory) => {
                let record = place.record(&directory)?;
                Some(Installed { path: directory.join(layout::program(agent)), version: Some(record.version) })
            }
            None => {
                let path = place.link();
                found::is_program(&path).then_some(Installed { path, version: None })
            }
        }
    }
}

/// A version that a name can be made of.
fn number(text: &str) -> Result<String, InstallError> {
    let version = text.trim().trim_start_matches('v');
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '+');
    let is_sound = version.starts_with(|first: char| first.is_ascii_digit())
        && version.len() <= LONGEST
        && version.chars().all(is_plain)
        && !version.contains("..");
    if is_sound { Ok(version.to_owned()) } else { Err(InstallError::Version(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_number_and_no_path() {
        for (text, version) in [("2.1.325", "2.1.325"), ("v0.1.0-alpha.2", "0.1.0-alpha.2"), (" 1.0+b ", "1.0+b")] {
            assert_eq!(number(text).unwrap(), version);
        }
        for text in ["", "latest", "1/../2", "1..2", "1 2", "1%2f", &"1".repeat(65)] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
