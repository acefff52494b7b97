//! Host names that a server without a token accepts: loopback names, and those of `--allow-host`.
//!
//! With DNS rebinding, a page's host name can resolve to 127.0.0.1, so that the browser sends its requests to the
//! server. But the browser cannot be made to change the name in the `Host` header.

use std::net::{Ipv4Addr, Ipv6Addr};

#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(Vec<HostName>);

/// Not a host name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a host name or an address, without a port")]
pub struct HostNameError(String);

/// A host in canonical form.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HostName {
    Name(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

// === impl AllowedHosts ===

impl AllowedHosts {
    /// Loopback names and these.
    pub fn new(names: &[String]) -> Result<Self, HostNameError> {
        let parse = |name: &String| HostName::parse(name).ok_or_else(|| HostNameError(name.clone()));
        names.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether an authority (host and optional port) is allowed.
    pub(super) fn allows(&self, authority: &str) -> bool {
        host(authority).is_some_and(|name| name.is_loopback() || self.0.contains(&name))
    }
}

/// The host of an authority. `None` with user information, or with an empty or invalid port.
fn host(authority: &str) -> Option<HostName> {
    let colon = authority.rfind(':').filter(|at| authority.rfind(']').is_none_or(|bracket| bracket < *at));
    let name = match colon.and_then(|at| authority.split_at_checked(at)) {
        Some((name, port)) => {
            let digits = port.get(1..).unwrap_or_default();
            let is_port = digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok();
            is_port.then_some(name)?
        }
        None => authority,
    };
    HostName::parse(name)
}

// === impl HostName ===

impl HostName {
    fn parse(name: &str) -> Option<Self> {
        if let Some(address) = name.strip_prefix('[') {
            return address.strip_suffix(']')?.parse().ok().map(Self::V6);
        }
        if let Ok(address) = name.parse() {
            return Some(Self::V4(address));
        }
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let last = name.rsplit('.').next().unwrap_or_default();
        // Resolvers accept `127.1`, `2130706433` and `0x7f.1` as addresses; other spellings are rejected here.
        let is_numeric = last.starts_with(|first: char| first.is_ascii_digit());
        (name.split('.').all(is_label) && !is_numeric).then_some(Self::Name(name))
    }

    fn is_loopback(&self) -> bool {
        match self {
            // Browsers and resolvers treat these as loopback without DNS (RFC 6761).
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Self::V4(address) => address.is_loopback(),
            Self::V6(address) => {
                address.is_loopback() || address.to_ipv4_mapped().is_some_and(|mapped| mapped.is_loopback())
            }
        }
    }
}

fn is_label(label: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !label.is_empty() && label.len() <= 63 && label.bytes().all(is_fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names_are_allowed() {
        let hosts = AllowedHosts::default();
        for name in [
            "localhost",
            "LocalHost",
            "localhost.",
            "localhost:2468",
            "agent.localhost",
            "a.b.localhost:80",
            "127.0.0.1",
            "127.0.0.1:2468",
            "127.255.0.9",
            "[::1]",
            "[::1]:1",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]:2468",
        ] {
            assert!(hosts.allows(name), "{name}");
        }
    }

    #[test]
    fn other_names_and_spellings_are_rejected() {
        let hosts = AllowedHosts::default();
        for name in [
            "",
            ":80",
            ".",
            "myhost",
            "myhost:2468",
            "agent.internal",
            "host.docker.internal",
            "evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "x-localhost",
            ".localhost",
            "a..localhost",
            "localhost..",
            "127.1",
            "127.0.1",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "127.0.0.01",
            "2130706433",
            "127.0.0.1.",
            "0.0.0.0",
            "10.0.0.1",
            "[::]",
            "::1",
            "[::1",
            "[::1]x",
            "[::1%lo]",
            "[::ffff:10.0.0.1]",
            "[fe80::1]",
            "user@localhost",
            "localhost:2468@evil.example",
            "localhost:",
            "localhost:+1",
            "localhost:65536",
            "localhost:1:2",
            "localhost/",
            "localhost evil.example",
            "localhost,evil.example",
            "l\u{f6}calhost",
        ] {
            assert!(!hosts.allows(name), "{name}");
        }
    }

    #[test]
    fn a_host_of_the_flag_is_allowed_on_any_port_and_in_any_spelling() {
        let names = ["Agent", "box.internal.", "192.0.2.7", "[2001:db8::7]"].map(str::to_owned);
        let hosts = AllowedHosts::new(&names).unwrap();
        for name in ["agent", "AGENT:2468", "agent.", "box.internal:1", "192.0.2.7:80", "[2001:db8:0::7]", "localhost"]
        {
            assert!(hosts.allows(name), "{name}");
        }
        for name in ["agents", "x.agent", "internal", "192.0.2.70", "[2001:db8::8]"] {
            assert!(!hosts.allows(name), "{name}");
        }
        for wrong in ["", "*", "*.internal", "agent:2468", "http://agent", "a b", "::1", "0.1"] {
            assert!(AllowedHosts::new(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
