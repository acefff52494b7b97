//! How to connect.

use std::time::Duration;

use carrel_protocol::Generation;

/// How to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// How long the whole handshake may take, connecting included.
    pub timeout: Duration,
    /// The highest generation to agree on. Below [`Generation::CURRENT`] the client behaves like an older one.
    pub max_generation: Generation,
    /// The support horizon: an agent of an older generation is refused up front.
    pub min_generation: Generation,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            max_generation: Generation::CURRENT,
            min_generation: Generation::HORIZON,
        }
    }
}
