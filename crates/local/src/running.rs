//! The running sandboxes that this process manages, with their connections.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use carrel_control::provider::Place;
use carrel_control::spec::Port;
use carrel_image::RootFs;
use carrel_image::accounts::ImageUser;
use carrel_layers::ImageConfig;
use carrel_shim_client::ShimClient;

use crate::plan;
use crate::ports::{AgentConnection, PortForwards, UnpublishedPort};
use crate::refresh::Refresher;

/// The running sandboxes and the claimed incarnations and disks.
#[derive(Debug, Default)]
pub(crate) struct RunningSandboxes(Mutex<RunningSandboxesState>, Arc<tokio::sync::Notify>);

#[derive(Debug, Default)]
struct RunningSandboxesState {
    /// By incarnation.
    running: HashMap<String, Arc<RunningSandbox>>,
    /// Incarnations and disks that are claimed by an operation here, so that the reaper leaves them alone.
    incarnations: HashSet<String>,
    disks: HashSet<String>,
}

#[derive(Debug)]
pub(crate) struct RunningSandbox {
    /// The exec user.
    pub(crate) user: ImageUser,
    /// The configuration of its image.
    pub(crate) config: ImageConfig,
    /// The accounts of its image.
    pub(crate) accounts: RootFs,
    /// The connection to its shim, opened on first use.
    pub(crate) shim: tokio::sync::Mutex<Option<ShimClient>>,
    /// The connection to its agent, for forwarded ports.
    pub(crate) agent: Arc<AgentConnection>,
    /// Allows one task at a time to publish ports.
    pub(crate) publishing: tokio::sync::Mutex<()>,
    ports: Mutex<SandboxPorts>,
    /// Refreshes read-only mounts, from the first command on.
    pub(crate) refresher: OnceLock<Refresher>,
}

/// The ports of a sandbox, as far as this process knows.
#[derive(Debug, Default)]
struct SandboxPorts {
    /// Those that this process forwards.
    forwards: Vec<PortForwards>,
    /// Those that are not open.
    unpublished: Vec<UnpublishedPort>,
}

// === impl RunningSandboxes ===

impl RunningSandboxes {
    /// Claims an incarnation and its disk.
    pub(crate) fn hold(&self, place: &Place) {
        let mut state = self.lock();
        state.incarnations.insert(place.incarnation.clone());
        state.disks.insert(place.disk.clone());
    }

    /// Claims a disk.
    pub(crate) fn hold_disk(&self, disk: &str) {
        self.lock().disks.insert(disk.to_owned());
    }

    pub(crate) fn holds_incarnation(&self, incarnation: &str) -> bool {
        self.lock().incarnations.contains(incarnation)
    }

    pub(crate) fn holds_disk(&self, disk: &str) -> bool {
        self.lock().disks.contains(disk)
    }

    /// Releases an incarnation that was removed.
    pub(crate) fn release_incarnation(&self, place: &Place) {
        let mut state = self.lock();
        state.incarnations.remove(&place.incarnation);
        state.running.remove(&place.incarnation);
    }

    /// Releases a disk that was removed.
    pub(crate) fn release_disk(&self, place: &Place) {
        self.lock().disks.remove(&place.disk);
    }

    pub(crate) fn get(&self, place: &Place) -> Option<Arc<RunningSandbox>> {
        self.lock().running.get(&place.incarnation).map(Arc::clone)
    }

    /// Whether no running sandbox is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().running.is_empty()
    }

    /// Notified when a running sandbox is added.
    pub(crate) fn changed(&self) -> Arc<tokio::sync::Notify> {
        Arc::clone(&self.1)
    }

    /// Adds a running sandbox, unless it is known.
    pub(crate) fn insert(&self, place: &Place, running: RunningSandbox) -> Arc<RunningSandbox> {
        self.1.notify_one();
        let mut state = self.lock();
        Arc::clone(state.running.entry(place.incarnation.clone()).or_insert_with(|| Arc::new(running)))
    }

    /// Removes a sandbox that stopped. When this returns, its ports are free.
    pub(crate) async fn remove(&self, place: &Place) {
        let running = self.lock().running.remove(&place.incarnation);
        let ports = running.map(|running| std::mem::take(&mut *running.lock())).unwrap_or_default();
        for forwards in ports.forwards {
            forwards.close().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunningSandboxesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl RunningSandbox ===

impl RunningSandbox {
    /// A sandbox with this root, image configuration and agent socket.
    pub(crate) fn new(root: &RootFs, config: ImageConfig, agent_socket: PathBuf) -> Self {
        let (user, accounts) = (plan::user_of(root, &config), plan::accounts_of(root));
        let (shim, agent) = (tokio::sync::Mutex::default(), Arc::new(AgentConnection::new(agent_socket)));
        let (publishing, ports) = (tokio::sync::Mutex::default(), Mutex::default());
        Self { user, config, accounts, shim, agent, publishing, ports, refresher: OnceLock::new() }
    }

    /// Adds ports that this process forwards.
    pub(crate) fn forward(&self, forwards: PortForwards) {
        self.lock().forwards.push(forwards);
    }

    /// The ports that this process forwards.
    pub(crate) fn forwarded(&self) -> Vec<Port> {
        self.lock().forwards.iter().flat_map(PortForwards::ports).copied().collect()
    }

    /// The ports that are not open.
    pub(crate) fn unpublished(&self) -> Vec<UnpublishedPort> {
        self.lock().unpublished.clone()
    }

    pub(crate) fn set_unpublished(&self, unpublished: Vec<UnpublishedPort>) {
        self.lock().unpublished = unpublished;
    }

    fn lock(&self) -> MutexGuard<'_, SandboxPorts> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
