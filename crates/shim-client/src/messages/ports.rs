//! Published ports: ports of the host that lead into a sandbox.

use carrel_protocol::record;

record! {
    /// Serve ports of the host. A listening socket for each travels along, in their order.
    pub struct PortsPublish {
        /// The ports.
        ports: Vec<PublishedPort> => required,
    }

    /// A port of the host that leads to a port inside.
    #[derive(Copy)]
    pub struct PublishedPort {
        /// The port of the host.
        host: u16 => required,
        /// The port inside, at `127.0.0.1` or else at `::1`.
        inside: u16 => required,
    }
}

// === impl PortsPublish ===

impl PortsPublish {
    /// The most ports that a sandbox has, and the most sockets that travel along with a message.
    pub const MAX: usize = 64;
}
