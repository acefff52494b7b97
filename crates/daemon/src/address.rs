//! Addresses to listen on: `unix:PATH` or `tcp:ADDRESS`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port, of the loopback interface or others.
    Tcp(SocketAddr),
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    /// It has no known scheme.
    #[error("{0:?} is not an address: use unix:PATH or tcp:ADDRESS:PORT")]
    Kind(String),
    /// The path is not absolute.
    #[error("{0:?}: the path of a socket must be absolute")]
    Relative(String),
    /// The part after `tcp:` is not an address.
    #[error("{0:?} is not an address with a port, such as 127.0.0.1:7443 or [::1]:7443")]
    Tcp(String),
}

// === impl Address ===

impl Address {
    /// Whether only processes of this host can connect.
    pub fn is_of_this_host(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(address) => address.ip().is_loopback(),
        }
    }
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            // gRPC clients write a path after two additional slashes.
            let path = path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path);
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(InvalidAddress::Relative(path.to_owned())),
            };
        }
        let Some(address) = text.strip_prefix("tcp:") else { return Err(InvalidAddress::Kind(text.to_owned())) };
        let bad = || InvalidAddress::Tcp(address.to_owned());
        match address.strip_prefix("localhost:") {
            Some(port) => Ok(Self::Tcp((Ipv4Addr::LOCALHOST, port.parse().map_err(|_| bad())?).into())),
            None => Ok(Self::Tcp(address.parse().map_err(|_| bad())?)),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_address_is_displayed_the_same_way() {
        for (text, expected) in [
            ("unix:/run/x.sock", "unix:/run/x.sock"),
            ("unix:///run/x.sock", "unix:/run/x.sock"),
            ("tcp:127.0.0.1:7443", "tcp:127.0.0.1:7443"),
            ("tcp:localhost:0", "tcp:127.0.0.1:0"),
            ("tcp:[::1]:80", "tcp:[::1]:80"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), expected);
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_its_reason() {
        for (text, expected) in [
            ("", "\"\" is not an address: use unix:PATH or tcp:ADDRESS:PORT"),
            ("http:x", "\"http:x\" is not an address: use unix:PATH or tcp:ADDRESS:PORT"),
            ("unix:x.sock", "\"x.sock\": the path of a socket must be absolute"),
            ("unix:", "\"\": the path of a socket must be absolute"),
            ("tcp:7443", "\"7443\" is not an address with a port, such as 127.0.0.1:7443 or [::1]:7443"),
            ("tcp:localhost:x", "\"localhost:x\" is not an address with a port, such as 127.0.0.1:7443 or [::1]:7443"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn only_loopback_and_unix_sockets_are_local() {
        let here = |text: &str| text.parse::<Address>().unwrap().is_of_this_host();
        assert!(here("unix:/x") && here("tcp:127.0.0.1:1") && here("tcp:[::1]:1"));
        assert!(!here("tcp:0.0.0.0:1") && !here("tcp:192.168.0.1:1"));
    }
}
