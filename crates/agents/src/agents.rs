//! The agents of a server: their drivers, programs and credentials in one place.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::future::join_all;

use crate::{
    agent::{Agent, AgentError, AgentId, Models, Place},
    http::{Problem, shape::AgentInfo},
    mock::Mock,
};

/// All agents.
pub struct Agents {
    drivers: Vec<Arc<dyn Agent>>,
}

// === impl Agents ===

impl Default for Agents {
    fn default() -> Self {
        Self { drivers: vec![Arc::new(Mock)] }
    }
}

impl Agents {
    /// One by its name on the wire.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Agent>> {
        name.parse().ok().map(|id| self.driver(id))
    }

    /// One of them.
    pub fn driver(&self, id: AgentId) -> Arc<dyn Agent> {
        self.drivers.iter().find(|driver| driver.id() == id).map_or_else(|| Arc::new(Mock) as _, Arc::clone)
    }

    /// All of them, as they are listed.
    pub async fn list(&self) -> Vec<AgentInfo> {
        Vec::new()
    }

    /// Makes sure that an agent is here.
    pub async fn ensure(&self, _id: AgentId, _version: Option<&str>) -> Result<(), Problem> {
        Ok(())
    }

    /// Installs an agent.
    pub async fn install(&self, _id: AgentId, _reinstall: bool, _version: Option<&str>) -> Result<(), Problem> {
        Ok(())
    }

    /// The models that it can use.
    pub async fn models(&self, agent: &dyn Agent) -> Result<Models, AgentError> {
        agent.models(&self.locate(agent.id(), Path::new("/"))?).await
    }

    /// Where an agent is, and with which credentials.
    pub fn locate(&self, _id: AgentId, directory: &Path) -> Result<Place, AgentError> {
        Ok(Place { directory: directory.to_owned(), ..Place::default() })
    }

    /// Ends what agents share.
    pub async fn shutdown(&self, patience: Duration) {
        let ending = join_all(self.drivers.iter().map(|driver| driver.shutdown()));
        let _too_slow = tokio::time::timeout(patience, ending).await;
    }
}
