//! Whom requests may go to: everybody, or only whom anybody in the world could ask.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::line::is_here_by_name;
use crate::settings::Settings;

/// Whom requests may go to.
#[derive(Clone, Debug, Default)]
pub(crate) enum Reach {
    /// Everybody.
    #[default]
    Anybody,
    /// Public addresses, and what the operator has named, wherever that is.
    Public {
        named: Arc<BTreeSet<String>>,
        /// The hosts that requests go through. They are asked to pass something on, and nothing else.
        proxies: Arc<BTreeSet<String>>,
    },
}

/// How a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To whatever address a name has.
    Open,
    /// To public addresses alone.
    Guarded,
}

/// What is an address of this host, or of a network that not everybody is in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} has no public address")]
pub(crate) struct NotPublic(pub(crate) String);

/// The names of the world, but for those that lead back here.
pub(crate) struct Guarded {
    names: Arc<dyn Resolve>,
    proxies: Arc<BTreeSet<String>>,
}

/// Names as the system is set up to resolve them.
struct System;

// === impl Reach ===

impl Reach {
    pub(crate) fn public(settings: &Settings) -> Self {
        let proxies =
            ["http_proxy", "https_proxy", "all_proxy"].iter().flat_map(|name| [name.to_string(), name.to_uppercase()]);
        let proxies = proxies.filter_map(|variable| std::env::var(variable).ok()).filter_map(|value| host(&value));
        Self::Public { named: Arc::new(settings.named()), proxies: Arc::new(proxies.collect()) }
    }

    /// How somebody may be asked, if at all.
    pub(crate) fn way(&self, url: &Url) -> Result<Way, NotPublic> {
        let Self::Public { named, proxies } = self else { return Ok(Way::Open) };
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        if named.contains(&format!("{host}:{port}")) || url.port().is_none() && named.contains(host) {
            return Ok(Way::Open);
        }
        // A name is looked at again when it is resolved, which it is not on its way through a proxy.
        let refused = match literal(host) {
            Some(address) => !is_public(address),
            None => is_here_by_name(host) || proxies.contains(host),
        };
        if refused { Err(NotPublic(host.to_owned())) } else { Ok(Way::Guarded) }
    }

    /// What resolves the names of those who are asked by the guarded way; nothing, if nobody is.
    pub(crate) fn guarded(&self) -> Option<Guarded> {
        let Self::Public { proxies, .. } = self else { return None };
        Some(Guarded { names: Arc::new(System), proxies: Arc::clone(proxies) })
    }

    pub(crate) fn is_public(&self) -> bool {
        matches!(self, Self::Public { .. })
    }
}

/// The host of a proxy, which may be given without a scheme.
fn host(proxy: &str) -> Option<String> {
    let url = if proxy.contains("://") { Url::parse(proxy) } else { Url::parse(&format!("http://{proxy}")) };
    Some(url.ok()?.host_str()?.to_owned())
}

/// The address that a host of a URL is, if it is no name.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether an address is one that anybody in the world could ask, and not this host's.
fn is_public(address: IpAddr) -> bool {
    let public = match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.segments() {
            // The network's translation of an address of the other kind.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                is_public_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
            }
            // Tunnels to addresses of the other kind, and what stands in documents.
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
    // This network, shared addresses of providers, protocols, measurements, the future and everybody.
    let reserved =
        matches!(address.octets(), [0 | 240.., ..] | [100, 64..=127, ..] | [192, 0, 0, _] | [198, 18 | 19, ..]);
    !special && !reserved
}

/// Whether an address is one of this host's: what goes there would come from there. Nothing is sent to find out.
fn is_of_this_host(address: IpAddr) -> bool {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == address)
}

// === impl Guarded ===

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let found = self.names.resolve(name);
        if self.proxies.contains(&host) {
            return found;
        }
        Box::pin(async move {
            let public: Vec<_> = found.await?.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err(NotPublic(host).into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

// === impl System ===

impl Resolve for System {
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
