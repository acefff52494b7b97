//! What comes from a registry, and what is done when it does not.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::server::{Image, Reply, Request, Server, said};
use carrel_layers::{Digest, Platform, Source, SourceError, media};
use carrel_registry::{Credentials, Mirror, Registry, RegistrySettings, Settings};

fn all(registry: &Registry, image: &Image, from: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut reader = Source::blob(registry, &image.descriptor(), from).map_err(std::io::Error::other)?;
    reader.read_to_end(&mut content).map(|_| content)
}

fn manifest(registry: &Registry) -> Result<Vec<u8>, SourceError> {
    Source::manifest(registry, &Platform::host()).map(|manifest| manifest.bytes)
}

#[test]
fn an_image_comes_byte_for_byte() {
    let image = Image::new(300_000);
    let (bytes, layer) = (image.manifest.clone(), image.layer.clone());
    let server = Server::start(move |request| image.answer(request));
    let image = Image::new(300_000);
    let registry = server.registry();
    assert_eq!(manifest(&registry).unwrap(), bytes);
    assert_eq!(all(&registry, &image, 0).unwrap(), layer);
    assert_eq!(all(&registry, &image, 299_000).unwrap(), layer[299_000..]);
    assert_eq!(all(&registry, &image, 300_000).unwrap(), b"");
}

#[test]
fn from_an_index_comes_what_is_for_this_machine() {
    let image = Image::new(10);
    let here = Platform::host();
    let entry = |architecture: &str, digest: Digest, size: usize| {
        serde_json::json!({"mediaType": media::MANIFEST, "digest": digest, "size": size,
            "platform": {"os": "linux", "architecture": architecture, "variant": here.variant}})
    };
    let entries = [
        entry("z80", Digest::of(b"other"), 5),
        entry(&here.architecture, Digest::of(&image.manifest), image.manifest.len()),
    ];
    let index = serde_json::json!({"schemaVersion": 2, "mediaType": media::INDEX, "manifests": entries}).to_string();
    let bytes = image.manifest.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/v2/it/manifests/1" => Reply::manifest(media::INDEX, index.as_bytes()),
        _ => image.answer(request),
    });
    assert_eq!(manifest(&server.registry()).unwrap(), bytes);
}

//= promises.images.download-breaks
#[test]
fn what_breaks_off_goes_on_where_it_was() {
    let image = Image::new(1_000_000);
    let served = Image::new(1_000_000);
    let path = image.layer_path();
    let server = Server::start(move |request| match served.answer(request) {
        part if request.path == path => Reply { cut: Some(part.body.len().min(300_000)), ..part },
        other => other,
    });
    assert_eq!(all(&server.registry(), &image, 0).unwrap(), image.layer);
    let ranges: Vec<_> = server.requests().iter().filter_map(Request::from).collect();
    assert_eq!(ranges, [0, 300_000, 600_000, 900_000]);
}

#[test]
fn a_registry_that_knows_no_parts_is_read_from_the_beginning_again() {
    let image = Image::new(1_000_000);
    let (layer, path) = (image.layer.clone(), image.layer_path());
    let times = AtomicUsize::new(0);
    let server = Server::start(move |request| match request.path == path {
        true if times.fetch_add(1, Ordering::SeqCst) == 0 => Reply { cut: Some(500_000), ..Reply::of(&layer) },
        true => Reply::of(&layer),
        false => Reply::of(b"{}"),
    });
    assert_eq!(all(&server.registry(), &image, 0).unwrap(), image.layer);
}

#[test]
fn what_is_longer_than_it_should_be_is_refused_and_not_read_to_its_end() {
    let image = Image::new(100_000);
    let layer = vec![b'x'; 10_000_000];
    let path = image.layer_path();
    let server =
        Server::start(
            move |request| {
                if request.path == path { Reply { status: 206, ..Reply::of(&layer) } } else { Reply::of(b"{}") }
            },
        );
    let error = all(&server.registry(), &image, 0).unwrap_err().to_string();
    assert!(error.contains("more than the 100000 bytes that it should have"), "{error}");
}

