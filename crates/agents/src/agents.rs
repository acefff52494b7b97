//! The agents of a server: their drivers, programs and credentials.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::future::join_all;

use crate::{
    agent::{AgentDriver, AgentError, AgentId, AgentProgram, Models},
    claude::Claude,
    codex::Codex,
    credentials::{AgentCredentials, CredentialSources},
    http::{ApiProblem, ProblemCode, api_types::AgentInfo},
    install::{InstallError, InstallSettings, Installer},
    mock::MockAgent,
};

/// All agents of a server.
pub struct AgentRegistry {
    drivers: [Arc<dyn AgentDriver>; AgentId::ALL.len()],
    installer: Installer,
}

// === impl AgentRegistry ===

impl AgentRegistry {
    /// Finds and installs programs with these settings.
    pub fn new(settings: InstallSettings) -> Self {
        let drivers = AgentId::ALL.map(|id| -> Arc<dyn AgentDriver> {
            match id {
                AgentId::Claude => Arc::new(Claude::default()),
                AgentId::Codex => Arc::new(Codex::new()),
                AgentId::Mock => Arc::new(MockAgent),
            }
        });
        Self { drivers, installer: Installer::new(settings) }
    }

    /// The driver of an agent, by its name on the wire.
    pub fn get(&self, name: &str) -> Option<Arc<dyn AgentDriver>> {
        name.parse().ok().map(|id| self.driver(id))
    }

    pub fn driver(&self, id: AgentId) -> Arc<dyn AgentDriver> {
        let [claude, codex, mock] = &self.drivers;
        Arc::clone(match id {
            AgentId::Claude => claude,
            AgentId::Codex => codex,
            AgentId::Mock => mock,
        })
    }

    pub async fn list(&self) -> Vec<AgentInfo> {
        let credentials = AgentCredentials::find(&CredentialSources::from_environment());
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

    /// Installs an agent if it is missing, in this version if one is given.
    pub async fn ensure(&self, id: AgentId, version: Option<&str>) -> Result<(), ApiProblem> {
        self.install(id, false, version).await
    }

    pub async fn install(&self, id: AgentId, reinstall: bool, version: Option<&str>) -> Result<(), ApiProblem> {
        match self.installer.install(id, reinstall, version, |_| {}).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let code = match &error {
                    InstallError::Forbidden(_) => ProblemCode::AgentNotInstalled,
                    InstallError::Version(_) => ProblemCode::InvalidRequest,
                    _ => ProblemCode::InstallFailed,
                };
                Err(ApiProblem::new(code, error.to_string()).for_agent(id.as_str()))
            }
        }
    }

    /// Lists the models of an agent.
    pub async fn models(&self, agent: &dyn AgentDriver) -> Result<Models, AgentError> {
        let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
        agent.models(&self.locate(agent.id(), &directory)?).await
    }

    /// The program of an agent, with its credentials.
    pub fn locate(&self, id: AgentId, directory: &Path) -> Result<AgentProgram, AgentError> {
        let found = self.installer.find(id).ok_or(AgentError::NotInstalled(id))?;
        let environment = match id {
            AgentId::Mock => Vec::new(),
            _ => AgentCredentials::find(&CredentialSources::from_environment()).environment(id),
        };
        Ok(AgentProgram { path: found.path, environment, directory: directory.to_owned() })
    }

    /// Stops the processes that conversations share.
    pub async fn shutdown(&self, timeout: Duration) {
        let ending = join_all(self.drivers.iter().map(|driver| driver.shutdown(timeout)));
        let _too_slow = tokio::time::timeout(timeout, ending).await;
    }
}
