//! The egress policy of registry requests: any address, or public ones only.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::config::RegistriesConfig;
use crate::transport::is_localhost_name;

/// Which hosts requests may go to.
#[derive(Clone, Debug, Default)]
pub(crate) enum EgressPolicy {
    #[default]
    Unrestricted,
    /// Public addresses, and the hosts that the configuration names, wherever they are.
    PublicOnly {
        allowed: Arc<BTreeSet<String>>,
        /// Hosts of the proxies in the environment: they may forward requests, but not be the target of one.
        proxies: Arc<BTreeSet<String>>,
    },
}

/// How a connection to a host is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EgressRoute {
    /// To any address that the name resolves to.
    Unrestricted,
    /// To public addresses only.
    PublicOnly,
}

/// A host that is this machine, or in a private network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} has no public address")]
pub(crate) struct NotPublicAddress(pub(crate) String);

/// Resolves names to their public addresses.
pub(crate) struct PublicResolver {
    names: Arc<dyn Resolve>,
    proxies: Arc<BTreeSet<String>>,
}

/// Resolves names by the configuration of the system.
struct SystemResolver;

// === impl EgressPolicy ===

impl EgressPolicy {
    pub(crate) fn public(settings: &RegistriesConfig) -> Self {
        let proxies =
            ["http_proxy", "https_proxy", "all_proxy"].iter().flat_map(|name| [name.to_string(), name.to_uppercase()]);
        let proxies = proxies.filter_map(|variable| std::env::var(variable).ok()).filter_map(|value| host(&value));
        Self::PublicOnly { allowed: Arc::new(settings.hosts()), proxies: Arc::new(proxies.collect()) }
    }

    /// How a URL may be reached; an error if not at all.
    pub(crate) fn route(&self, url: &Url) -> Result<EgressRoute, NotPublicAddress> {
        let Self::PublicOnly { allowed, proxies } = self else { return Ok(EgressRoute::Unrestricted) };
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        if allowed.contains(&format!("{host}:{port}")) || url.port().is_none() && allowed.contains(host) {
            return Ok(EgressRoute::Unrestricted);
        }
        // A name is checked again when it is resolved; a proxy resolves it itself, so proxies are denied here.
        let refused = match literal(host) {
            Some(address) => !is_public(address),
            None => is_localhost_name(host) || proxies.contains(host),
        };
        if refused { Err(NotPublicAddress(host.to_owned())) } else { Ok(EgressRoute::PublicOnly) }
    }

    /// The resolver of the public-only route; `None` if all hosts are allowed.
    pub(crate) fn public_resolver(&self) -> Option<PublicResolver> {
        let Self::PublicOnly { proxies, .. } = self else { return None };
        Some(PublicResolver { names: Arc::new(SystemResolver), proxies: Arc::clone(proxies) })
    }

    pub(crate) fn is_public(&self) -> bool {
        matches!(self, Self::PublicOnly { .. })
    }
}

/// The host of a proxy URL, with or without scheme.
fn host(proxy: &str) -> Option<String> {
    let url = if proxy.contains("://") { Url::parse(proxy) } else { Url::parse(&format!("http://{proxy}")) };
    Some(url.ok()?.host_str()?.to_owned())
}

/// The IP address in the host of a URL, if it is one.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether an address is globally reachable, and not one of this machine.
fn is_public(address: IpAddr) -> bool {
    let public = match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.segments() {
            // NAT64.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                is_public_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
            }
            // Teredo and 6to4 tunnels, and documentation.
            [0x2001, 0 | 0xdb8, ..] | [0x2002, ..] => false,
            [first, ..] => first & 0xe000 == 0x2000,
        },
    };
    public && !is_of_this_host(address)
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation();
    // "This network", carrier-grade NAT, protocol assignments, benchmarks, future use and broadcast.
    let reserved =
        matches!(address.octets(), [0 | 240.., ..] | [100, 64..=127, ..] | [192, 0, 0, _] | [198, 18 | 19, ..]);
    !special && !reserved
}

/// Whether an address is one of this machine: then the kernel would also use it as source. No packet is sent.
fn is_of_this_host(address: IpAddr) -> bool {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == address)
}

// === impl PublicResolver ===

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let found = self.names.resolve(name);
        if self.proxies.contains(&host) {
            return found;
        }
        Box::pin(async move {
            let public: Vec<_> = found.await?.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err(NotPublicAddress(host).into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

// === impl SystemResolver ===

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let mut system = TokioResolver::builder_tokio()?;
            system.options_mut().ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
            let found = system.build()?.lookup_ip(name.as_str()).await?;
            let addresses: Vec<_> = found.iter().map(|address| SocketAddr::new(address, 0)).collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests;
