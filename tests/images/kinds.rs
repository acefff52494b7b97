//! Every kind of registry: without and with TLS, a password, tokens.

use carrel_tests::{Access, Authority, DockerRegistry, Kind, Tokens, skopeo};

use super::Home;
use super::made::Layout;

/// Pushes an image there by another tool, and pulls it; how, the settings and the login say.
fn there_and_back(kind: Kind<'_>) {
    let layout = Layout::of_everything(1000);
    let registry = DockerRegistry::start(kind);
    let home = Home::new();
    let name = registry.name("some/it:1");
    let login = format!("--dest-creds={}:{}", carrel_tests::USER, carrel_tests::PASSWORD);
    let mut copy = vec!["copy", "--dest-tls-verify=false"];
    if !matches!(kind.access, Access::Anonymous) {
        copy.push(&login);
    }
    let (source, target) = (format!("oci:{}:{}", layout.path().display(), layout.tag()), format!("docker://{name}"));
    skopeo(&[&copy[..], &[&source, &target]].concat());

    let ca = kind.tls.map(|authority| authority.file());
    let settings = serde_json::json!({&registry.address: {"ca": ca, "insecure": ca.is_none()}}).to_string();
    let logins = home.logins(&registry.address);
    let pulled = home.try_pull(&name, &settings, Some(&logins)).unwrap();
    assert!(!pulled.layers.is_empty());
    home.assert_nothing_is_left_over();

    // Without what this one wants, nothing comes.
    let other = Home::new();
    if !matches!(kind.access, Access::Anonymous) {
        let refused = other.try_pull(&name, &settings, None).unwrap_err();
        assert!(refused.contains(&format!("{} denied access to {name}", registry.address)), "{refused}");
    }
    if kind.tls.is_none() && matches!(kind.access, Access::Password) {
        let refused = other.try_pull(&name, "{}", Some(&logins)).unwrap_err();
        assert!(refused.contains("requires a login") && refused.contains("does not use TLS"), "{refused}");
    }
    if kind.tls.is_some() {
        let refused = other.try_pull(&name, "{}", Some(&logins)).unwrap_err();
        assert!(refused.contains("TLS handshake with"), "{refused}");
    }
    assert_eq!(other.kept("images"), Vec::<String>::new());
}

//= promises.images.registries
#[test]
fn an_open_registry() {
    there_and_back(Kind::default());
}

//= promises.images.registries
#[test]
fn a_registry_with_tls() {
    let authority = Authority::new();
    there_and_back(Kind { tls: Some(&authority), ..Kind::default() });
}

//= promises.images.registries
#[test]
fn a_registry_with_a_password() {
    there_and_back(Kind { access: Access::Password, ..Kind::default() });
}

//= promises.images.registries
#[test]
fn a_registry_with_tokens_and_tls() {
    let (authority, tokens) = (Authority::new(), Tokens::start());
    there_and_back(Kind { tls: Some(&authority), access: Access::Token(&tokens) });
    assert!(tokens.given() >= 2, "both tools were given one");
}

#[test]
fn a_registry_without_the_image() {
    let registry = DockerRegistry::open();
    let home = Home::new();
    let refused = home.try_pull(&registry.name("nothing:1"), "{}", None).unwrap_err();
    assert!(refused.contains(&format!("{0}/nothing:1 not found in {0}", registry.address)), "{refused}");
    assert_eq!(home.kept("images"), Vec::<String>::new());
    home.assert_nothing_is_left_over();
}