#[test]
fn a_manifest_without_an_end_is_refused() {
    let server = Server::start(|request| match request.path.as_str() {
        "/v2/" => Reply::of(b"{}"),
        _ => Reply::manifest(media::MANIFEST, &vec![b' '; 5 << 20]),
    });
    let error = manifest(&server.registry()).unwrap_err().to_string();
    assert!(error.contains("with more than 4194304 bytes"), "{error}");
}

#[test]
fn what_a_registry_says_of_an_error_is_not_read_for_ever() {
    let image = Image::new(10);
    let long = |length: usize| {
        let path = image.layer_path();
        Server::start(move |request| match request.path == path {
            true => Reply { body: vec![b'x'; length], ..Reply::status(400) },
            false => Reply::of(b"{}"),
        })
    };
    for (length, unread) in [(64 << 20, 1), (10, 0)] {
        let server = long(length);
        let error = all(&server.registry(), &image, 0).unwrap_err().to_string();
        assert!(error.contains("status 400"), "{error}");
        assert_eq!(server.unread(), unread, "{length}");
    }
}

#[test]
fn a_manifest_says_what_it_is_if_nobody_else_does() {
    let pull = |said: Option<&'static str>, manifest: Vec<u8>| {
        let server = Server::start(move |_| match said {
            Some(said) => Reply::manifest(said, &manifest),
            None => Reply::of(&manifest),
        });
        manifest_of(&server)
    };
    let bytes = Image::new(10).manifest;
    for said in [None, Some("application/json"), Some("application/json; charset=utf-8"), Some("text/plain")] {
        assert_eq!(pull(said, bytes.clone()).unwrap(), bytes, "{said:?}");
    }
    assert!(pull(Some("text/html"), bytes.clone()).is_err());
    let silent = String::from_utf8(bytes).unwrap().replace(&format!("\"mediaType\":\"{}\",", media::MANIFEST), "");
    assert!(pull(Some("application/json"), silent.clone().into_bytes()).is_err());
    assert_eq!(pull(Some(media::MANIFEST), silent.clone().into_bytes()).unwrap(), silent.into_bytes());
}

fn manifest_of(server: &Server) -> Result<Vec<u8>, SourceError> {
    manifest(&server.registry())
}

#[test]
fn what_is_asked_for_by_its_digest_is_that_or_nothing() {
    let bytes = Image::new(10).manifest;
    let served = bytes.clone();
    let server = Server::start(move |_| Reply::manifest(media::MANIFEST, &served));
    let pull = |digest: Digest| {
        let name = format!("{}/it@{digest}", server.address).parse().unwrap();
        manifest(&Registry::new(name, &super::server::named(&[&server]), &Credentials::none()).unwrap())
    };
    assert_eq!(pull(Digest::of(&bytes)).unwrap(), bytes);
    assert!(pull(Digest::of(b"another")).is_err());
}

//= promises.images.download-comes-slower-300
#[test]
fn what_comes_too_slowly_is_given_up() {
    let image = Image::new(1_000_000);
    let served = Image::new(1_000_000);
    let server = Server::start(move |request| served.answer(request));
    // Less than all of it comes at a time, so no time is too short to see that.
    let hurried = server.registry().least_rate(1_000_001, std::time::Duration::ZERO);
    let error = all(&hurried, &image, 0).unwrap_err().to_string();
    assert!(error.contains("is too slow with"), "{error}");
    assert_eq!(all(&server.registry().least_rate(1, std::time::Duration::ZERO), &image, 0).unwrap(), image.layer);
    assert_eq!(all(&server.registry(), &image, 0).unwrap(), image.layer);
}

#[test]
fn a_registry_that_cannot_now_is_asked_again() {
    let image = Image::new(10);
    let bytes = image.manifest.clone();
    let times = AtomicUsize::new(0);
    let server = Server::start(move |request| {
        let answer = image.answer(request);
        match (request.path.as_str(), times.load(Ordering::SeqCst)) {
            ("/v2/", _) => return answer,
            (_, 0) => times.fetch_add(1, Ordering::SeqCst),
            (_, 1) => {
                times.fetch_add(1, Ordering::SeqCst);
                return Reply::status(429).with("retry-after", "1");
            }
            _ => return answer,
        };
        Reply::status(503)
    });
    assert_eq!(manifest(&server.registry()).unwrap(), bytes);
    assert_eq!(server.asked(), ["GET /v2/it/manifests/1"; 3]);
}

