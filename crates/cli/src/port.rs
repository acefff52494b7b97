//! `--port HOST:INSIDE`.

use std::fmt;
use std::str::FromStr;

/// A port of the host, and the port inside that it forwards to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortPair {
    pub(crate) host: u16,
    pub(crate) inside: u16,
}

/// Text that is not a pair of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidPort;

// === impl PortPair ===

impl FromStr for PortPair {
    type Err = InvalidPort;

    fn from_str(text: &str) -> Result<Self, InvalidPort> {
        let port = |text: &str| text.parse().ok().filter(|port| *port != 0).ok_or(InvalidPort);
        let (host, inside) = text.split_once(':').ok_or(InvalidPort)?;
        Ok(Self { host: port(host)?, inside: port(inside)? })
    }
}

// === impl InvalidPort ===

impl fmt::Display for InvalidPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected HOST:INSIDE, each from 1 to 65535")
    }
}

impl std::error::Error for InvalidPort {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_ports_is_parsed() {
        assert_eq!("8080:80".parse(), Ok(PortPair { host: 8080, inside: 80 }));
        for text in ["", "80", "0:80", "80:0", "80:65536", "a:b", "80:80:80", "127.0.0.1:80"] {
            assert_eq!(text.parse::<PortPair>(), Err(InvalidPort), "{text}");
        }
    }
}
