//! Resolves hosts without a name service: literals, `localhost`, and the image's hosts file.
//!
//! The sandbox has only a loopback interface, so there is no resolver to ask.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::image_file;

/// The addresses of a host, in the order in which to try them; empty for an unknown name.
pub(super) fn resolve(host: &str, port: u16) -> Vec<SocketAddr> {
    addresses(host, &image_file::text("/etc/hosts")).into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

fn addresses(host: &str, hosts: &str) -> Vec<IpAddr> {
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = literal.parse() {
        return vec![address];
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.eq_ignore_ascii_case("localhost") {
        // IPv4 first: servers that listen on one family only usually choose it.
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    hosts
        .lines()
        .filter_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_resolve_from_literals_localhost_and_the_hosts_file() {
        let hosts = "127.0.1.1 box box.local # not.this\n::1 box\nbad line\n";
        assert_eq!(addresses("10.0.0.1", hosts), [IpAddr::from([10, 0, 0, 1])]);
        assert_eq!(addresses("[::1]", hosts), [IpAddr::from(Ipv6Addr::LOCALHOST)]);
        assert_eq!(addresses("LocalHost.", hosts).len(), 2);
        assert_eq!(addresses("BOX", hosts), [IpAddr::from([127, 0, 1, 1]), Ipv6Addr::LOCALHOST.into()]);
        assert!(addresses("not.this", hosts).is_empty());
    }
}
