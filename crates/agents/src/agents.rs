//! The agents of a server: their drivers, programs and credentials in one place.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::future::join_all;

use crate::{
    agent::{Agent, AgentError, AgentId, Models, Place},
    claude::Claude,
    codex::Codex,
    credentials::{Credentials, Sources},
    http::{Code, Problem, shape::AgentInfo},
    install::{InstallError, Installer, Settings},
    mock::Mock,
};

/// All agents.
pub struct Agents {
    drivers: [Arc<dyn Agent>; AgentId::ALL.len()],
    installer: Installer,
}

// === impl Agents ===

impl Agents {
    /// With programs that are found and installed by these settings.
    pub fn new(settings: Settings) -> Self {
        let drivers = AgentId::ALL.map(|id| -> Arc<dyn Agent> {
            match id {
                AgentId::Claude => Arc::new(Claude::default()),
                AgentId::Codex => Arc::new(Codex::new()),
                AgentId::Mock => Arc::new(Mock),
            }
        });
        Self { drivers, installer: Installer::new(settings) }
    }

    /// One by its name on the wire.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Agent>> {
        name.parse().ok().map(|id| self.driver(id))
    }

    /// One of them.
    pub fn driver(&self, id: AgentId) -> Arc<dyn Agent> {
        let [claude, codex, mock] = &self.drivers;
        Arc::clone(match id {
            AgentId::Claude => claude,
            AgentId::Codex => codex,
            AgentId::Mock => mock,
        })
    }

    /// All of them, as they are listed.
    pub async fn list(&self) -> Vec<AgentInfo> {
        let credentials = Credentials::find(&Sources::from_environment());
        let infos = self.drivers.iter().map(|driver| async {
            let id = driver.id();
            let installed = self.installer.find(id);
            let version = match &installed {
                Some(found) => self.installer.version(found).await,
                None => None,
            };
            let path = installed.as_ref().map(|found| found.path.display().to_string());
            AgentInfo {
                id,
                installed: installed.is_some(),
                version,
                path: path.filter(|path| !path.is_empty()),
                credentials_available: credentials.available(id),
                capabilities: driver.capabilities(),
            }
        });
        join_all(infos).await
    }

    /// Makes sure that an agent is here, in this version if one is given.
    pub async fn ensure(&self, id: AgentId, version: Option<&str>) -> Result<(), Problem> {
        self.install(id, false, version).await
    }

    /// Installs an agent.
    pub async fn install(&self, id: AgentId, reinstall: bool, version: Option<&str>) -> Result<(), Problem> {
        match self.installer.install(id, reinstall, version, |_| {}).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let code = match &error {
                    InstallError::Forbidden(_) => Code::AgentNotInstalled,
                    InstallError::Version(_) => Code::InvalidRequest,
                    _ => Code::InstallFailed,
                };
                Err(Problem::new(code, error.to_string()).of_agent(id.as_str()))
            }
        }
    }

    /// The models that an agent can use.
    pub async fn models(&self, agent: &dyn Agent) -> Result<Models, AgentError> {
        let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
        agent.models(&self.locate(agent.id(), &directory)?).await
    }

    /// Where an agent is, and with which credentials.
    pub fn locate(&self, id: AgentId, directory: &Path) -> Result<Place, AgentError> {
        let found = self.installer.find(id).ok_or(AgentError::NotInstalled(id))?;
        let environment = match id {
            AgentId::Mock => Vec::new(),
            _ => Credentials::find(&Sources::from_environment()).environment(id),
        };
        Ok(Place { program: found.path, environment, directory: directory.to_owned() })
    }

    /// Ends what agents share.
    pub async fn shutdown(&self, patience: Duration) {
        let ending = join_all(self.drivers.iter().map(|driver| driver.shutdown(patience)));
        let _too_slow = tokio::time::timeout(patience, ending).await;
    }
}
