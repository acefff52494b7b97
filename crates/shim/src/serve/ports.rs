//! Published ports: given to the supervisor, and accepted at.

use carrel_shim_client::messages::{FailureCode, PortsPublish};

use super::Server;
use super::requests::{Answer, Outcome};
use crate::jobs::Refusal;

impl Server {
    /// Serves the ports whose sockets came with a request.
    pub(super) fn publish_ports(&mut self, number: usize, publish: &PortsPublish) -> Outcome {
        let sockets = self.desk.caller(number).map(crate::desk::Caller::take_descriptors).unwrap_or_default();
        if self.ending.is_some() || self.over {
            return Err(Refusal::new(FailureCode::WrongState, "the sandbox is coming to an end"));
        }
        if !self.running.greeted.credit {
            return Err(Refusal::new(FailureCode::Unsupported, "the agent in the sandbox cannot serve ports"));
        }
        self.ports.publish(&publish.ports, sockets).map(|()| Answer::Done)
    }

    pub(super) fn accept_at_port(&mut self, number: usize) {
        let relay = &mut self.relay;
        self.ports.accept(number, || relay.open_connection());
    }
}
