//! Requests for published ports.

use carrel_shim_client::messages::{FailureCode, PortsPublish};

use super::ShimServer;
use super::requests::{RequestReply, RequestResult};
use crate::jobs::RequestRejection;

impl ShimServer {
    /// Serves the ports whose sockets are attached to a request.
    pub(super) fn publish_ports(&mut self, number: usize, publish: &PortsPublish) -> RequestResult {
        let sockets = self
            .control_socket
            .client(number)
            .map(crate::control_socket::ControlClient::take_descriptors)
            .unwrap_or_default();
        if self.ending.is_some() || self.guest_exited {
            return Err(RequestRejection::new(FailureCode::WrongState, "sandbox is shutting down"));
        }
        if !self.running.handshake.credit {
            return Err(RequestRejection::new(FailureCode::Unsupported, "agent of the sandbox does not support ports"));
        }
        self.ports.publish(&publish.ports, sockets).map(|()| RequestReply::Done)
    }

    pub(super) fn accept_at_port(&mut self, number: usize) {
        let relay = &mut self.relay;
        self.ports.accept(number, || relay.open_connection());
    }
}
