//! Pulls for callers without privileges: a registry cannot direct them to private addresses.

use std::io::Read;

use super::server::{ReceivedRequest, RegistryServer, ScriptedReply, TestImage, config_of, registry_error};
use carrel_layers::{ImageSource, ImageTarget, Platform};
use carrel_registry::{RegistriesConfig, Registry, RegistryCredentials, RegistryError};

fn pull(registry: &Registry, image: &TestImage) -> Result<Vec<u8>, RegistryError> {
    ImageSource::manifest(registry, &Platform::host()).map_err(registry_error)?;
    let mut content = Vec::new();
    ImageSource::blob(registry, &image.descriptor(), 0).map_err(registry_error)?.read_to_end(&mut content).unwrap();
    Ok(content)
}

fn public(server: &RegistryServer, settings: &RegistriesConfig) -> Registry {
    Registry::public_only(server.name(), settings).unwrap()
}

fn unrestricted(server: &RegistryServer, settings: &RegistriesConfig) -> Registry {
    Registry::new(server.name(), settings, &RegistryCredentials::none()).unwrap()
}

fn correct_server() -> RegistryServer {
    RegistryServer::start(|request| TestImage::new(1000).answer(request))
}

fn assert_private(refused: &RegistryError) {
    assert!(matches!(refused, RegistryError::NotPublic { .. }), "{refused}");
    assert!(refused.to_string().contains("is not a public address"), "{refused}");
}

//= promises.images.registry-another-user-machine
#[test]
fn a_registry_on_this_host_is_contacted_only_if_it_is_configured() {
    let (image, server) = (TestImage::new(1000), correct_server());
    assert_private(&pull(&public(&server, &RegistriesConfig::default()), &image).unwrap_err());
    let other = correct_server();
    assert_private(&pull(&public(&server, &config_of(&[&other])), &image).unwrap_err());
    for name in ["localhost", "LOCALHOST", "a.localhost", "127.1.2.3", "[::1]"] {
        let name = format!("{name}:{}/it:1", server.address.port()).parse();
        let Ok(name) = name else { continue };
        let registry = Registry::public_only(name, &RegistriesConfig::default()).unwrap();
        assert_private(&pull(&registry, &image).unwrap_err());
    }
    assert!(server.requests().is_empty(), "no request was received");
    assert_eq!(pull(&public(&server, &config_of(&[&server])), &image).unwrap(), image.layer);
    assert_eq!(pull(&unrestricted(&server, &RegistriesConfig::default()), &image).unwrap(), image.layer);
}

//= promises.images.registry-another-user-machine
#[test]
fn a_redirect_to_this_host_is_not_followed() {
    let (image, inner) = (TestImage::new(1000), correct_server());
    let path = image.layer_path();
    let target = format!("http://{}{path}", inner.address);
    let server = RegistryServer::start(move |request| match request.path == path {
        true => ScriptedReply::status(307).with("location", target.clone()),
        false => TestImage::new(1000).answer(request),
    });
    assert_private(&pull(&public(&server, &config_of(&[&server])), &image).unwrap_err());
    assert!(inner.requests().is_empty(), "no request was received");
    assert_eq!(pull(&public(&server, &config_of(&[&server, &inner])), &image).unwrap(), image.layer);
    assert_eq!(pull(&unrestricted(&server, &config_of(&[&server])), &image).unwrap(), image.layer);
    assert_eq!(inner.requests().len(), 2);
}

//= promises.images.registry-another-user-machine
#[test]
fn a_token_endpoint_on_this_host_is_not_contacted() {
    let image = TestImage::new(1000);
    let inner = RegistryServer::start(|_| ScriptedReply::of(br#"{"token":"given"}"#));
    let realm = format!("Bearer realm=\"http://{}/token\"", inner.address);
    let server = RegistryServer::start(move |request: &ReceivedRequest| match request.header("authorization") {
        "Bearer given" => TestImage::new(1000).answer(request),
        _ => ScriptedReply::status(401).with("www-authenticate", realm.clone()),
    });
    assert_private(&pull(&public(&server, &config_of(&[&server])), &image).unwrap_err());
    assert!(inner.requests().is_empty(), "no request was received");
    assert_eq!(pull(&unrestricted(&server, &config_of(&[&server])), &image).unwrap(), image.layer);
    assert_eq!(inner.requests().len(), 1);
}

#[test]
fn messages_of_private_hosts_are_hidden() {
    let image = TestImage::new(1000);
    for status in [400, 401, 403] {
        let server = RegistryServer::start(move |_| ScriptedReply {
            body: b"inner words".to_vec(),
            ..ScriptedReply::status(status)
        });
        let quiet = pull(&public(&server, &config_of(&[&server])), &image).unwrap_err().to_string();
        assert!(!quiet.contains("inner words"), "{quiet}");
        let message = pull(&unrestricted(&server, &config_of(&[&server])), &image).unwrap_err().to_string();
        assert!(message.contains("inner words"), "{message}");
    }
}

#[test]
fn a_public_only_registry_cannot_push() {
    let server = RegistryServer::start(|_| ScriptedReply::status(201).with("location", "/v2/it/manifests/1"));
    let media_type = carrel_layers::media::MANIFEST;
    assert!(ImageTarget::manifest(&public(&server, &config_of(&[&server])), media_type, b"{}").is_err());
    assert!(server.requests().is_empty());
    ImageTarget::manifest(&unrestricted(&server, &config_of(&[&server])), media_type, b"{}").unwrap();
}