#[test]
fn what_is_not_there_is_asked_for_once() {
    let server = Server::start(|request| if request.path == "/v2/" { Reply::of(b"{}") } else { Reply::status(404) });
    let error = said(manifest(&server.registry()).unwrap_err());
    assert_eq!(error.to_string(), format!("{0} has no {0}/it:1", server.address));
    assert_eq!(error.hint().as_deref(), Some("check the name and the tag"));
    assert_eq!(server.asked(), ["GET /v2/it/manifests/1"]);
}

#[test]
fn where_nobody_answers_is_said_with_its_name() {
    let address = Server::start(|_| Reply::status(404)).address;
    let settings = Settings::default();
    let name = format!("{address}/it:1").parse().unwrap();
    let error = said(manifest(&Registry::new(name, &settings, &Credentials::none()).unwrap()).unwrap_err());
    assert!(error.to_string().starts_with(&format!("cannot reach {address}: ")), "{error}");
}

#[test]
fn a_mirror_is_asked_first_and_the_registry_if_it_has_nothing() {
    let image = Image::new(100_000);
    let (bytes, layer, wanted) = (image.manifest.clone(), image.layer.clone(), Image::new(100_000));
    let image = std::sync::Arc::new(image);
    let honest = |image: &std::sync::Arc<Image>| {
        let image = std::sync::Arc::clone(image);
        Server::start(move |request| {
            let path = request.path.replace("/v2/mirrored/", "/v2/");
            image.answer(&Request { path, ..request.clone() })
        })
    };
    let (own, mirror) = (honest(&image), honest(&image));
    let empty = Server::start(|_| Reply::status(404));
    let gone = Server::start(|_| Reply::status(404)).address;
    let pull = |mirrors: &[String]| {
        let mirrors = mirrors.iter().map(|mirror| Mirror::try_from(mirror.clone()).unwrap()).collect();
        let said = RegistrySettings { mirrors, ..own.settings() };
        let settings = Settings::new([(own.address.to_string(), said)]);
        let name = format!("{}/it:1", own.address).parse().unwrap();
        let registry = Registry::new(name, &settings, &Credentials::none()).unwrap();
        assert_eq!(manifest(&registry).unwrap(), bytes);
        assert_eq!(all(&registry, &wanted, 0).unwrap(), layer);
    };
    pull(&[format!("http://{gone}"), format!("http://{}/mirrored", mirror.address)]);
    assert_eq!(own.asked(), Vec::<String>::new());
    assert_eq!(
        mirror.asked(),
        ["GET /v2/mirrored/it/manifests/1".into(), image.layer_path().replace("/v2/", "GET /v2/mirrored/")]
    );
    pull(&[format!("http://{}", empty.address), format!("http://{gone}")]);
    assert_eq!(own.asked(), ["GET /v2/it/manifests/1".into(), format!("GET {}", image.layer_path())]);
}

#[test]
fn when_all_fail_the_registry_has_the_first_word_and_its_mirrors_the_last() {
    let own = Server::start(|_| Reply::status(404));
    let mirror = Server::start(|_| Reply::status(403));
    let mirrors = vec![Mirror::try_from(format!("http://{}", mirror.address)).unwrap()];
    let settings = Settings::new([(own.address.to_string(), RegistrySettings { mirrors, ..own.settings() })]);
    let name = format!("{}/it:1", own.address).parse().unwrap();
    let error = said(manifest(&Registry::new(name, &settings, &Credentials::none()).unwrap()).unwrap_err());
    let (own, mirror) = (own.address, mirror.address);
    let expected =
        format!("{own} has no {own}/it:1; its mirrors had failed before: {mirror} refuses {mirror}/it:1: status 403");
    assert_eq!(error.to_string(), expected);
}
