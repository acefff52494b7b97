//! Pushes.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::server::{ReceivedRequest, RegistryServer, ScriptedReply};
use carrel_layers::{Descriptor, Digest, ImageTarget, media};

/// Accepts uploads, and has the blobs of the repository `base`.
#[derive(Default)]
struct UploadRegistry {
    uploads: Mutex<Vec<u8>>,
    blobs: Mutex<BTreeMap<String, Vec<u8>>>,
    manifests: Mutex<BTreeMap<String, (String, Vec<u8>)>>,
    based: Vec<String>,
}

impl UploadRegistry {
    fn answer(&self, request: &ReceivedRequest) -> ScriptedReply {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let digest =
            query.split('&').find_map(|pair| pair.strip_prefix("digest=")).unwrap_or_default().replace("%3A", ":");
        match (request.method.as_str(), path) {
            ("HEAD", path) => {
                let known = self.blobs.lock().unwrap().contains_key(path.rsplit('/').next().unwrap());
                ScriptedReply::status(if known { 200 } else { 404 })
            }
            ("POST", _) => {
                let mounted = self
                    .based
                    .iter()
                    .any(|digest| query.contains(&digest.replace(':', "%3A")) && query.contains("from=base"));
                ScriptedReply::status(if mounted { 201 } else { 202 }).with("location", "/v2/it/blobs/uploads/one")
            }
            ("PATCH", _) => {
                let mut uploads = self.uploads.lock().unwrap();
                assert!(request.header("content-range").starts_with(&format!("{}-", uploads.len())));
                uploads.extend_from_slice(&request.body);
                ScriptedReply::status(202).with("location", "/v2/it/blobs/uploads/one")
            }
            ("PUT", "/v2/it/blobs/uploads/one") => {
                let content = std::mem::take(&mut *self.uploads.lock().unwrap());
                assert_eq!(Digest::of(&content).to_string(), digest);
                self.blobs.lock().unwrap().insert(digest, content);
                ScriptedReply::status(201).with("location", "/v2/it/blobs/x")
            }
            ("PUT", path) => {
                let kept = (request.header("content-type").to_owned(), request.body.clone());
                self.manifests.lock().unwrap().insert(path.to_owned(), kept);
                ScriptedReply::status(201).with("location", "/v2/it/manifests/x")
            }
            _ => ScriptedReply::of(b"{}"),
        }
    }
}

fn upload_registry(based: &[&[u8]]) -> (Arc<UploadRegistry>, RegistryServer) {
    let based = based.iter().map(|content| Digest::of(content).to_string()).collect();
    let upload_registry = Arc::new(UploadRegistry { based, ..UploadRegistry::default() });
    let behind = Arc::clone(&upload_registry);
    (upload_registry, RegistryServer::start(move |request| behind.answer(request)))
}

fn describe(content: &[u8]) -> Descriptor {
    Descriptor::new(media::LAYER, Digest::of(content), content.len() as u64)
}

fn send(target: &impl ImageTarget, content: &[u8]) {
    target.blob(&describe(content), &|| Ok(Box::new(Cursor::new(content.to_vec())))).unwrap();
}

#[test]
fn a_blob_arrives_whole_at_any_size() {
    let (upload_registry, server) = upload_registry(&[]);
    let registry = server.registry();
    for length in [1, 1000, 4 << 20, (4 << 20) + 1, 9_000_000] {
        let content: Vec<u8> = (0..length).map(|at| u8::try_from(at % 241).unwrap()).collect();
        assert!(!registry.has(&describe(&content)).unwrap());
        send(&registry, &content);
        assert!(registry.has(&describe(&content)).unwrap());
        assert_eq!(upload_registry.blobs.lock().unwrap()[&Digest::of(&content).to_string()], content);
    }
}

