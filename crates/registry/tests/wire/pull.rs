//! Pulls, and how they handle faults.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::server::{ReceivedRequest, RegistryServer, ScriptedReply, TestImage, registry_error};
use carrel_layers::{Digest, ImageSource, Platform, SourceError, media};
use carrel_registry::{RegistriesConfig, Registry, RegistryConfig, RegistryCredentials, RegistryMirror};

fn all(registry: &Registry, image: &TestImage, from: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut reader = ImageSource::blob(registry, &image.descriptor(), from).map_err(std::io::Error::other)?;
    reader.read_to_end(&mut content).map(|_| content)
}

fn manifest(registry: &Registry) -> Result<Vec<u8>, SourceError> {
    ImageSource::manifest(registry, &Platform::host()).map(|manifest| manifest.bytes)
}

#[test]
fn an_image_arrives_byte_for_byte() {
    let image = TestImage::new(300_000);
    let (bytes, layer) = (image.manifest.clone(), image.layer.clone());
    let server = RegistryServer::start(move |request| image.answer(request));
    let image = TestImage::new(300_000);
    let registry = server.registry();
    assert_eq!(manifest(&registry).unwrap(), bytes);
    assert_eq!(all(&registry, &image, 0).unwrap(), layer);
    assert_eq!(all(&registry, &image, 299_000).unwrap(), layer[299_000..]);
    assert_eq!(all(&registry, &image, 300_000).unwrap(), b"");
}

#[test]
fn an_index_resolves_to_the_manifest_of_this_platform() {
    let image = TestImage::new(10);
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
    let server = RegistryServer::start(move |request| match request.path.as_str() {
        "/v2/it/manifests/1" => ScriptedReply::manifest(media::INDEX, index.as_bytes()),
        _ => image.answer(request),
    });
    assert_eq!(manifest(&server.registry()).unwrap(), bytes);
}

//= promises.images.download-breaks
#[test]
fn a_broken_download_resumes_where_it_stopped() {
    let image = TestImage::new(1_000_000);
    let served = TestImage::new(1_000_000);
    let path = image.layer_path();
    let server = RegistryServer::start(move |request| match served.answer(request) {
        part if request.path == path => ScriptedReply { cut: Some(part.body.len().min(300_000)), ..part },
        other => other,
    });
    assert_eq!(all(&server.registry(), &image, 0).unwrap(), image.layer);
    let ranges: Vec<_> = server.requests().iter().filter_map(ReceivedRequest::from).collect();
    assert_eq!(ranges, [300_000, 600_000, 900_000], "the first request is for all of it");
}

#[test]
fn a_registry_without_range_requests_is_read_from_the_beginning() {
    let image = TestImage::new(1_000_000);
    let (layer, path) = (image.layer.clone(), image.layer_path());
    let times = AtomicUsize::new(0);
    let server = RegistryServer::start(move |request| match request.path == path {
        true if times.fetch_add(1, Ordering::SeqCst) == 0 => {
            ScriptedReply { cut: Some(500_000), ..ScriptedReply::of(&layer) }
        }
        true => ScriptedReply::of(&layer),
        false => ScriptedReply::of(b"{}"),
    });
    assert_eq!(all(&server.registry(), &image, 0).unwrap(), image.layer);
}

#[test]
fn an_oversized_blob_is_rejected_before_its_end() {
    let image = TestImage::new(100_000);
    let layer = vec![b'x'; 10_000_000];
    let path = image.layer_path();
    let server = RegistryServer::start(move |request| {
        if request.path == path {
            ScriptedReply { status: 206, ..ScriptedReply::of(&layer) }
        } else {
            ScriptedReply::of(b"{}")
        }
    });
    let error = all(&server.registry(), &image, 0).unwrap_err().to_string();
    assert!(error.contains("more than the expected 100000 bytes"), "{error}");
}

#[test]
fn an_endless_manifest_is_rejected() {
    let server = RegistryServer::start(|request| match request.path.as_str() {
        "/v2/" => ScriptedReply::of(b"{}"),
        _ => ScriptedReply::manifest(media::MANIFEST, &vec![b' '; 5 << 20]),
    });
    let error = manifest(&server.registry()).unwrap_err().to_string();
    assert!(error.contains("more than 4194304 bytes"), "{error}");
}

