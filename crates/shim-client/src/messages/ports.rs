//! Published ports: ports of the host that are forwarded into a sandbox.

use carrel_protocol::record;

record! {
    /// Serve ports of the host. A listening socket for each is attached, in order.
    pub struct PortsPublish {
        ports: Vec<PublishedPort> => required,
    }

    /// A port of the host that is forwarded to a port inside.
    #[derive(Copy)]
    pub struct PublishedPort {
        host: u16 => required,
        /// The port inside, at `127.0.0.1` or else at `::1`.
        inside: u16 => required,
    }
}

// === impl PortsPublish ===

impl PortsPublish {
    /// The maximum number of ports of a sandbox, and of descriptors attached to a message.
    pub const MAX: usize = 64;
}
