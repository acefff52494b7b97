//! Images for somebody who may have what everybody may: whom a registry cannot have us ask in their name.

use std::io::Read;

use super::server::{Image, Reply, Request, Server, named, said};
use carrel_layers::{Platform, Source, Target};
use carrel_registry::{Credentials, Registry, RegistryError, Settings};

fn pull(registry: &Registry, image: &Image) -> Result<Vec<u8>, RegistryError> {
    Source::manifest(registry, &Platform::host()).map_err(said)?;
    let mut content = Vec::new();
    Source::blob(registry, &image.descriptor(), 0).map_err(said)?.read_to_end(&mut content).unwrap();
    Ok(content)
}

fn public(server: &Server, settings: &Settings) -> Registry {
    Registry::public_only(server.name(), settings).unwrap()
}

fn anybody(server: &Server, settings: &Settings) -> Registry {
    Registry::new(server.name(), settings, &Credentials::none()).unwrap()
}

fn honest() -> Server {
    Server::start(|request| Image::new(1000).answer(request))
}

fn assert_private(refused: &RegistryError) {
    assert!(matches!(refused, RegistryError::Private { .. }), "{refused}");
    assert!(refused.to_string().contains("is not a public address"), "{refused}");
}

//= promises.images.registry-another-user-machine
#[test]
fn a_registry_on_this_host_is_asked_only_if_it_is_named() {
    let (image, server) = (Image::new(1000), honest());
    assert_private(&pull(&public(&server, &Settings::default()), &image).unwrap_err());
    let other = honest();
    assert_private(&pull(&public(&server, &named(&[&other])), &image).unwrap_err());
    for name in ["localhost", "LOCALHOST", "a.localhost", "127.1.2.3", "[::1]"] {
        let name = format!("{name}:{}/it:1", server.address.port()).parse();
        let Ok(name) = name else { continue };
        let registry = Registry::public_only(name, &Settings::default()).unwrap();
        assert_private(&pull(&registry, &image).unwrap_err());
    }
    assert!(server.requests().is_empty(), "nobody has asked");
    assert_eq!(pull(&public(&server, &named(&[&server])), &image).unwrap(), image.layer);
    assert_eq!(pull(&anybody(&server, &Settings::default()), &image).unwrap(), image.layer);
}

//= promises.images.registry-another-user-machine
#[test]
fn nobody_is_sent_to_this_host_for_content() {
    let (image, inner) = (Image::new(1000), honest());
    let path = image.layer_path();
    let target = format!("http://{}{path}", inner.address);
    let server = Server::start(move |request| match request.path == path {
        true => Reply::status(307).with("location", target.clone()),
        false => Image::new(1000).answer(request),
    });
    assert_private(&pull(&public(&server, &named(&[&server])), &image).unwrap_err());
    assert!(inner.requests().is_empty(), "nobody has asked");
    assert_eq!(pull(&public(&server, &named(&[&server, &inner])), &image).unwrap(), image.layer);
    assert_eq!(pull(&anybody(&server, &named(&[&server])), &image).unwrap(), image.layer);
    assert_eq!(inner.requests().len(), 2);
}

//= promises.images.registry-another-user-machine
#[test]
fn nobody_is_sent_to_this_host_for_a_token() {
    let image = Image::new(1000);
    let inner = Server::start(|_| Reply::of(br#"{"token":"given"}"#));
    let realm = format!("Bearer realm=\"http://{}/token\"", inner.address);
    let server = Server::start(move |request: &Request| match request.header("authorization") {
        "Bearer given" => Image::new(1000).answer(request),
        _ => Reply::status(401).with("www-authenticate", realm.clone()),
    });
    assert_private(&pull(&public(&server, &named(&[&server])), &image).unwrap_err());
    assert!(inner.requests().is_empty(), "nobody has asked");
    assert_eq!(pull(&anybody(&server, &named(&[&server])), &image).unwrap(), image.layer);
    assert_eq!(inner.requests().len(), 1);
}

#[test]
fn what_somebody_inside_says_stays_inside() {
    let image = Image::new(1000);
    for status in [400, 401, 403] {
        let server = Server::start(move |_| Reply { body: b"inner words".to_vec(), ..Reply::status(status) });
        let quiet = pull(&public(&server, &named(&[&server])), &image).unwrap_err().to_string();
        assert!(!quiet.contains("inner words"), "{quiet}");
        let told = pull(&anybody(&server, &named(&[&server])), &image).unwrap_err().to_string();
        assert!(told.contains("inner words"), "{told}");
    }
}

#[test]
fn nothing_is_sent_for_a_stranger() {
    let server = Server::start(|_| Reply::status(201).with("location", "/v2/it/manifests/1"));
    let media_type = carrel_layers::media::MANIFEST;
    assert!(Target::manifest(&public(&server, &named(&[&server])), media_type, b"{}").is_err());
    assert!(server.requests().is_empty());
    Target::manifest(&anybody(&server, &named(&[&server])), media_type, b"{}").unwrap();
}