#[test]
fn an_endless_error_response_is_not_read_to_its_end() {
    let image = TestImage::new(10);
    let long = |length: usize| {
        let path = image.layer_path();
        RegistryServer::start(move |request| match request.path == path {
            true => ScriptedReply { body: vec![b'x'; length], ..ScriptedReply::status(400) },
            false => ScriptedReply::of(b"{}"),
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
fn a_manifest_states_its_media_type_if_the_response_does_not() {
    let pull = |registry_error: Option<&'static str>, manifest: Vec<u8>| {
        let server = RegistryServer::start(move |_| match registry_error {
            Some(registry_error) => ScriptedReply::manifest(registry_error, &manifest),
            None => ScriptedReply::of(&manifest),
        });
        manifest_of(&server)
    };
    let bytes = TestImage::new(10).manifest;
    for registry_error in [None, Some("application/json"), Some("application/json; charset=utf-8"), Some("text/plain")]
    {
        assert_eq!(pull(registry_error, bytes.clone()).unwrap(), bytes, "{registry_error:?}");
    }
    assert!(pull(Some("text/html"), bytes.clone()).is_err());
    let silent = String::from_utf8(bytes).unwrap().replace(&format!("\"mediaType\":\"{}\",", media::MANIFEST), "");
    assert!(pull(Some("application/json"), silent.clone().into_bytes()).is_err());
    assert_eq!(pull(Some(media::MANIFEST), silent.clone().into_bytes()).unwrap(), silent.into_bytes());
}

fn manifest_of(server: &RegistryServer) -> Result<Vec<u8>, SourceError> {
    manifest(&server.registry())
}

#[test]
fn a_digest_selects_that_manifest_or_fails() {
    let bytes = TestImage::new(10).manifest;
    let served = bytes.clone();
    let server = RegistryServer::start(move |_| ScriptedReply::manifest(media::MANIFEST, &served));
    let pull = |digest: Digest| {
        let name = format!("{}/it@{digest}", server.address).parse().unwrap();
        manifest(&Registry::new(name, &super::server::config_of(&[&server]), &RegistryCredentials::none()).unwrap())
    };
    assert_eq!(pull(Digest::of(&bytes)).unwrap(), bytes);
    assert!(pull(Digest::of(b"another")).is_err());
}

//= promises.images.download-comes-slower-300
#[test]
fn a_download_below_the_minimum_throughput_is_aborted() {
    let image = TestImage::new(1_000_000);
    let served = TestImage::new(1_000_000);
    let server = RegistryServer::start(move |request| served.answer(request));
    // No chunk has that many bytes, so every period misses the minimum, however short.
    let hurried = server.registry().min_throughput(1_000_001, std::time::Duration::ZERO);
    let error = all(&hurried, &image, 0).unwrap_err().to_string();
    assert!(error.contains("is too slow sending"), "{error}");
    assert_eq!(all(&server.registry().min_throughput(1, std::time::Duration::ZERO), &image, 0).unwrap(), image.layer);
    assert_eq!(all(&server.registry(), &image, 0).unwrap(), image.layer);
}

#[test]
fn an_unavailable_registry_is_retried() {
    let image = TestImage::new(10);
    let bytes = image.manifest.clone();
    let times = AtomicUsize::new(0);
    let server = RegistryServer::start(move |request| {
        let answer = image.answer(request);
        match (request.path.as_str(), times.load(Ordering::SeqCst)) {
            ("/v2/", _) => return answer,
            (_, 0) => times.fetch_add(1, Ordering::SeqCst),
            (_, 1) => {
                times.fetch_add(1, Ordering::SeqCst);
                return ScriptedReply::status(429).with("retry-after", "1");
            }
            _ => return answer,
        };
        ScriptedReply::status(503)
    });
    assert_eq!(manifest(&server.registry()).unwrap(), bytes);
    assert_eq!(server.received(), ["GET /v2/it/manifests/1"; 3]);
}

#[test]
fn not_found_is_not_retried() {
    let server = RegistryServer::start(|request| {
        if request.path == "/v2/" { ScriptedReply::of(b"{}") } else { ScriptedReply::status(404) }
    });
    let error = registry_error(manifest(&server.registry()).unwrap_err());
    assert_eq!(error.to_string(), format!("{0}/it:1 not found in {0}", server.address));
    assert_eq!(error.hint().as_deref(), Some("check the image's name and tag"));
    assert_eq!(server.received(), ["GET /v2/it/manifests/1"]);
}

#[test]
fn an_unreachable_registry_is_named_in_the_error() {
    let address = RegistryServer::start(|_| ScriptedReply::status(404)).address;
    let settings = RegistriesConfig::default();
    let name = format!("{address}/it:1").parse().unwrap();
    let error =
        registry_error(manifest(&Registry::new(name, &settings, &RegistryCredentials::none()).unwrap()).unwrap_err());
    assert!(error.to_string().starts_with(&format!("cannot reach {address}: ")), "{error}");
}

#[test]
fn a_mirror_is_tried_first_and_the_registry_if_it_has_nothing() {
    let image = TestImage::new(100_000);
    let (bytes, layer, wanted) = (image.manifest.clone(), image.layer.clone(), TestImage::new(100_000));
    let image = std::sync::Arc::new(image);
    let honest = |image: &std::sync::Arc<TestImage>| {
        let image = std::sync::Arc::clone(image);
        RegistryServer::start(move |request| {
            let path = request.path.replace("/v2/mirrored/", "/v2/");
            image.answer(&ReceivedRequest { path, ..request.clone() })
        })
    };
    let (own, mirror) = (honest(&image), honest(&image));
    let empty = RegistryServer::start(|_| ScriptedReply::status(404));
    let gone = RegistryServer::start(|_| ScriptedReply::status(404)).address;
    let pull = |mirrors: &[String]| {
        let mirrors = mirrors.iter().map(|mirror| RegistryMirror::try_from(mirror.clone()).unwrap()).collect();
        let registry_error = RegistryConfig { mirrors, ..own.settings() };
        let settings = RegistriesConfig::new([(own.address.to_string(), registry_error)]);
        let name = format!("{}/it:1", own.address).parse().unwrap();
        let registry = Registry::new(name, &settings, &RegistryCredentials::none()).unwrap();
        assert_eq!(manifest(&registry).unwrap(), bytes);
        assert_eq!(all(&registry, &wanted, 0).unwrap(), layer);
    };
    pull(&[format!("http://{gone}"), format!("http://{}/mirrored", mirror.address)]);
    assert_eq!(own.received(), Vec::<String>::new());
    assert_eq!(
        mirror.received(),
        ["GET /v2/mirrored/it/manifests/1".into(), image.layer_path().replace("/v2/", "GET /v2/mirrored/")]
    );
    pull(&[format!("http://{}", empty.address), format!("http://{gone}")]);
    assert_eq!(own.received(), ["GET /v2/it/manifests/1".into(), format!("GET {}", image.layer_path())]);
}

#[test]
fn when_all_fail_the_error_has_the_registry_first_and_its_mirrors_last() {
    let own = RegistryServer::start(|_| ScriptedReply::status(404));
    let mirror = RegistryServer::start(|_| ScriptedReply::status(403));
    let mirrors = vec![RegistryMirror::try_from(format!("http://{}", mirror.address)).unwrap()];
    let settings = RegistriesConfig::new([(own.address.to_string(), RegistryConfig { mirrors, ..own.settings() })]);
    let name = format!("{}/it:1", own.address).parse().unwrap();
    let error =
        registry_error(manifest(&Registry::new(name, &settings, &RegistryCredentials::none()).unwrap()).unwrap_err());
    let (own, mirror) = (own.address, mirror.address);
    let expected = format!(
        "{own}/it:1 not found in {own}; its mirrors failed too: {mirror} denied access to {mirror}/it:1: status 403"
    );
    assert_eq!(error.to_string(), expected);
}
