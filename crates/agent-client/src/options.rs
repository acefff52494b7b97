//! Connection options.

use std::time::Duration;

use carrel_protocol::Generation;

/// Connection options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The timeout of connect and handshake together.
    pub timeout: Duration,
    /// The highest generation to negotiate. Below [`Generation::CURRENT`] the client behaves like an older one.
    pub max_generation: Generation,
    /// The lowest generation to accept: connecting to an older agent fails.
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
