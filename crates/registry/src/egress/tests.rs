use super::*;

/// Resolves every name to these addresses.
struct FixedResolver(Vec<IpAddr>);

impl Resolve for FixedResolver {
    fn resolve(&self, _name: Name) -> Resolving {
        let found: Vec<_> = self.0.iter().map(|address| SocketAddr::new(*address, 0)).collect();
        Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
    }
}

fn addresses(text: &[&str]) -> Vec<IpAddr> {
    text.iter().map(|text| text.parse().unwrap()).collect()
}

fn resolved(addresses: &[IpAddr], proxies: &[&str]) -> Result<Vec<IpAddr>, String> {
    let proxies = Arc::new(proxies.iter().map(|name| (*name).to_owned()).collect());
    let public_only = PublicResolver { names: Arc::new(FixedResolver(addresses.to_vec())), proxies };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let found = runtime.block_on(public_only.resolve("registry.example".parse().unwrap()));
    found.map(|found| found.map(|address| address.ip()).collect()).map_err(|error| error.to_string())
}

fn public(named: &[&str]) -> EgressPolicy {
    let settings = RegistriesConfig::new(named.iter().map(|name| ((*name).to_owned(), Default::default())));
    let EgressPolicy::PublicOnly { allowed, .. } = EgressPolicy::public(&settings) else { panic!("it is public") };
    EgressPolicy::PublicOnly { allowed, proxies: Arc::new(["proxy.example".to_owned()].into()) }
}

fn route(egress: &EgressPolicy, url: &str) -> Option<EgressRoute> {
    egress.route(&url.parse().unwrap()).ok()
}

const ELSEWHERE: [&str; 5] = ["1.1.1.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"];
const PRIVATE: [&str; 24] = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.8",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "fd12::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::1",
    "2001::1",
    "2001:db8::1",
];

#[test]
fn public_addresses_are_distinguished_from_all_others() {
    for address in addresses(&ELSEWHERE) {
        assert!(is_public(address), "{address}");
    }
    for address in addresses(&PRIVATE) {
        assert!(!is_public(address), "{address}");
    }
}

#[test]
fn an_address_of_this_machine_is_recognized() {
    assert!(is_of_this_host("127.0.0.1".parse().unwrap()));
    assert!(!is_of_this_host("192.0.2.1".parse().unwrap()));
}

#[test]
fn a_name_resolves_only_to_its_public_addresses() {
    let both = addresses(&["10.0.0.1", "1.1.1.1", "::1"]);
    assert_eq!(resolved(&both, &[]), Ok(addresses(&["1.1.1.1"])));
    let refused = resolved(&addresses(&PRIVATE), &[]);
    assert_eq!(refused, Err("registry.example has no public address".into()));
    // A proxy may be in a private network.
    assert_eq!(resolved(&both, &["registry.example"]), Ok(both));
}

#[test]
fn a_private_host_is_allowed_only_if_it_is_configured() {
    let egress = public(&["127.0.0.1:5000", "10.0.0.1", "docker.io"]);
    for url in ["http://127.0.0.1:5000/v2/", "https://10.0.0.1/", "https://10.0.0.1:443/", "https://index.docker.io/"] {
        assert_eq!(route(&egress, url), Some(EgressRoute::Unrestricted), "{url}");
    }
    for url in ["https://1.1.1.1/", "https://a.example:5000/", "https://[2606:4700::1111]/"] {
        assert_eq!(route(&egress, url), Some(EgressRoute::PublicOnly), "{url}");
    }
    for url in [
        "http://127.0.0.1:5001/",
        "http://127.0.0.1/",
        "http://2130706433:5001/",
        "http://0x7f.1/",
        "https://10.0.0.1:5000/",
        "http://localhost:5000/",
        "http://LOCALHOST./",
        "http://a.localhost/",
        "http://[::1]:5000/",
        "http://[::ffff:127.0.0.1]/",
        "http://proxy.example:3128/",
    ] {
        assert_eq!(route(&egress, url), None, "{url}");
        assert_eq!(route(&EgressPolicy::Unrestricted, url), Some(EgressRoute::Unrestricted), "{url}");
    }
}

#[test]
fn a_proxy_is_recognized_with_and_without_scheme() {
    assert_eq!(host("http://user:word@Proxy.example:3128").as_deref(), Some("proxy.example"));
    assert_eq!(host("proxy.example:3128").as_deref(), Some("proxy.example"));
    assert_eq!(host(""), None);
}