#[test]
fn a_blob_of_another_repository_is_mounted() {
    let (upload_registry, server) = upload_registry(&[b"from the base"]);
    let registry = server.registry().mount_from(format!("{}/base:1", server.address).parse().unwrap());
    send(&registry, b"from the base");
    assert!(upload_registry.blobs.lock().unwrap().is_empty());
    send(&registry, b"of its own");
    assert_eq!(upload_registry.blobs.lock().unwrap().len(), 1);
}

#[test]
fn a_manifest_arrives_byte_for_byte_under_its_tag() {
    let (upload_registry, server) = upload_registry(&[]);
    let manifest = b"{ \"spaces\" :  \"are kept\" }";
    ImageTarget::manifest(&server.registry(), media::MANIFEST, manifest).unwrap();
    let kept = upload_registry.manifests.lock().unwrap()["/v2/it/manifests/1"].clone();
    assert_eq!(kept, (media::MANIFEST.to_owned(), manifest.to_vec()));
}

#[test]
fn unreadable_content_is_an_error() {
    struct UnreadableBody;
    impl std::io::Read for UnreadableBody {
        fn read(&mut self, _into: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }
    let (_taking, server) = upload_registry(&[]);
    let times = AtomicUsize::new(0);
    let error = server.registry().blob(&describe(b"content"), &|| {
        times.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(UnreadableBody))
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the disk is gone"), "{error}");
    assert_eq!(times.into_inner(), 1, "no other try would end in another way");
}

#[test]
fn a_chunked_upload_is_retried_from_the_beginning() {
    let upload_registry = Arc::new(UploadRegistry::default());
    let (behind, pieces) = (Arc::clone(&upload_registry), AtomicUsize::new(0));
    let server = RegistryServer::start(move |request| {
        if request.method == "PATCH" && pieces.fetch_add(1, Ordering::SeqCst) == 1 {
            // It loses the upload.
            behind.uploads.lock().unwrap().clear();
            return ScriptedReply::status(503);
        }
        behind.answer(request)
    });
    let content: Vec<u8> = (0..9_000_000).map(|at| u8::try_from(at % 239).unwrap()).collect();
    let times = AtomicUsize::new(0);
    let sent = server.registry().blob(&describe(&content), &|| {
        times.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Cursor::new(content.clone())))
    });
    sent.unwrap();
    assert_eq!(times.into_inner(), 2);
    assert_eq!(upload_registry.blobs.lock().unwrap()[&Digest::of(&content).to_string()], content);
}

#[test]
fn a_token_that_expires_during_an_upload_is_renewed() {
    let upload_registry = Arc::new(UploadRegistry::default());
    let (behind, given, left) = (Arc::clone(&upload_registry), AtomicUsize::new(0), AtomicUsize::new(0));
    let server = RegistryServer::start(move |request| {
        if request.path.starts_with("/token?") {
            assert!(request.path.contains("scope=repository%3Ait%3Apull%2Cpush"), "{}", request.path);
            // The first token is good for three requests, the second for all.
            let number = given.fetch_add(1, Ordering::SeqCst);
            left.store(if number == 0 { 3 } else { 1000 }, Ordering::SeqCst);
            return ScriptedReply::of(format!(r#"{{"token":"number-{number}"}}"#).as_bytes());
        }
        let token = format!("Bearer number-{}", given.load(Ordering::SeqCst).wrapping_sub(1));
        let spent = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err();
        if spent || request.header("authorization") != token {
            behind.uploads.lock().unwrap().clear();
            let realm = format!("Bearer realm=\"http://{}/token\"", request.header("host"));
            return ScriptedReply::status(401).with("www-authenticate", realm);
        }
        behind.answer(request)
    });
    let content = vec![7; 9_000_000];
    send(&server.registry(), &content);
    assert_eq!(upload_registry.blobs.lock().unwrap()[&Digest::of(&content).to_string()], content);
    assert_eq!(server.received().iter().filter(|received| received.starts_with("GET /token?")).count(), 2);
}
