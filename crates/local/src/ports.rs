//! Published ports: ports of the host that are forwarded to ports of a sandbox.
//!
//! This process binds them and hands them to the shim, so they stay open when this process exits. The next daemon asks the
//! shim which ports it serves, and hands over the missing ones.

mod forward;

use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use carrel_control::provider::{Place, ProviderError};
use carrel_control::spec::Port;
use carrel_shim_client::messages::{FailureCode, PublishedPort};
use tokio::net::TcpListener;

pub(crate) use self::forward::{AgentConnection, PortForwards};
use crate::running::RunningSandbox;
use crate::{LocalInner, failed};

/// The delay before a port is retried: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// A published port of a running sandbox that is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishedPort {
    pub port: Port,
    /// Why it is not open. It is retried until it is.
    pub reason: String,
}

/// Bound ports of the host that nothing serves yet.
#[derive(Debug, Default)]
pub(crate) struct BoundPorts(Vec<(Port, TcpListener)>);

// === impl BoundPorts ===

impl BoundPorts {
    /// Binds all ports, or none.
    pub(crate) async fn open(ports: &[Port]) -> Result<Self, ProviderError> {
        let mut bound = Vec::new();
        for port in ports {
            // A port that was in use a moment ago can be bound: tokio sets `SO_REUSEADDR`.
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port.host)).await {
                Ok(listener) => bound.push((*port, listener)),
                Err(error) => {
                    let all: Vec<_> =
                        ports.iter().map(|port| format!("127.0.0.1:{}->{}", port.host, port.inside)).collect();
                    let message = format!("cannot publish ports {}: 127.0.0.1:{}: {error}", all.join(", "), port.host);
                    return Err(failed(message));
                }
            }
        }
        Ok(Self(bound))
    }
}

// === impl LocalInner ===

impl LocalInner {
    /// Publishes ports of a sandbox: its shim serves them from here on.
    pub(crate) async fn publish(
        &self,
        place: &Place,
        running: &RunningSandbox,
        bound: BoundPorts,
    ) -> Result<(), ProviderError> {
        if bound.0.is_empty() {
            return Ok(());
        }
        let publish: Vec<_> = bound.0.iter().map(|(port, listener)| (published(*port), listener)).collect();
        match self.hand_over(place, running, &publish).await {
            Ok(()) => Ok(()),
            // A shim of an earlier release cannot serve ports: this process does.
            Err(error) if error.code() == Some(FailureCode::Unsupported) => {
                running.forward(PortForwards::serve(bound.0, &running.agent));
                Ok(())
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Publishes the missing ports of a sandbox, all or none.
    pub(crate) async fn open_ports(
        &self,
        place: &Place,
        running: &RunningSandbox,
        ports: &[Port],
    ) -> Result<(), ProviderError> {
        let _publishing = running.publishing.lock().await;
        let missing = self.missing_ports(place, running, ports).await?;
        self.publish(place, running, BoundPorts::open(&missing).await?).await
    }

    /// Publishes the ports that are available and retries the rest in the background: a sandbox runs even without its ports.
    pub(crate) async fn open_ports_with_retry(
        self: &Arc<Self>,
        place: &Place,
        running: &Arc<RunningSandbox>,
        ports: &[Port],
    ) {
        if self.open_available_ports(place, running, ports).await {
            return;
        }
        for unpublished in running.unpublished() {
            let UnpublishedPort { port, reason } = unpublished;
            tracing::warn!(sandbox = %place.sandbox, port = port.host, reason, "failed to publish a port; retrying");
        }
        let (inner, running) = (Arc::downgrade(self), Arc::downgrade(running));
        drop(tokio::spawn(retry(inner, running, place.clone(), ports.to_owned())));
    }

    /// Publishes each available port. Returns whether all are published.
    async fn open_available_ports(&self, place: &Place, running: &RunningSandbox, ports: &[Port]) -> bool {
        let _publishing = running.publishing.lock().await;
        let because = |port: &Port, error: ProviderError| UnpublishedPort { port: *port, reason: error.message };
        let missing = match self.missing_ports(place, running, ports).await {
            Ok(missing) => missing,
            Err(error) => {
                running.set_unpublished(ports.iter().map(|port| because(port, error.clone())).collect());
                return false;
            }
        };
        let mut unpublished = Vec::new();
        for port in &missing {
            let opened = match BoundPorts::open(std::slice::from_ref(port)).await {
                Ok(bound) => self.publish(place, running, bound).await,
                Err(error) => Err(error),
            };
            unpublished.extend(opened.err().map(|error| because(port, error)));
        }
        let is_all = unpublished.is_empty();
        running.set_unpublished(unpublished);
        is_all
    }

    /// The ports that neither the shim nor this process serves.
    async fn missing_ports(
        &self,
        place: &Place,
        running: &RunningSandbox,
        ports: &[Port],
    ) -> Result<Vec<Port>, ProviderError> {
        if ports.is_empty() {
            return Ok(Vec::new());
        }
        let served = self.served_ports(place, running).await.map_err(failed)?;
        let here = running.forwarded();
        let is_missing = |port: &&Port| !served.contains(&published(**port)) && !here.contains(*port);
        Ok(ports.iter().filter(is_missing).copied().collect())
    }
}

fn published(port: Port) -> PublishedPort {
    PublishedPort { host: port.host, inside: port.inside }
}

/// Retries until all ports are open or the sandbox has stopped.
async fn retry(inner: Weak<LocalInner>, running: Weak<RunningSandbox>, place: Place, ports: Vec<Port>) {
    let mut wait = BACKOFF.0;
    loop {
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(BACKOFF.1);
        let (Some(inner), Some(running)) = (inner.upgrade(), running.upgrade()) else { return };
        if inner.open_available_ports(&place, &running, &ports).await {
            tracing::info!(sandbox = %place.sandbox, "all ports are published");
            return;
        }
    }
}
