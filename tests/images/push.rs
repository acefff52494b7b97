//! Pushed images.

use carrel_tests::{
    CertificateAuthority, DockerRegistry, Fault, Proxy, RegistryAccess, RegistryOptions, TokenServer, skopeo,
};

use super::PullerHome;
use super::fixtures::ImageFixture;

//= promises.images.saved-sandbox-pushed-pulled
#[test]
fn a_pushed_image_is_byte_for_byte_the_pulled_one() {
    let layout = ImageFixture::with_every_kind_of_file(9_000_000);
    let registry = DockerRegistry::open();
    registry.push(layout.path(), layout.tag(), "from:1");
    let home = PullerHome::new();
    let pulled = home.pull(&registry.name("from:1"));
    let other = DockerRegistry::open();
    let sent = home.command(&["push", &pulled.digest, &other.name("to/it:2"), "{}"]).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let raw = |name: &str| skopeo(&["inspect", "--raw", "--tls-verify=false", &format!("docker://{name}")]);
    assert_eq!(raw(&other.name("to/it:2")), raw(&registry.name("from:1")));
    // Another tool reads it and checks every digest.
    let target = home.path().join("copied");
    let source = format!("docker://{}", other.name("to/it:2"));
    skopeo(&["copy", "--src-tls-verify=false", &source, &format!("oci:{}:it", target.display())]);
    assert_eq!(PullerHome::new().pull(&other.name("to/it:2")).digest, pulled.digest);
}

#[test]
fn existing_blobs_are_not_pushed_again() {
    let layout = ImageFixture::with_every_kind_of_file(100_000);
    let registry = DockerRegistry::open();
    registry.push(layout.path(), layout.tag(), "it:1");
    let home = PullerHome::new();
    let pulled = home.pull(&registry.name("it:1"));
    let proxy = Proxy::start(&registry.address, |_| Fault::None);
    let sent = home.command(&["push", &pulled.digest, &proxy.name("it:2"), "{}"]).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let requests = proxy.requests();
    assert!(
        requests.iter().all(|request| !request.starts_with("POST ") && !request.starts_with("PATCH ")),
        "{requests:?}"
    );
    assert_eq!(requests.iter().filter(|request| request.starts_with("PUT ")).count(), 1, "{requests:?}");
}

#[test]
fn a_push_to_a_registry_with_tokens_and_tls_succeeds() {
    let layout = ImageFixture::with_every_kind_of_file(1000);
    let (authority, tokens) = (CertificateAuthority::new(), TokenServer::start());
    let from = DockerRegistry::open();
    from.push(layout.path(), layout.tag(), "it:1");
    let to = DockerRegistry::start(RegistryOptions { tls: Some(&authority), access: RegistryAccess::Token(&tokens) });
    let home = PullerHome::new();
    let pulled = home.pull(&from.name("it:1"));
    let settings = serde_json::json!({&to.address: {"ca": authority.file()}}).to_string();
    let push = |logins: &[&str]| {
        let arguments = ["push", &pulled.digest, &to.name("it:1"), &settings];
        home.command(&arguments).args(logins).output().unwrap()
    };
    assert!(!push(&[]).status.success(), "a push without a login is refused");
    let sent = push(&[home.logins(&to.address).to_str().unwrap()]);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let logins = home.logins(&to.address);
    assert_eq!(PullerHome::new().try_pull(&to.name("it:1"), &settings, Some(&logins)).unwrap().digest, pulled.digest);
}
