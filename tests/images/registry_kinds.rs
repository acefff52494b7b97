//! Registries without and with TLS, with a password, and with tokens.

use carrel_tests::{CertificateAuthority, DockerRegistry, RegistryAccess, RegistryOptions, TokenServer, skopeo};

use super::PullerHome;
use super::fixtures::ImageFixture;

/// Pushes an image with another tool, and pulls it; checks the refusals without login, TLS or settings.
fn push_and_pull(kind: RegistryOptions<'_>) {
    let layout = ImageFixture::with_every_kind_of_file(1000);
    let registry = DockerRegistry::start(kind);
    let home = PullerHome::new();
    let name = registry.name("some/it:1");
    let login = format!("--dest-creds={}:{}", carrel_tests::USER, carrel_tests::PASSWORD);
    let mut copy = vec!["copy", "--dest-tls-verify=false"];
    if !matches!(kind.access, RegistryAccess::Anonymous) {
        copy.push(&login);
    }
    let (source, target) = (format!("oci:{}:{}", layout.path().display(), layout.tag()), format!("docker://{name}"));
    skopeo(&[&copy[..], &[&source, &target]].concat());

    let ca = kind.tls.map(|authority| authority.file());
    let settings = serde_json::json!({&registry.address: {"ca": ca, "insecure": ca.is_none()}}).to_string();
    let logins = home.logins(&registry.address);
    let pulled = home.try_pull(&name, &settings, Some(&logins)).unwrap();
    assert!(!pulled.layers.is_empty());
    home.assert_no_leftovers();

    // Without what this registry requires, the pull is refused.
    let other = PullerHome::new();
    if !matches!(kind.access, RegistryAccess::Anonymous) {
        let refused = other.try_pull(&name, &settings, None).unwrap_err();
        assert!(refused.contains(&format!("{} denied access to {name}", registry.address)), "{refused}");
    }
    if kind.tls.is_none() && matches!(kind.access, RegistryAccess::Password) {
        let refused = other.try_pull(&name, "{}", Some(&logins)).unwrap_err();
        assert!(refused.contains("requires a login") && refused.contains("does not use TLS"), "{refused}");
    }
    if kind.tls.is_some() {
        let refused = other.try_pull(&name, "{}", Some(&logins)).unwrap_err();
        assert!(refused.contains("TLS handshake with"), "{refused}");
    }
    assert_eq!(other.stored("images"), Vec::<String>::new());
}

//= promises.images.registries
#[test]
fn an_image_is_pulled_from_an_open_registry() {
    push_and_pull(RegistryOptions::default());
}

//= promises.images.registries
#[test]
fn an_image_is_pulled_from_a_registry_with_tls() {
    let authority = CertificateAuthority::new();
    push_and_pull(RegistryOptions { tls: Some(&authority), ..RegistryOptions::default() });
}

//= promises.images.registries
#[test]
fn an_image_is_pulled_from_a_registry_with_a_password() {
    push_and_pull(RegistryOptions { access: RegistryAccess::Password, ..RegistryOptions::default() });
}

//= promises.images.registries
#[test]
fn an_image_is_pulled_from_a_registry_with_tokens_and_tls() {
    let (authority, tokens) = (CertificateAuthority::new(), TokenServer::start());
    push_and_pull(RegistryOptions { tls: Some(&authority), access: RegistryAccess::Token(&tokens) });
    assert!(tokens.issued() >= 2, "each tool received a token");
}

#[test]
fn a_pull_of_a_missing_image_is_refused() {
    let registry = DockerRegistry::open();
    let home = PullerHome::new();
    let refused = home.try_pull(&registry.name("nothing:1"), "{}", None).unwrap_err();
    assert!(refused.contains(&format!("{0}/nothing:1 not found in {0}", registry.address)), "{refused}");
    assert_eq!(home.stored("images"), Vec::<String>::new());
    home.assert_no_leftovers();
}
